"""A fit by the workers of `with md.workers(4):`: what travels to them, and what comes back.

The model travels as its record and arrays, as it would to a folder; nothing is pickled. Each worker builds
it, and all train it as `DataParallel` does, or as `fit(parallel=...)` says. The first one's history,
parameters and optimiser come back, and from each how long it waited for data; the workers keep the model,
for `Session.weights`.

Callbacks are called in the client: workers train an epoch, the model here becomes what it is after that, and
the callbacks look at it. `Checkpoint` alone is called on the first worker, which saves what only it has.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from magmadnn.parallel.way import TrainingWay
from magmadnn.training.arguments import checked_limit, epochs_of, listed
from magmadnn.training.callbacks import Callback, Checkpoint
from magmadnn.training.callbacks.progress import for_verbosity
from magmadnn.training.loop.history import History
from magmadnn.training.model.fitting import way_of
from magmadnn.training.model.loading import model_sent
from magmadnn.training.model.parts import trained_of
from magmadnn.training.model.saving import sent_record
from magmadnn.training.model.training_step import Carried, carried_from, names_of
from magmadnn.workers import Answer, Worker, Workers, handler

from .in_client import Arrays, ClientFit, settings_from, settings_record

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

HANDLER: Final = "training.fit"


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
    saving = [callback.settings for callback in callbacks if isinstance(callback, Checkpoint)]
    arguments: dict[str, Any] = {
        "model": sent_record(model), "executor": model.executor, "settings": settings_record(settings),
        "values": held.numbered(model.values()), "state": held.numbered(state),
        "x": held.numbered(x), "y": held.numbered(y), "weights": held.numbered(sample_weight),
        "validation": held.numbered(validation_data),
        "class_weight": class_weight if class_weight in (None, "balanced")
        else [(_plain(key), _plain(one)) for key, one in class_weight.items()],
        "saving": saving,
        "way": None if way is None else way.record(),
        "options": {
            "batch_size": _plain(batch_size), "epochs": _plain(epochs),
            "initial_epoch": _plain(initial_epoch), "validation_split": _plain(validation_split),
            "shuffle": _plain(shuffle), "augment": augment, "accumulate": _plain(accumulate),
            "memory_limit": checked_limit("fit", memory_limit),
        },
    }  # fmt: skip

    waited = np.zeros((workers.size, 2))  # of each worker: seconds for data, and of all epochs
    model._waited = ()

    def trained(changed: dict[str, Any], arrays: Sequence[Any], settings: Any) -> History:
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
            names_of(model),
        )
        history = History(found["rows"])
        history.stopped = found["stopped"]
        return history

    if callbacks and not saving:
        first, last = epochs_of(epochs, initial_epoch, model.epochs_done)
        fit = ClientFit(model, first, last, callbacks)
        history = fit.run(arguments["options"], held, trained)
    else:
        history = trained({}, held.all, settings)
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
    comm = worker.communicator
    if arguments.get("again"):
        model, data, way = worker.objects[HANDLER]
        _change(model, arguments, Arrays(arrays))
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
        return DataParallel(comm)
    kind: type[TrainingWay] = getattr(ways, record["way"])
    return kind.of_record(record["arguments"], comm)


def _change(model: Model, arguments: dict[str, Any], given: Arrays) -> None:
    """Take what callbacks in the client have set since the last epoch."""
    assert model._step is not None
    step, settings = model._step[2], settings_from(arguments["settings"])
    if settings != step.overrides:
        step.set(**(dict.fromkeys(step.overrides) | settings))
    if arguments["values"] is not None:
        model.assign(given.value(arguments["values"]))


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
    model = model_sent(arguments["model"])
    model.executor = arguments["executor"]
    model.assign(given.value(arguments["values"]))
    settings = settings_from(arguments["settings"])
    if settings or arguments["state"]["dict"]:
        nodes = tuple(p.node for p in trained_of(model.variables()))
        model._carried = Carried(nodes, given.value(arguments["state"]), settings, names_of(model))
    weight = arguments["class_weight"]
    return model, {
        "x": given.value(arguments["x"]),
        "y": given.value(arguments["y"]),
        "sample_weight": given.value(arguments["weights"]),
        "validation_data": given.value(arguments["validation"]),
        "class_weight": dict(weight) if isinstance(weight, list) else weight,
    }


def _plain(value: Any) -> Any:
    """A number of NumPy as Python's, which JSON has."""
    return value.item() if isinstance(value, np.generic) else value


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
