"""From what `fit` and `evaluate` are given to a training and to sums over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from magmadnn.comm.job import ranks_of_job
from magmadnn.data import split_rows
from magmadnn.data.augment import Augmentation
from magmadnn.data.validation import is_numbers
from magmadnn.errors import ArgumentError
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.optim import Step
from magmadnn.parallel.data_parallel import DataParallel
from magmadnn.parallel.way import TrainingWay
from magmadnn.runtime import Executable
from magmadnn.training.arguments import (
    TRAINED_NOW,
    at_least,
    check_order,
    check_share,
    checked_limit,
    epochs_of,
    listed,
    refuse_while_training,
)
from magmadnn.training.callbacks import Callback
from magmadnn.training.callbacks.progress import for_verbosity
from magmadnn.training.loop.fit import BatchSize, Fit
from magmadnn.training.loop.given import (
    Checks,
    as_iterable,
    check_data,
    check_targets,
    check_validation,
    checked_arrays,
    gpu_of,
)
from magmadnn.training.loop.history import Totals
from magmadnn.training.loop.own_rows import OwnRows
from magmadnn.training.loop.pieces import feeds_for
from magmadnn.training.loop.sources import ArraySource, IterableSource, Source
from magmadnn.training.loop.together import Together
from magmadnn.training.objective.heads import heads_of, output_names
from magmadnn.training.objective.objective import Objective
from magmadnn.training.objective.weights import sample_weights

from .augmented_step import StepAugmentation
from .augmenting import augmented_source, augmented_step, changed_in_step, transforms_for
from .checks import refuse_one_row
from .plain.identity import identity_of
from .raw_data import takes_raw
from .training_step import objective_key, training_step

if TYPE_CHECKING:
    from .model import Model


class LastFit:
    """What a model's last fit was given: a call that gives the like again is not looked at anew.

    The values of its arrays are, in each fit. What the model is made of, its loss and what of it is trained
    are looked at by `training_step`.

    Args:
        model: that was fitted, on the processor.
        x, y: arrays in NumPy's memory.
        asked: arguments of `fit` that were found good, and what else stands beside them.
        checks: what looks at the values.
    """

    def __init__(
        self, model: Model, x: Array, y: Array, asked: Mapping[str, Any], checks: Checks
    ) -> None:
        self._facts, self._checks = self._facts_of(model, x, y, asked), checks

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # copies of a model have had no fit

    @staticmethod
    def _facts_of(model: Model, x: Array, y: Array, asked: Mapping[str, Any]) -> tuple[Any, ...]:
        """Types and values of arguments, how arrays look, what the model takes: in the order of comparing."""
        numbers = [asked.get(name) for name in _NUMBERS]
        arrays = (x.shape, x.dtype, y.shape, y.dtype)
        takes = ([p.node for p in model.inputs], heads_of(model))
        return (*map(type, numbers), *arrays, *numbers, *takes)

    def is_again(self, model: Model, x: Any, y: Any, asked: Mapping[str, Any]) -> bool:
        """Whether nothing is new but values; arguments that are not among those of `fit` are not there."""
        return (
            _is_plain(x)
            and _is_plain(y)
            and model.preparation is None
            and model.device == "cpu"
            and not any(asked.get(name) is not None for name in _USUALLY_NONE)
            and self._facts == self._facts_of(model, x, y, asked)
        )

    def check(self, x: Array, y: Array) -> None:
        """Look at the values.

        Raises:
            DataError: naming the first that is bad.
        """
        arrays = (x, y)
        for number, check in self._checks:
            check(arrays[number])


def _is_plain(array: Any) -> bool:
    """Whether it is an array of NumPy, in memory that is NumPy's and in the machine's order of bytes.

    So none that is mapped from a file, and none that is converted first.
    """
    if type(array) is not np.ndarray or not array.dtype.isnative:
        return False
    return array.base is None or (type(array.base) is np.ndarray and array.base.base is None)


_ROWS_OF_BATCH = 32  # batch_size where `fit` is not told one
_NUMBERS = (
    "batch_size", "epochs", "validation_split", "shuffle", "accumulate", "memory_limit",
)  # fmt: skip
_USUALLY_NONE = (
    "initial_epoch", "validation_data", "sample_weight", "class_weight", "augment", "parallel", "rows",
)  # fmt: skip


class Validation:
    """What is evaluated after each epoch; called, it gives losses and metrics.

    Args:
        model: that is trained.
        source: gives the rows; looked at anew in each epoch, since their owner may change them.
        batch_size: rows that are computed at a time.
    """

    def __init__(self, model: Model, source: Callable[[], ArraySource], batch_size: int) -> None:
        self.model, self.source, self.batch_size = model, source, batch_size

    def __call__(self) -> dict[str, Any]:
        """Losses and metrics."""
        return evaluated(self.model, self.source(), self.batch_size)


@dataclass(frozen=True)
class _Rows:
    """What a training's batches come from.

    Attributes:
        source: gives them.
        held_back: the rows kept back to validate, if any.
        transforms: what changes images.
        in_step: what the step does of that.
        checks: what looks at the values of plain arrays, of which there are two.
    """

    source: Source
    held_back: ArraySource | None = None
    transforms: tuple[Augmentation, ...] = ()
    in_step: StepAugmentation | None = None
    checks: Checks | None = None


def array_source(model: Model, what: str, x: Any, y: Any, sample_weight: Any) -> ArraySource:
    """All rows of arrays in their order, checked.

    Raises:
        ShapeError, DTypeError, DataError: if data does not fit, naming where.
    """
    inputs, targets, _ = checked_arrays(model, what, x, y)
    weights = sample_weights(what, targets, sample_weight, None, output_names(model.outputs))
    return ArraySource(inputs, targets, weights, seed=None)


def new_fit(
    model: Model,
    x: Any,
    y: Any,
    *,
    batch_size: BatchSize,
    epochs: int,
    initial_epoch: int | None,
    validation_data: Any,
    validation_split: float,
    shuffle: bool,
    sample_weight: Any,
    class_weight: Mapping[int, float] | Literal["balanced"] | None,
    callbacks: Sequence[Callback],
    augment: Any,
    loader_workers: int,
    verbose: Any,
    accumulate: int = 1,
    parallel: TrainingWay | None = None,
    memory_limit: int | None = None,
    prepared: bool = True,
    rows: NDArray[np.int64] | None = None,
    again: LastFit | None = None,
) -> Fit:
    """The training that a call of `fit` asks for.

    All is as `Model.fit` takes it, and x, y prepared; `rows` are those of them that are meant, in their
    order, None for all. `again` is the model's last fit, if this one is given the like.

    Raises:
        MagmaDNNError: as `Model.fit`.
    """
    if model in TRAINED_NOW:
        refuse_while_training(model, "fit")
    if again is None:
        _check_sizes(batch_size, accumulate, memory_limit)
        check_share("fit: validation_split", validation_split)
        check_order(shuffle)
        first, last = epochs_of(epochs, initial_epoch, model.epochs_done)
    else:
        first, last = model.epochs_done, model.epochs_done + int(epochs)
    if not callable(batch_size) and batch_size == 1:
        refuse_one_row(model)
    if not (type(callbacks) is tuple and not callbacks):
        callbacks = listed("fit: callbacks", callbacks, Callback, "[md.callbacks.EarlyStopping()]")
    together = None if parallel is None else Together(parallel)
    if together is not None:
        together.look_for_shards(callbacks)
    shown = [] if verbose is False else for_verbosity(verbose)
    weighing = {"sample_weight": sample_weight, "class_weight": class_weight}
    if y is None:
        others = (*weighing.values(), augment)
        given = _rows_of_stream(model, x, batch_size, validation_split, others)
    else:
        if validation_split and validation_data is not None:
            raise ArgumentError("fit: give validation_data or validation_split, not both")
        given = _rows_of_arrays(
            model, x, y, rows, validation_split, model.seed if shuffle else None, augment,
            in_step=parallel is None, later=not (class_weight or callbacks),
            workers=loader_workers, again=again, **weighing,
        )  # fmt: skip
        if again is None:
            checks = given.checks  # of what it is given, it keeps the _NUMBERS
            model._last_fit = None if checks is None else LastFit(model, x, y, locals(), checks)
    source: Source = given.source
    more = tuple(part for callback in callbacks for part in callback.parts())
    if accumulate > 1:
        _check_counted(source, batch_size, accumulate)
    how = (more, int(accumulate), parallel, given.in_step)
    objective, step = training_step(model, source.sample, *how)
    if parallel is not None:
        source = OwnRows(source, parallel.own_rows)
    validation = _validation(model, validation_data, given.held_back, batch_size)
    data = _data_by_name(x, y, sample_weight, validation_data)
    settings = {
        "batch_size": batch_size, "shuffle": shuffle, "initial_epoch": initial_epoch,
        "validation_split": validation_split, "class_weight": class_weight,
        "parts of callbacks": more or None, "augment": given.transforms or None, "rows": rows,
        "accumulate": accumulate if accumulate > 1 else None,
    }  # fmt: skip
    settings |= {} if parallel is None else parallel.settings
    return Fit(
        model, objective, step, source, batch_size=batch_size, first=first, epochs=last,
        validation=validation, callbacks=[*shown, *callbacks],
        identity=partial(identity_of, model, data, settings), together=together,
        memory_limit=memory_limit,
    )  # fmt: skip


_training_of_raw = takes_raw(new_fit)


def training_of(model: Model, x: Any, y: Any, **asked: Any) -> Fit:
    """The same of raw data, tables and arrays that have not gone through the model's preparation."""
    last = model._last_fit
    if last is not None and last.is_again(model, x, y, asked):
        return new_fit(model, x, y, again=last, **asked)
    given = (asked.get("validation_data"), asked.get("sample_weight"), model.preparation)
    if (
        is_numbers(x) and is_numbers(y) and not any(g is not None for g in given)
    ):  # so there is no table
        return new_fit(model, x, y, **asked)
    return _training_of_raw(model, x, y, **asked)


