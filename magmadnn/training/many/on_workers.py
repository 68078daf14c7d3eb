"""A fit by the workers of `with md.workers(4):`: what travels to them, and what comes back.

The model travels as its record and arrays, as it would to a folder; nothing is pickled. Each worker builds
it, and all train it as `DataParallel` does, or as `fit(parallel=...)` says. The first one's history,
parameters and optimiser come back, and from each how long it waited for data; the workers keep the model,
for `Session.weights`.

Callbacks are called in the client: workers train an epoch, the model here becomes what it is after that, and
the callbacks look at it. `Checkpoint` alone is called on the first worker, which saves what only it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import magmadnn.parallel as ways
from magmadnn.comm import Communicator
from magmadnn.data.preparation.preparation import Preparation
from magmadnn.dmath.client.processes import WEIGHTS
from magmadnn.dmath.layouts.layout import replicated
from magmadnn.dmath.worker import Weights
from magmadnn.errors import ArgumentError
from magmadnn.graph.dim import bind_shape
from magmadnn.parallel import DataParallel
from magmadnn.parallel.data_parallel import way_of
from magmadnn.parallel.way import SHARDS, TrainingWay
from magmadnn.training.arguments import checked_limit, epochs_of, listed
from magmadnn.training.callbacks import Callback, Checkpoint
from magmadnn.training.callbacks.progress import for_verbosity
from magmadnn.training.loop.history import History
from magmadnn.training.model.loading import model_from
from magmadnn.training.model.plain.architecture import trained_of
from magmadnn.training.model.saving import model_record
from magmadnn.training.model.training_step import Carried, carried_from
from magmadnn.training.objective.heads import heads_of
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
    parallel: Any = None,
    memory_limit: int | None = None,
) -> History:
    """What `Model.fit` does in `with md.workers(...)`.

    Raises:
        ArgumentError: for what cannot travel to workers.
        MagmaDNNError: as `Model.fit`, with the worker's number.
    """
    shown = for_verbosity(verbose)
    callbacks = listed("fit: callbacks", callbacks, Callback, "[md.callbacks.EarlyStopping()]")
    _refuse(model, y, batch_size, augment, callbacks)
    way = way_of(parallel) if parallel is not None else None
    held, carried = Arrays(), carried_from(model)
    state = {} if carried is None else carried.state
    settings = {} if carried is None else carried.settings
    if functions := [name for name, value in settings.items() if callable(value)]:
        raise ArgumentError(
            f"fit: {functions[0]} was set to a function or schedule, which does not travel to workers: call "
            "model.reset_optimizer(), or use magmadnn launch"
        )
    saving = [callback.settings for callback in callbacks if isinstance(callback, Checkpoint)]
    arguments: dict[str, Any] = {
        "model": model_record(model), "executor": model.executor, "settings": settings,
        "values": held.numbered(model.values()), "state": held.numbered(state),
        "x": held.numbered(x), "y": held.numbered(y), "weights": held.numbered(sample_weight),
        "validation": held.numbered(validation_data),
        "class_weight": class_weight if class_weight in (None, "balanced") else list(class_weight.items()),
        "saving": saving,
        "way": None if way is None else way.record(),
        "options": {
            "batch_size": batch_size, "epochs": epochs, "initial_epoch": initial_epoch,
            "validation_split": validation_split, "shuffle": shuffle, "augment": augment,
            "accumulate": accumulate, "memory_limit": checked_limit("fit", memory_limit),
        },
    }  # fmt: skip

    waited = np.zeros((workers.size, 2))  # of each worker: seconds for data, and of all epochs
    model._waited = ()

    def trained(changed: dict[str, Any], arrays: Sequence[Any]) -> History:
        answers = workers.call(HANDLER, {**arguments, **changed}, arrays)
        found, back = answers[0].value, Arrays(answers[0].arrays)
        if epochs := [worker for worker, one in enumerate(answers) if one.value["waited"]]:
            waited[epochs] += [answers[worker].value["waited"] for worker in epochs]
            model._waited = tuple((float(one), float(all_in)) for one, all_in in waited)
        model.assign(back.value(found["values"]))
        model.epochs_done = found["epochs_done"]
        model._step = None
        model._carried = Carried(
            tuple(p.node for p in trained_of(model.variables())),
            back.value(found["state"]),
            settings,
        )
        history = History(found["rows"])
        history.stopped = found["stopped"]
        return history

    if callbacks and not saving:
        first, last = epochs_of(epochs, initial_epoch, model.epochs_done)
        fit = ClientFit(model, first, last, callbacks)
        history = fit.run(arguments["options"], held.all, trained)
    else:
        history = trained({}, held.all)
    if shown:
        print(
            "\n".join(
                f"epoch {int(row['epoch'])}: loss {row['loss']:.4f}" for row in history.rows[-1:]
            )
        )
    return history


class ClientFit:
    """What callbacks in the client see of a training by workers: the attributes of `Fit` that need no step.

    Args:
        model: which is what workers have trained, after each epoch.
        first: the first epoch.
        last: where training ends.
        callbacks: that are called here.
    """

    def __init__(self, model: Model, first: int, last: int, callbacks: Sequence[Callback]) -> None:
        self.model, self.begin, self.epoch, self.epochs = model, first, first, last
        self.callbacks = sorted(callbacks, key=lambda callback: callback.comes_last)
        self.history, self.row = History(), dict[str, Any]()
        self.last_loss = float("nan")
        self.stopped: str | None = None
        self.goes_on = self.completed = False
        heads = heads_of(model)
        self._higher: dict[str, bool | None] = {"loss": False}
        self._higher |= {head.column: False for head in heads if head.column is not None}
        self._higher |= {
            c: one.higher_is_better for head in heads for c, one in head.metrics.items()
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ArgumentError(
            f"fit: a callback asks for {name}, which workers have and the client has not: use magmadnn launch"
        )

    def stop(self, reason: str, *, goes_on: bool = False) -> None:
        """End training after this epoch."""
        if self.stopped is None:
            self.stopped, self.goes_on = reason, goes_on

    def measures(self, column: str) -> bool:
        """See `Fit.measures`."""
        return column.removeprefix("val_") in self._higher

    def higher_is_better(self, column: str) -> bool | None:
        """See `Fit.higher_is_better`."""
        return self._higher.get(column.removeprefix("val_"))

    @property
    def is_stopping(self) -> bool:
        """Whether something has asked to stop."""
        return self.stopped is not None

    def values(self) -> dict[str, Any]:
        """Copies of the model's parameters and states."""
        return self.model.values()

    def run(self, options: Mapping[str, Any], arrays: Sequence[Any], trained: Any) -> History:
        """Train an epoch after the other; data travels with the first only."""
        this: Any = self
        with ExitStack() as ends:
            for callback in self.callbacks:
                ends.callback(callback.on_train_end, this)
                callback.begin(this)
            while self.epoch < self.epochs and self.stopped is None:
                for callback in self.callbacks:
                    callback.on_epoch_begin(this)
                now = {**options, "epochs": self.epoch + 1, "initial_epoch": self.epoch}
                again = self.epoch > self.begin
                history = trained({"options": now, "again": again}, [] if again else arrays)
                self.row = history.rows[-1]
                self.history.rows += history.rows
                self.last_loss, self.stopped = self.row["loss"], self.stopped or history.stopped
                for callback in self.callbacks:
                    callback.on_epoch_end(this)
                self.epoch += 1
            self.completed = True
            self.history.stopped = self.stopped
        return self.history


