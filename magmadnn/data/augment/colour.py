"""Augmentations of colour. Values are not clipped: they may leave the range that the data had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from magmadnn.data.augment.augmentation import Augmentation, Draws, Floats, Images, in_range
from magmadnn.errors import ShapeError

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # of R, G and B: ITU-R BT.601, section 2.5.1


def _brightness(x: Images) -> Images:
    """Of values [..., 3].

    By sums, not a product of matrices: a library's bits depend on how many rows there are.
    """
    made: Images = x[..., 0] * _LUMA[0] + x[..., 1] * _LUMA[1] + x[..., 2] * _LUMA[2]
    return made


@dataclass(frozen=True)
class _Colour(Augmentation):
    """A change of colours by a factor for each image, uniform within 1 +- strength."""

    needs_raw: ClassVar[bool] = True
    strength: float = 0.2

    def __post_init__(self) -> None:
        in_range(self, "strength", 1e-6, 1)

    def numbers(self, draws: Draws, use: str, sides: tuple[int, int]) -> Floats:
        """The factor."""
        found: Floats = 1 + self.strength * (2 * draws.uniform(use, 1) - 1)
        return found

    def _factors(self, draws: Draws, use: str) -> Images:
        """Factors of shape [n, 1, 1, 1]."""
        return self.numbers(draws, use, (0, 0)).astype(np.float32).reshape(-1, 1, 1, 1)


@dataclass(frozen=True)
class RandomBrightness(_Colour):
    """`f * x` with f uniform within 1 +- strength.

    Attributes:
        strength: above 0, at most 1.
    """

    def apply(self, images: Images, draws: Draws, use: str) -> Images:
        """See `Augmentation`."""
        images *= self._factors(draws, use)
        return images


@dataclass(frozen=True)
class RandomContrast(_Colour):
    """`m + f * (x - m)` with f uniform within 1 +- strength and m the mean brightness of the image.

    Attributes:
        strength: above 0, at most 1.
    """

    def apply(self, images: Images, draws: Draws, use: str) -> Images:
        """See `Augmentation`."""
        of_channels = images.mean(axis=(1, 2))  # [n, channels]
        mean = _brightness(of_channels) if images.shape[-1] == 3 else of_channels.mean(axis=1)
        mean = mean.astype(np.float32).reshape(-1, 1, 1, 1)
        return _between(mean, images, self._factors(draws, use))


@dataclass(frozen=True)
class RandomSaturation(_Colour):
    """`g + f * (x - g)` with f uniform within 1 +- strength and g the brightness of the pixel.

    Attributes:
        strength: above 0, at most 1.
    """

    def check(self, shape: tuple[int, ...]) -> None:
        """See `Augmentation`."""
        super().check(shape)
        if shape[-1] != 3:
            raise ShapeError(
                f"RandomSaturation: expected images of 3 channels, got {shape[-1]}: leave it out"
            )

    def apply(self, images: Images, draws: Draws, use: str) -> Images:
        """See `Augmentation`."""
        grey = _brightness(images)[..., None]
        return _between(grey, images, self._factors(draws, use))


def _between(ground: Images, images: Images, factors: Images) -> Images:
    images -= ground
    images *= factors
    images += ground
    return images