def way_of(parallel: TrainingWay | Literal[False] | None) -> TrainingWay | None:
    """How `fit` trains: as it is told; with all ranks under `magmadnn launch`; else alone.

    Raises:
        ArgumentError: if it is told something else.
    """
    if parallel is None and ranks_of_job() > 1:  # by `magmadnn launch`
        return DataParallel()
    if parallel is None or parallel is False:
        return None
    if isinstance(parallel, TrainingWay):
        return parallel
    raise ArgumentError(
        f"fit: parallel must be one of md.parallel, such as DataParallel(), got {type(parallel).__name__}"
    )


def _check_sizes(batch_size: BatchSize, accumulate: int, memory_limit: int | None) -> None:
    """Look at the rows of a batch, the batches of an update, and the bytes of a step.

    Raises:
        ArgumentError: if one is too small.
    """
    if not callable(batch_size):
        at_least("fit: batch_size", batch_size, 1)
    at_least("fit: accumulate", accumulate, 1)
    checked_limit("fit", memory_limit)


def _check_counted(source: Source, batch_size: BatchSize, accumulate: int) -> None:
    """Look whether it is known how many batches an epoch has.

    Raises:
        ArgumentError: if not.
    """
    if source.count(1 if callable(batch_size) else batch_size) is None:
        raise ArgumentError(
            f"fit: accumulate={accumulate} must know how many batches an epoch has: give arrays, or a list "
            "of batches"
        )


