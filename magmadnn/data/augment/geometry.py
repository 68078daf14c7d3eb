"""Augmentations that move pixels. All commute with scaling, so standardised images will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.augment.augmentation import Augmentation, Draws, Floats, Images, in_range
from magmadnn.errors import ArgumentError, ShapeError, UnknownNameError

FILLS = ("reflect", "edge")
_LARGEST = 4096  # pixels


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """The image moved by up to `padding` pixels each way; what comes in is the image mirrored at its edge.

    As a crop of the original size out of the padded image: He et al., CVPR 2016, section 4.2, who pad with
    zeros.

    Attributes:
        padding: the most that it is moved by; each of the (2 padding + 1)**2 places is as likely.
        fill: "reflect", or "edge" for the value of the nearest pixel.
    """

    padding: int = 4
    fill: Literal["reflect", "edge"] = "reflect"

    def __post_init__(self) -> None:
        in_range(self, "padding", 1, _LARGEST, whole=True)
        if self.fill not in FILLS:
            raise UnknownNameError.of("RandomCrop: fill", self.fill, FILLS)

    def check(self, shape: tuple[int, ...]) -> None:
        """See `Augmentation`."""
        super().check(shape)
        if self.fill == "reflect" and self.padding >= min(shape[:2]):
            raise ShapeError(
                f"RandomCrop: padding {self.padding} mirrors more than an image of "
                f'{shape[0]} x {shape[1]} has: give less, or fill="edge"'
            )

    def apply(self, images: Images, draws: Draws, use: str) -> Images:
        """See `Augmentation`."""
        height, width = images.shape[1:3]
        sides = ((0, 0), (self.padding,) * 2, (self.padding,) * 2, (0, 0))
        padded = np.pad(images, sides, mode=self.fill)
        corners = (draws.uniform(use, 2) * (2 * self.padding + 1)).astype(np.int64)
        for k, (top, left) in enumerate(corners.tolist()):
            images[k] = padded[k, top : top + height, left : left + width]
        return images


@dataclass(frozen=True)
class RandomFlip(Augmentation):
    """The image mirrored, one time in two.

    Attributes:
        horizontal: left and right change places.
        vertical: top and bottom do, drawn by itself.
    """

    horizontal: bool = True
    vertical: bool = False

    def __post_init__(self) -> None:
        if not (self.horizontal or self.vertical):
            raise ArgumentError("RandomFlip: neither horizontal nor vertical: leave it out")

    def apply(self, images: Images, draws: Draws, use: str) -> Images:
        """See `Augmentation`."""
        across, down = (draws.uniform(use, 2) < 0.5).T
        if self.horizontal:
            images[across] = images[across, :, ::-1]
        if self.vertical:
            images[down] = images[down, ::-1]
        return images


@dataclass(frozen=True)
class RandomRotation(Augmentation):
    """The image turned about its middle, by an angle that is uniform within +-degrees.

    Values between pixels are interpolated bilinearly; beyond the edge they are those of the nearest pixel.

    Attributes:
        degrees: above 0, at most 180.
    """

    degrees: float = 10.0

    def __post_init__(self) -> None:
        in_range(self, "degrees", 1e-3, 180)

    def apply(self, images: Images, draws: Draws, use: str) -> Images:
        """See `Augmentation`."""
        angles = np.deg2rad(self.degrees) * (2 * draws.uniform(use, 1) - 1)
        return _sampled(images, *_turned(angles[:, :, None], *images.shape[1:3]))


def _turned(angles: Floats, height: int, width: int) -> tuple[Floats, Floats]:
    """For each pixel of the result [n, height, width], the row and column it comes from."""
    y, x = np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2
    y = y[None, :, None]
    rows = np.cos(angles) * y - np.sin(angles) * x + (height - 1) / 2
    columns = np.sin(angles) * y + np.cos(angles) * x + (width - 1) / 2
    return np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)


def _sampled(images: Images, rows: Floats, columns: Floats) -> Images:
    """Values between pixels, bilinearly."""
    n, height, width, channels = images.shape
    top = np.minimum(rows.astype(np.int64), max(height - 2, 0))
    left = np.minimum(columns.astype(np.int64), max(width - 2, 0))
    below, right = min(1, height - 1) * width, min(1, width - 1)
    flat = images.reshape(n * height * width, channels)
    first = np.arange(n)[:, None, None] * (height * width) + top * width + left
    down = (rows - top).astype(np.float32)[..., None]
    across = (columns - left).astype(np.float32)[..., None]
    upper = flat[first] * (1 - across) + flat[first + right] * across
    lower = flat[first + below] * (1 - across) + flat[first + below + right] * across
    found: Images = upper * (1 - down) + lower * down
    return found


@dataclass(frozen=True)
class Cutout(Augmentation):
    """A square of the image set to the image's mean; its centre is any pixel, so it may hang over the edge.

    DeVries, Taylor, "Improved regularization of convolutional neural networks with Cutout", 2017, who set it
    to the mean of all images.

    Attributes:
        size: pixels of a side.
    """

    size: int = 8

    def __post_init__(self) -> None:
        in_range(self, "size", 1, _LARGEST, whole=True)

    def apply(self, images: Images, draws: Draws, use: str) -> Images:
        """See `Augmentation`."""
        means = images.mean(axis=(1, 2))
        sides: NDArray[np.int64] = np.array(images.shape[1:3])
        starts = (draws.uniform(use, 2) * sides).astype(np.int64) - self.size // 2
        for k, (top, left) in enumerate(starts.tolist()):
            rows = slice(max(top, 0), max(top + self.size, 0))
            images[k, rows, max(left, 0) : max(left + self.size, 0)] = means[k]
        return images
