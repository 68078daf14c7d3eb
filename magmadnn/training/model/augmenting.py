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
from magmadnn.training.loop.augmented_source import AugmentedSource

if TYPE_CHECKING:
    from .model import Model


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
    if augment is None:
        return ()
    if len(inputs) != 1 or len(targets) != 1:
        raise ArgumentError(
            f"fit: augment needs a model of one input and one output, got {len(inputs)} and {len(targets)}; "
            "give an iterable of batches that your own code changes"
        )
    if not (isinstance(inputs[0], np.ndarray | OnDemand) and isinstance(targets[0], np.ndarray)):
        raise ArgumentError(
            "fit: augment changes arrays of the host, and x or y lies on the device: give NumPy arrays"
        )
    try:
        check_images(inputs[0])
        found = as_transforms(augment, inputs[0].shape[1:])
    except MagmaDNNError as error:
        raise type(error)(f"fit: {error}") from error
    if found and isinstance(found[-1], Mixup) and weights is not None:
        raise ArgumentError(
            "fit: Mixup mixes targets, and sample_weight or class_weight weighs samples: leave one out"
        )
    return found


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
    made, width = model.preparation, model.outputs[0].shape[-1]
    numbered = isinstance(transforms[-1], Mixup) and targets[0].dtype.kind in "iub"
    pipeline = Pipeline(
        transforms,
        model.seed,
        mean=made.mean if isinstance(made, Preparation) else None,
        std=made.std if isinstance(made, Preparation) else None,
        classes=width if numbered and isinstance(width, int) else None,
    )
    return AugmentedSource(
        inputs[0], targets[0], weights, pipeline=pipeline, workers=workers, seed=seed, chosen=chosen
    )
