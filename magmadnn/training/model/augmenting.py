"""What `fit` is given as `augment`, made a source of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data import Preparation
from magmadnn.data.augment.augmentation import Augmentation
from magmadnn.data.augment.mixing import Mixup
from magmadnn.data.augment.pipeline import Pipeline, as_transforms, check_images
from magmadnn.errors import ArgumentError, MagmaDNNError
from magmadnn.graph.op import Array
from magmadnn.memory.on_demand import OnDemand
from magmadnn.runtime.threads import MOST
from magmadnn.training.loop.augmented_source import AugmentedSource, DrawnSource
from magmadnn.training.loop.given import gpu_of
from magmadnn.training.objective.heads import heads_of

from .augmented_step import StepAugmentation, can_be_in_step

if TYPE_CHECKING:
    from .model import Model

_OF_PLACES = 3  # axes of targets, from which on they are of places: [rows, height, width]


def transforms_for(
    model: Model,
    augment: Any,
    inputs: Sequence[Array],
    targets: Sequence[Array],
    weights: Array | None,
) -> tuple[Augmentation, ...]:
    """The transforms that are asked for, looked at for this data.

    Raises:
        ArgumentError, ShapeError, DTypeError: they cannot be applied to it.
    """
    if len(inputs) != 1 or len(targets) != 1:
        raise ArgumentError(
            f"fit: augment needs a model of one input and one output, got {len(inputs)} and {len(targets)}; "
            "give an iterable of batches that your own code changes"
        )
    if not _on_host(inputs[0]) and not changed_in_step(model, augment):
        raise ArgumentError(
            "fit: x lies on a device, and augment has transforms that are applied on the host: give a NumPy "
            "array"
        )
    try:
        if _on_host(inputs[0]):
            check_images(inputs[0])
        found = as_transforms(augment, inputs[0].shape[1:])
    except MagmaDNNError as error:
        raise type(error)(f"fit: {error}") from error
    _check_places(found, targets[0])
    if found and isinstance(found[-1], Mixup) and weights is not None:
        raise ArgumentError(
            "fit: Mixup mixes targets, and sample_weight or class_weight weighs samples: leave one out"
        )
    if found and isinstance(found[-1], Mixup) and heads_of(model)[0].loss.outputs == "margins":
        raise ArgumentError(
            f"fit: Mixup mixes targets, and {heads_of(model)[0].loss.name} takes whole ones: leave one out, "
            'or take "binary_cross_entropy"'
        )
    return found


def _check_places(transforms: Sequence[Augmentation], targets: Array) -> None:
    """Refuse to change images alone where targets are of places: as of segmentation, or images again.

    Raises:
        ArgumentError: a transform would have to change them too.
    """
    if targets.ndim < _OF_PLACES:
        return
    for one in transforms:
        mixes = isinstance(one, Mixup) and targets.dtype.kind in "iub"
        if one.moves or mixes:
            does = "mixes images" if mixes else "moves pixels"
            raise ArgumentError(
                f"fit: {type(one).__name__} {does}, and y has targets for places, of shape "
                f"{targets.shape[1:]}, which would stay: give an iterable of batches in which your own code "
                "changes both, or transforms of colour"
            )


def _on_host(array: Any) -> bool:
    return isinstance(array, np.ndarray | OnDemand)


def changed_in_step(model: Model, augment: Any) -> bool:
    """Whether images are changed within the step: on a GPU, by transforms that have formulas there."""
    if gpu_of(model) is None or len(model.inputs) != 1 or model.inputs[0].ndim != 4:
        return False
    (x,) = model.inputs
    try:
        found = as_transforms(augment, [size for size in x.shape[1:] if isinstance(size, int)])
    except MagmaDNNError:
        return False  # which the host tells
    return bool(found) and can_be_in_step(found, x)


def augmented_step(
    model: Model,
    transforms: tuple[Augmentation, ...],
    inputs: Sequence[Any],
    targets: Sequence[Array],
    weights: Array | None,
    **options: Any,
) -> tuple[DrawnSource, StepAugmentation]:
    """Batches of images on a device, and what the step does to them."""
    pipeline = _pipeline(model, transforms, targets[0])
    made = StepAugmentation(model.inputs[0], pipeline)
    rows = np.arange(len(inputs[0]))

    def draw(epoch: int) -> NDArray[np.float32]:
        return pipeline.numbers(rows, epoch, made.sides)

    return DrawnSource(inputs[0], targets[0], weights, draw=draw, **options), made


def _pipeline(model: Model, transforms: tuple[Augmentation, ...], targets: Array) -> Pipeline:
    made, width = model.preparation, model.outputs[0].shape[-1]
    classes = width if isinstance(width, int) and width > 1 else None
    numbered = targets.dtype.kind in "iub" and targets.shape[1:] in ((), (1,))
    return Pipeline(
        transforms,
        model.seed,
        mean=made.mean if isinstance(made, Preparation) else None,
        std=made.std if isinstance(made, Preparation) else None,
        classes=classes if numbered and isinstance(transforms[-1], Mixup) else None,
    )


def augmented_source(
    model: Model,
    transforms: tuple[Augmentation, ...],
    inputs: Sequence[Array],
    targets: Sequence[Array],
    weights: Array | None,
    chosen: NDArray[np.int64] | None,
    seed: int | None,
    workers: int,
) -> AugmentedSource:
    """Batches of images that go through transforms.

    Raises:
        ArgumentError: if there is to be no thread, or very many.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= MOST:
        raise ArgumentError(
            f"fit: loader_workers must be a whole number from 1 to {MOST}, got {workers!r}"
        )
    pipeline = _pipeline(model, transforms, targets[0])
    return AugmentedSource(
        inputs[0], targets[0], weights, pipeline=pipeline, workers=workers, seed=seed, chosen=chosen
    )
