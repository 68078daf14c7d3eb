"""From what `fit` and `evaluate` are given to a training and to sums over batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from magmadnn.data import split_rows
from magmadnn.data.augment import Augmentation
from magmadnn.errors import ArgumentError
from magmadnn.training.callbacks import Callback
from magmadnn.training.loop.fit import BatchSize, Fit
from magmadnn.training.loop.sources import ArraySource, IterableSource, Source
from magmadnn.training.loop.totals import run_once
from magmadnn.training.objective.heads import heads_of, output_names
from magmadnn.training.objective.objective import Objective
from magmadnn.training.objective.target_values import check_targets
from magmadnn.training.objective.weights import sample_weights

from .augmenting import augmented_source, transforms_for
from .checks import as_iterable, check_validation, check_values, checked_arrays, gpu_of
from .identity import identity_of
from .training_step import objective_key, training_step

if TYPE_CHECKING:
    from .model import Model


def new_fit(
    model: Model,
    x: Any,
    y: Any,
    *,
    batch_size: BatchSize,
    span: tuple[int, int],
    initial_epoch: int | None,
    validation_data: Any,
    validation_split: float,
    shuffle: bool,
    sample_weight: Any,
    class_weight: Mapping[int, float] | Literal["balanced"] | None,
    callbacks: Sequence[Callback],
    augment: Any,
    loader_workers: int,
    shown: Sequence[Callback],
) -> Fit:
    """The training that a call of `fit` asks for.

    `span` is its first epoch and the one it ends before; `shown` are the callbacks that print progress.

    Raises:
        MagmaDNNError: as `Model.fit`.
    """
    held_back = None
    transforms: tuple[Augmentation, ...] = ()
    if y is None:
        if validation_split or any(v is not None for v in (sample_weight, class_weight, augment)):
            what = "validation_split, sample_weight, class_weight and augment"
            raise ArgumentError(f"fit: {what} need x and y as arrays")
        source: Source = stream_of(model, x)
    else:
        later = not (class_weight or callbacks)
        inputs, targets = checked_arrays(model, "fit", x, y, later)
        names = output_names(model.outputs)
        weights = sample_weights("fit", targets, sample_weight, class_weight, names)
        kept = None
        if validation_split and validation_data is not None:
            raise ArgumentError("fit: give validation_data or validation_split, not both")
        if validation_split:
            kept, held = split_rows(len(inputs[0]), validation_split, model.seed)
            held_back = ArraySource(inputs, targets, None, seed=None, chosen=held)
        on = {"seed": model.seed if shuffle else None, "device": gpu_of(model)}
        look = partial(check_values, model, inputs, targets)
        transforms = transforms_for(model, augment, inputs, targets, weights)
        if transforms:
            source = augmented_source(
                model, transforms, inputs, targets, weights, kept, on["seed"], loader_workers
            )
        else:
            source = ArraySource(inputs, targets, weights, chosen=kept, look=look, **on)
    more = tuple(part for callback in callbacks for part in callback.parts())
    objective, step = training_step(model, source.sample, more)
    size = 1024 if callable(batch_size) else max(batch_size, 1024)
    validate: Callable[[], dict[str, Any]] | None = None
    if validation_data is not None:
        x_held, y_held, of_rows = check_validation(model, validation_data)
        options: dict[str, Any] = {"sample_weight": of_rows, "prepared": True}
        validate = partial(model.evaluate, x_held, y_held, batch_size=size, **options)
    elif held_back is not None:
        validate = partial(evaluated, model, held_back, size)
    held_back_data = validation_data if validation_data is not None else (None, None)
    whole = y is not None
    data = {
        "x": x if whole else None, "y": y, "sample_weight": sample_weight,
        **dict(zip(("validation x", "validation y", "validation weights"), held_back_data, strict=False)),
    }  # fmt: skip
    settings = {
        "batch_size": batch_size, "shuffle": shuffle, "initial_epoch": initial_epoch,
        "validation_split": validation_split, "class_weight": class_weight,
        "parts of callbacks": more or None, "augment": transforms or None,
    }  # fmt: skip
    return Fit(
        model, objective, step, source, batch_size=batch_size, first=span[0], epochs=span[1],
        validation=validate, callbacks=[*shown, *callbacks],
        identity=partial(identity_of, model, data, settings),
    )  # fmt: skip


def stream_of(model: Model, x: Any) -> IterableSource:
    """Batches from an iterable, or from a function that makes one."""
    names = [placeholder.name for placeholder in model.inputs]
    look = partial(check_targets, heads_of(model))
    return IterableSource(as_iterable(x), gpu_of(model), names, model.outputs, look)


def evaluated(model: Model, source: Source, batch_size: int) -> dict[str, Any]:
    """Loss and metrics over all batches of a source."""
    sample = source.sample
    key = objective_key(model, sample)
    if model._evaluation is None or model._evaluation[0] != key:
        objective = Objective(model, sample.targets, sample.weights)
        model._evaluation = (key, objective, model._executable(objective.outputs))
    _, objective, executable = model._evaluation
    return run_once(model, objective, executable, source.epoch(0, batch_size, 0))
