"""Augmentations in a row, on rows of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.data._structure import as_array, take_rows
from magmadnn.data.augment.augmentation import Augmentation, Draws, Images
from magmadnn.data.augment.geometry import RandomCrop, RandomFlip
from magmadnn.data.augment.mixing import Mixup, mixed
from magmadnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError, quoted
from magmadnn.graph.signature import is_integer

Array = NDArray[Any]
Rows = NDArray[np.int64]

NAMES = ("standard", "none")
_EIGHTH = 8


@checked_call
def standard(shape: Sequence[int]) -> tuple[Augmentation, ...]:
    """What nearly always helps for photographs of this shape: moved by up to an eighth, and mirrored.

    Grey images (one channel) are not mirrored: of letters and digits the mirror image is another thing.

    Args:
        shape: [height, width, channels].

    Raises:
        ShapeError: if it is another one.
    """
    shape = tuple(shape)
    if len(shape) != 3 or min(shape) < 1:
        raise ShapeError(f"standard: expected a shape [height, width, channels], got {shape}")
    crop = RandomCrop(
        max(1, min(shape[:2]) // _EIGHTH), "reflect" if min(shape[:2]) > 1 else "edge"
    )
    return (crop,) if shape[-1] == 1 else (crop, RandomFlip())


def as_transforms(augment: Any, shape: Sequence[int]) -> tuple[Augmentation, ...]:
    """What `fit` was given: a list, or a name; looked at for images of this shape.

    Raises:
        ArgumentError, UnknownNameError: it is something else.
        ShapeError: images of this shape cannot be changed so.
    """
    if isinstance(augment, str):
        if augment not in NAMES:
            raise UnknownNameError.of("augment", augment, NAMES)
        return standard(shape) if augment == "standard" else ()
    found = tuple(augment) if isinstance(augment, (list, tuple)) else (augment,)
    for number, one in enumerate(found):
        if not isinstance(one, Augmentation):
            raise ArgumentError(
                f"augment: expected a list such as [md.data.augment.RandomCrop(4)], got {one!r} in it"
            )
        if isinstance(one, Mixup) and number < len(found) - 1:
            raise ArgumentError("augment: Mixup has to be the last of the list")
        one.check(tuple(shape))
    return found


@dataclass(frozen=True)
class Pipeline:
    """Transforms for one training.

    Attributes:
        transforms: in order.
        seed: of the training.
        mean: of the standardised images that are given, one for each channel, or None;
        std: likewise. Transforms that need it see values before they were standardised.
        classes: how many there are, where targets are their numbers and are mixed.
    """

    transforms: tuple[Augmentation, ...]
    seed: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: int | None = None

    @property
    def mixup(self) -> Mixup | None:
        """The last of the transforms, where it mixes."""
        last = self.transforms[-1] if self.transforms else None
        return last if isinstance(last, Mixup) else None

    def images(self, x: Array, rows: Rows, epoch: int) -> Images:
        """These rows of x as they are in an epoch, but for mixing: float32."""
        images = take_rows(x, rows).astype(np.float32, copy=False)
        draws = Draws(self.seed, epoch, rows)
        raw = self.mean is not None and any(t.needs_raw for t in self.transforms)
        if raw:
            mean, scale = np.array(self.mean, np.float32), np.array(self.std, np.float32)
            images *= np.where(
                np.isfinite(scale), scale, 0
            )  # a constant channel is 0, its std infinite
            images += mean
        for number, transform in enumerate(self.transforms):
            if not isinstance(transform, Mixup):
                images = _applied(transform, images, draws, self._use(number))
        if raw:
            images -= mean
            images /= scale
        return images

    def numbers(self, rows: Rows, epoch: int, sides: tuple[int, int]) -> NDArray[np.float32]:
        """What transforms draw for these rows in an epoch, one transform's beside the other's.

        Args:
            rows: their numbers.
            epoch: counted from 0.
            sides: height and width of an image.
        """
        draws = Draws(self.seed, epoch, rows)
        drawn = [t.numbers(draws, self._use(k), sides) for k, t in enumerate(self.transforms)]
        return np.concatenate(drawn, axis=1).astype(np.float32)

    def pairs(
        self, x: Array, y: Array, rows: Rows, epoch: int, every: Rows
    ) -> tuple[Images, Array]:
        """Images and targets of these rows; with `Mixup` mixed with any of the rows `every`."""
        images, mixup = self.images(x, rows, epoch), self.mixup
        if mixup is None:
            return images, take_rows(y, rows)
        draws, use = Draws(self.seed, epoch, rows), self._use(len(self.transforms) - 1)
        others, shares = mixup.partners(draws, use, every), mixup.shares(draws, use)
        images = mixed(images, self.images(x, others, epoch), shares)
        return images, mixed(self._shared(y, rows), self._shared(y, others), shares)

    def _shared(self, y: Array, rows: Rows) -> Images:
        """Targets of these rows as numbers that can be mixed; of classes their probabilities."""
        targets = take_rows(y, rows)
        if self.classes is None:
            return targets.astype(np.float32)
        found = np.zeros((len(rows), self.classes), np.float32)
        np.put_along_axis(found, targets.reshape(-1, 1).astype(np.int64, copy=False), 1.0, 1)
        return found

    def _use(self, number: int) -> str:
        """What tells a transform's random numbers from others': its class and its place."""
        return f"{number} {type(self.transforms[number]).__name__}"


@checked_call
def augmented(
    x: Any,
    augment: Sequence[Augmentation] | Augmentation | str,
    *,
    seed: int = 0,
    epoch: int = 0,
    rows: Any = None,
) -> Images:
    """Images as `fit` sees them in an epoch, to look at; float32.

    Args:
        x: [rows, height, width, channels].
        augment: as for `fit`; without `Mixup`.
        seed: of the model.
        epoch: counted from 0.
        rows: their numbers; None: all.

    Raises:
        ArgumentError, ShapeError, DTypeError: as `fit`.
    """
    x = as_array(x, "augmented: x")
    check_images(x)
    transforms = as_transforms(augment, x.shape[1:])
    for what, number in (("seed", seed), ("epoch", epoch)):
        if not is_integer(number) or number < 0:
            raise ArgumentError(f"augmented: {what} must be a whole number from 0, got {number!r}")
    made = Pipeline(transforms, int(seed))
    if made.mixup is not None:
        raise ArgumentError("augmented: Mixup needs targets: leave it out to look at images")
    return made.images(x, _chosen(rows, len(x)), int(epoch))


def _chosen(rows: Any, count: int) -> Rows:
    """The numbers of rows that are looked at.

    Raises:
        ArgumentError: they are none of these rows.
    """
    if rows is None:
        return np.arange(count)
    chosen = np.asarray(rows)
    whole = chosen.ndim == 1 and (chosen.dtype.kind in "iu" or not chosen.size)
    if not whole or (chosen.size and not 0 <= chosen.min() <= chosen.max() < count):
        raise ArgumentError(
            f"augmented: rows must be a list of whole numbers from 0 to {count - 1}, got {quoted(rows)}"
        )
    return chosen.astype(np.int64)


def _applied(transform: Augmentation, images: Images, draws: Draws, use: str) -> Images:
    """What a transform, perhaps one of the user's, makes of images.

    Raises:
        ShapeError: it gives something else than as many images of the same size.
    """
    made: Any = transform.apply(images, draws, use)
    if not isinstance(made, np.ndarray) or made.shape != images.shape:
        got = f"shape {made.shape}" if isinstance(made, np.ndarray) else type(made).__name__
        raise ShapeError(
            f"augment: {type(transform).__name__}.apply has to return an array of the shape {images.shape} "
            f"that it was given, got {got}"
        )
    return made.astype(np.float32, copy=False)


def check_images(x: Array) -> None:
    """Look whether an array holds images.

    Raises:
        ShapeError, DTypeError: if not.
    """
    if x.ndim != 4:
        raise ShapeError(
            f"augment: expected images [rows, height, width, channels], got x of shape {x.shape}"
        )
    if x.dtype.kind not in "uif":
        raise DTypeError(f"augment: expected images of numbers, got {x.dtype}")