def _data_by_name(x: Any, y: Any, sample_weight: Any, validation_data: Any) -> dict[str, Any]:
    """The data that a training is told from others by; batches of an iterable have none."""
    held_out = () if validation_data is None else validation_data
    names = "validation x", "validation y", "validation weights"
    given = {"x": None if y is None else x, "y": y, "sample_weight": sample_weight}
    return given | dict(zip(names, held_out, strict=False))


def _rows_of_stream(
    model: Model,
    x: Any,
    batch_size: BatchSize,
    validation_split: float,
    others: Iterable[Any],
) -> _Rows:
    """The batches that an iterable gives.

    Args:
        model: that is trained.
        x: as `fit` takes it where there is no y.
        batch_size: as given.
        validation_split: as given.
        others: arguments that are for arrays too.

    Raises:
        ArgumentError: if something is given that is for arrays.
    """
    if validation_split or any(value is not None for value in others):
        what = "validation_split, sample_weight, class_weight and augment"
        raise ArgumentError(f"fit: {what} need x and y as arrays")
    if batch_size != _ROWS_OF_BATCH:
        raise ArgumentError(
            f"fit: batch_size={batch_size!r} with an iterable, whose batches stay as they come: make them of "
            "that size and leave batch_size out, or give x and y as arrays"
        )
    return _Rows(stream_of(model, x))


