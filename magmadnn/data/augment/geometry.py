"""Augmentations that move pixels. All commute with scaling, so standardised images will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

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

    moves: ClassVar[bool] = True
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
        corners = self.numbers(draws, use, (height, width)).astype(np.int64) + self.padding
        for k, (top, left) in enumerate(corners.tolist()):
            images[k] = padded[k, top : top + height, left : left + width]
        return images

    def numbers(self, draws: Draws, use: str, sides: tuple[int, int]) -> Floats:
        """Rows and columns that the image is moved by, from -padding to padding."""
        found: Floats = np.floor(draws.uniform(use, 2) * (2 * self.padding + 1)) - self.padding
        return found


@dataclass(frozen=True)
class RandomFlip(Augmentation):
    """The image mirrored, one time in two.

    Attributes:
        horizontal: left and right change places.
        vertical: top and bottom do, drawn by itself.
    """

    moves: ClassVar[bool] = True
    horizontal: bool = True
    vertical: bool = False

    def __post_init__(self) -> None:
        if not (self.horizontal or self.vertical):
            raise ArgumentError("RandomFlip: neither horizontal nor vertical: leave it out")

    def apply(self, images: Images, draws: Draws, use: str) -> Images:
        """See `Augmentation`."""
        across, down = self.numbers(draws, use, (0, 0)).T > 0
        images[across] = images[across, :, ::-1]
        images[down] = images[down, ::-1]
        return images

    def numbers(self, draws: Draws, use: str, sides: tuple[int, int]) -> Floats:
        """1 where left and right change places, and where top and bottom do; else 0."""
        wanted = np.array([self.horizontal, self.vertical], float)
        found: Floats = (draws.uniform(use, 2) < 0.5) * wanted
        return found


@dataclass(frozen=True)
class RandomRotation(Augmentation):
    """The image turned about its middle, by an angle that is uniform within +-degrees.

    Values between pixels are interpolated bilinearly; beyond the edge they are those of the nearest pixel.

    Attributes:
        degrees: above 0, at most 180.
    """

    moves: ClassVar[bool] = True
    degrees: float = 10.0

    def __post_init__(self) -> None:
        in_range(self, "degrees", 1e-3, 180)

    def apply(self, images: Images, draws: Draws, use: str) -> Images:
        """See `Augmentation`."""
        height, width = images.shape[1:3]
        turns = self.numbers(draws, use, (height, width))
        return _sampled(images, *_turned(turns[:, :, None, None], height, width))

    def numbers(self, draws: Draws, use: str, sides: tuple[int, int]) -> Floats:
        """Cosine and sine of the angle."""
        angles = np.deg2rad(self.degrees) * (2 * draws.uniform(use, 1) - 1)
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _turned(turns: Floats, height: int, width: int) -> tuple[Floats, Floats]:
    """For each pixel of the result [n, height, width], the row and column it comes from."""
    cosine, sine = turns[:, 0], turns[:, 1]
    y, x = np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2
    y = y[None, :, None]
    rows = cosine * y - sine * x + (height - 1) / 2
    columns = sine * y + cosine * x + (width - 1) / 2
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
        height, width = images.shape[1:3]
        starts = self.numbers(draws, use, (height, width)).astype(np.int64)
        for k, (top, left) in enumerate(starts.tolist()):
            rows = slice(max(top, 0), max(top + self.size, 0))
            images[k, rows, max(left, 0) : max(left + self.size, 0)] = means[k]
        return images

    def numbers(self, draws: Draws, use: str, sides: tuple[int, int]) -> Floats:
        """First row and column of the square, which may be outside."""
        found: Floats = np.floor(draws.uniform(use, 2) * np.array(sides)) - self.size // 2
        return found