@handler(HANDLER)
def fit(worker: Worker, arguments: dict[str, Any], arrays: list[Any]) -> Answer:
    """Build the model, train it with the other workers; the first one tells what came of it."""
    comm = worker.communicator
    if arguments.get("again"):
        model, data, way = worker.objects[HANDLER]
    else:
        model, data = _prepared(arguments, arrays)
        way = _way(arguments["way"], comm)
        worker.objects[HANDLER] = model, data, way
    saving = [Checkpoint(**settings, signals=False) for settings in arguments["saving"]]
    model._waited = ()
    history = model.fit(
        callbacks=saving,
        parallel=way,
        verbose=False,
        **data,
        **arguments["options"],
    )
    worker.objects.setdefault(WEIGHTS, {}).clear()
    worker.objects[WEIGHTS] |= _laid_out(model, comm.size)
    waited = list(model._waited[0]) if model._waited else []  # none where no epoch was left
    if comm.rank:
        return Answer({"waited": waited})
    back, carried = Arrays(), carried_from(model)
    state = {} if carried is None else {k: np.asarray(v) for k, v in carried.state.items()}
    value = {
        "values": back.numbered(model.values()),
        "state": back.numbered(state),
        "rows": history.rows,
        "stopped": history.stopped,
        "epochs_done": model.epochs_done,
        "waited": waited,
    }
    return Answer(value, back.all)


def _way(record: dict[str, Any] | None, comm: Communicator) -> TrainingWay:
    """How these workers train."""
    if record is None:
        return DataParallel(comm, shards=max(SHARDS, comm.size))
    kind: type[TrainingWay] = getattr(ways, record["way"])
    return kind.of_record(record["arguments"], comm)


def _laid_out(model: Model, size: int) -> Weights:
    """The model's parameters and states, in the layouts that the last step had for them."""
    assert model._step is not None
    layouts = getattr(model._step[2], "layouts", {})
    found: Weights = {}
    for name, one in model.named().items():
        shape = bind_shape(one.node.shape, {})
        layout = layouts.get(one.node) or replicated(shape, size)
        found[name] = one.value.read, one.node.dtype, layout
    return found


def _prepared(arguments: dict[str, Any], arrays: list[Any]) -> tuple[Model, dict[str, Any]]:
    """The model that a client has sent, and what it is trained with."""
    given = Arrays(arrays)
    model = model_from(arguments["model"])
    model.executor = arguments["executor"]
    model.assign(given.value(arguments["values"]))
    if arguments["state"]["dict"]:
        nodes = tuple(p.node for p in trained_of(model.variables()))
        model._carried = Carried(nodes, given.value(arguments["state"]), arguments["settings"])
    weight = arguments["class_weight"]
    return model, {
        "x": given.value(arguments["x"]),
        "y": given.value(arguments["y"]),
        "sample_weight": given.value(arguments["weights"]),
        "validation_data": given.value(arguments["validation"]),
        "class_weight": dict(weight) if isinstance(weight, list) else weight,
    }


def _refuse(model: Model, y: Any, batch_size: Any, augment: Any, callbacks: Sequence[Any]) -> None:
    """Look whether all of a training can travel."""
    saves = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    base = Callback
    for callback in callbacks:
        cls = type(callback)
        looks = cls.on_batch_end is not base.on_batch_end or cls.parts is not base.parts
        if not saves and (looks or cls.evaluated is not base.evaluated):
            raise ArgumentError(
                f"fit: {cls.__name__} looks at batches or changes the step, but callbacks are called in the "
                "client after each epoch: use magmadnn launch"
            )
    reason = (
        "batches of an iterable" if y is None
        else "a function for batch_size" if callable(batch_size)
        else "Checkpoint beside other callbacks" if saves and len(callbacks) > 1
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
