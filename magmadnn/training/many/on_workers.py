"""A fit by the workers of `with md.workers(4):`: what travels to them, and what comes back.

The model travels as its record and arrays, as it would to a folder; nothing is pickled. Each worker builds
it, and all train it as `DataParallel` does. The first one's history, parameters and optimiser come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from magmadnn.data.preparation import Preparation
from magmadnn.errors import ArgumentError
from magmadnn.parallel import DataParallel
from magmadnn.parallel.data_parallel import SHARDS
from magmadnn.training.callbacks.progress import for_verbosity
from magmadnn.training.loop.history import History
from magmadnn.training.model.architecture import trained_of
from magmadnn.training.model.loading import model_from
from magmadnn.training.model.saving import model_record
from magmadnn.training.model.training_step import Carried, carried_from
from magmadnn.workers import Answer, Worker, Workers, handler

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

HANDLER: Final = "training.fit"


class Arrays:
    """Arrays in nested lists and dicts, by number in one list.

    Attributes:
        all: the arrays.
    """

    def __init__(self, arrays: Sequence[Any] = ()) -> None:
        self.all = list(arrays)

    def numbered(self, value: Any) -> Any:
        """The value as JSON data, arrays by number.

        Raises:
            ArgumentError: if something in it is no array.
        """
        if value is None:
            return None
        if isinstance(value, Mapping):
            return {"dict": {str(name): self.numbered(one) for name, one in value.items()}}
        if isinstance(value, (list, tuple)) and any(np.ndim(one) for one in value):
            return {"list": [self.numbered(one) for one in value]}
        array = np.asarray(value, order="C")
        if array.dtype.hasobject or array.dtype.kind in "US":
            raise ArgumentError(
                f"fit: workers are sent arrays of numbers, got {type(value).__name__} of {array.dtype}: give "
                "arrays of numbers, or use magmadnn launch"
            )
        self.all.append(array)
        return {"array": len(self.all) - 1, "shape": list(array.shape)}

    def value(self, record: Any) -> Any:
        """What `numbered` was given."""
        if record is None:
            return None
        if "dict" in record:
            return {name: self.value(one) for name, one in record["dict"].items()}
        if "list" in record:
            return [self.value(one) for one in record["list"]]
        return self.all[record["array"]].reshape(record["shape"])


def fit_on_workers(
    model: Model,
    workers: Workers,
    x: Any,
    y: Any,
    batch_size: Any,
    epochs: int,
    initial_epoch: int | None,
    validation_data: Any,
    validation_split: float,
    shuffle: bool,
    sample_weight: Any,
    class_weight: Any,
    augment: Any,
    accumulate: int,
    callbacks: Sequence[Any],
    verbose: Any,
) -> History:
    """What `Model.fit` does in `with md.workers(...)`.

    Raises:
        ArgumentError: for what cannot travel to workers.
        MagmaDNNError: as `Model.fit`, with the worker's number.
    """
    shown = for_verbosity(verbose)
    _refuse(model, y, batch_size, augment, callbacks)
    held, carried = Arrays(), carried_from(model)
    state = {} if carried is None else carried.state
    settings = {} if carried is None else carried.settings
    if functions := [name for name, value in settings.items() if callable(value)]:
        raise ArgumentError(
            f"fit: {functions[0]} was set to a function or schedule, which does not travel to workers: call "
            "model.reset_optimizer(), or use magmadnn launch"
        )
    arguments = {
        "model": model_record(model), "executor": model.executor, "settings": settings,
        "values": held.numbered(model.values()), "state": held.numbered(state),
        "x": held.numbered(x), "y": held.numbered(y), "weights": held.numbered(sample_weight),
        "validation": held.numbered(validation_data),
        "class_weight": class_weight if class_weight in (None, "balanced") else list(class_weight.items()),
        "options": {
            "batch_size": batch_size, "epochs": epochs, "initial_epoch": initial_epoch,
            "validation_split": validation_split, "shuffle": shuffle, "augment": augment,
            "accumulate": accumulate,
        },
    }  # fmt: skip
    told = workers.call(HANDLER, arguments, held.all)[0]
    found, back = told.value, Arrays(told.arrays)
    model.assign(back.value(found["values"]))
    model.epochs_done = found["epochs_done"]
    model._step = None
    model._carried = Carried(
        tuple(p.node for p in trained_of(model.variables())), back.value(found["state"]), settings
    )
    history = History(found["rows"])
    history.stopped = found["stopped"]
    if shown:
        print(
            "\n".join(
                f"epoch {int(row['epoch'])}: loss {row['loss']:.4f}" for row in history.rows[-1:]
            )
        )
    return history


@handler(HANDLER)
def fit(worker: Worker, arguments: dict[str, Any], arrays: list[Any]) -> Answer:
    """Build the model, train it with the other workers; the first one tells what came of it."""
    given, comm = Arrays(arrays), worker.communicator
    model = model_from(arguments["model"])
    model.executor = arguments["executor"]
    model.assign(given.value(arguments["values"]))
    if arguments["state"]["dict"]:
        nodes = tuple(p.node for p in trained_of(model.variables()))
        model._carried = Carried(nodes, given.value(arguments["state"]), arguments["settings"])
    weight = arguments["class_weight"]
    history = model.fit(
        given.value(arguments["x"]),
        given.value(arguments["y"]),
        sample_weight=given.value(arguments["weights"]),
        validation_data=given.value(arguments["validation"]),
        class_weight=dict(weight) if isinstance(weight, list) else weight,
        parallel=DataParallel(comm, shards=max(SHARDS, comm.size)),
        verbose=False,
        **arguments["options"],
    )
    if comm.rank:
        return Answer()
    back, carried = Arrays(), carried_from(model)
    state = {} if carried is None else {k: np.asarray(v) for k, v in carried.state.items()}
    value = {
        "values": back.numbered(model.values()),
        "state": back.numbered(state),
        "rows": history.rows,
        "stopped": history.stopped,
        "epochs_done": model.epochs_done,
    }
    return Answer(value, back.all)


def _refuse(model: Model, y: Any, batch_size: Any, augment: Any, callbacks: Sequence[Any]) -> None:
    """Look whether all of a training can travel."""
    reason = (
        "batches of an iterable" if y is None
        else "a function for batch_size" if callable(batch_size)
        else "callbacks" if callbacks
        else "a list for augment" if not (augment is None or isinstance(augment, str))
        else "a preparation of raw data" if isinstance(model.preparation, Preparation) or model.preparation
        else None
    )  # fmt: skip
    if reason is not None:
        raise ArgumentError(
            f"fit: {reason} cannot travel to the workers of md.workers: leave it out, give "
            f"parallel=False, or run "
            "the script by magmadnn launch"
        )