def _rows_of_arrays(
    model: Model,
    x: Any,
    y: Any,
    rows: NDArray[np.int64] | None,
    validation_split: float,
    seed: int | None,
    augment: Any,
    *,
    sample_weight: Any,
    class_weight: Mapping[int, float] | Literal["balanced"] | None,
    in_step: bool,
    later: bool,
    workers: int,
    again: LastFit | None = None,
) -> _Rows:
    """The batches of arrays that are trained on, with the rows kept back and what changes images.

    Args:
        model: that is trained.
        x: inputs, as `fit` takes them.
        y: targets, likewise.
        rows: those that are meant, in their order; None for all.
        validation_split: the part of them that is kept back.
        seed: of their order; None: as they stand.
        augment: as `fit` takes it.
        sample_weight: likewise.
        class_weight: likewise.
        in_step: whether the step may change images.
        later: whether values on a device are looked at by whoever uses them.
        workers: threads that change images elsewhere.
        again: the model's last fit, if it had arrays like these.
    """
    in_step = in_step and augment is not None and changed_in_step(model, augment)
    moves = augment is None or in_step  # otherwise images are changed on the host
    checks: Checks | None = None
    if again is None:
        inputs, targets, checks = checked_arrays(model, "fit", x, y, later, moves)
        own = len(inputs) == len(targets) == 1 and inputs[0] is x and targets[0] is y
        checks = checks if own and _is_plain(x) and _is_plain(y) else None
    else:
        again.check(x, y)
        inputs, targets = [x], [y]
    weights = None
    if sample_weight is not None or class_weight is not None:
        names = output_names(model.outputs)
        weights = sample_weights("fit", targets, sample_weight, class_weight, names)
    held_back = None
    if validation_split:
        count = len(inputs[0]) if rows is None else len(rows)
        kept, held = split_rows(count, validation_split, model.seed)
        if rows is not None:
            kept, held = rows[kept], rows[held]
        held_back, rows = ArraySource(inputs, targets, None, seed=None, chosen=held), kept
    device = None if again is not None else gpu_of(model)
    on: dict[str, Any] = {"seed": seed, "device": device, "chosen": rows}
    look = partial(check_data, model, inputs, targets)
    transforms: tuple[Augmentation, ...] = ()
    if augment is not None:
        transforms = transforms_for(model, augment, inputs, targets, weights)
    if not transforms:
        known = None if again is None else True
        source = ArraySource(inputs, targets, weights, look=look, in_memory=known, **on)
        return _Rows(source, held_back, checks=checks)
    if in_step and isinstance(inputs[0], OnDevice):
        drawn, step = augmented_step(model, transforms, inputs, targets, weights, look=look, **on)
        return _Rows(drawn, held_back, transforms, step)
    changed = augmented_source(model, transforms, inputs, targets, weights, rows, seed, workers)
    return _Rows(changed, held_back, transforms)


def _validation(
    model: Model, data: Any, held_back: ArraySource | None, batch_size: BatchSize
) -> Validation | None:
    """What evaluates the model after each epoch: on data that was given, or on rows kept back.

    Raises:
        MagmaDNNError: if that data does not fit, as `check_validation`.
    """
    size = 1024 if callable(batch_size) else max(batch_size, 1024)
    if data is not None:
        held_out = check_validation(model, data)
        return Validation(model, partial(array_source, model, "evaluate", *held_out), size)
    return None if held_back is None else Validation(model, partial(_same, held_back), size)


def _same(source: ArraySource) -> ArraySource:
    return source


def stream_of(model: Model, x: Any) -> IterableSource:
    """Batches from an iterable, or from a function that makes one."""
    names = [placeholder.name for placeholder in model.inputs]
    look = partial(check_targets, heads_of(model))
    return IterableSource(as_iterable(x), gpu_of(model), names, model.outputs, look)


def evaluated(model: Model, source: Source, batch_size: int) -> dict[str, Any]:
    """Loss and metrics over all batches of a source."""
    objective, executable = evaluation_of(model, source)
    totals = Totals(objective)
    for batch in source.epoch(0, batch_size, 0):
        feeds = feeds_for(objective, batch)
        loss, *sums = executable.run(feeds)
        totals.add(batch, loss, sums)
    return totals.results()


def evaluation_of(model: Model, source: Source) -> tuple[Objective, Executable]:
    """Losses and metrics for targets like those of a source, and what computes them."""
    sample = source.sample
    key = objective_key(model, sample)
    if model._evaluation is None or model._evaluation[0] != key:
        made = model._step
        if made is not None and type(made[2]) is Step and made[0][2] == key:
            objective = made[1]  # that of training: losses and metrics of targets that look alike
        else:
            objective = Objective(model, sample.targets, sample.weights)
        model._evaluation = (key, objective, _evaluating(model, objective))
    return model._evaluation[1:]


def _evaluating(model: Model, objective: Objective) -> Executable:
    """What computes losses and metrics."""
    program = objective.evaluating(model.precision)
    if program is None:
        return model._executable(objective.outputs)
    return Executable(
        program, executor=model.executor, precision=model.precision, device=model.device
    )
