"""What one augmentation is, and the random numbers that it gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.ops import philox

Images = NDArray[np.float32]  # [n, height, width, channels]
Floats = NDArray[np.float64]

_WORDS = 4  # of 32 bits, that one call of the generator gives


@dataclass(frozen=True)
class Draws:
    """Random numbers for some rows: each row has its own, whichever others stand beside it.

    Attributes:
        seed: of the training.
        epoch: counted from 0.
        rows: numbers of the rows.
    """

    seed: int
    epoch: int
    rows: NDArray[np.int64]

    def uniform(self, use: str, count: int) -> Floats:
        """Numbers in [0, 1), [rows, count], with 32 random bits each.

        Element `block * 2**32 + row` of the stream of this use and epoch has the numbers 4 * block to
        4 * block + 3 of a row.

        Args:
            use: what for; another one gives other numbers.
            count: for each row.
        """
        stream = philox.stream_of(f"augment {use}", self.epoch)
        key = (self.seed & 0xFFFFFFFF, (self.seed >> 32) & 0xFFFFFFFF)
        rows = self.rows.astype(np.uint64)
        found = []
        for block in range(-(-count // _WORDS)):
            high = (np.full_like(rows, n) for n in (block, stream & 0xFFFFFFFF, stream >> 32))
            found.append(philox.philox_4x32(np.stack([rows, *high]), key).T)
        return np.concatenate(found, axis=1)[:, :count].astype(np.float64) * 2.0**-32


class Augmentation(ABC):
    """A change of images at random. Its subclasses are frozen dataclasses.

    Attributes:
        needs_raw: whether it has to see values as they were before they were standardised.
        moves: whether values come to stand elsewhere in the image, so that targets of places would have to
            follow; `fit` refuses those.
    """

    needs_raw: ClassVar[bool] = False
    moves: ClassVar[bool] = False

    @abstractmethod
    def apply(self, images: Images, draws: Draws, use: str) -> Images:
        """The images changed; those that are given may be written to.

        Args:
            images: [n, height, width, channels].
            draws: random numbers of these n rows.
            use: what tells the numbers of this transform from those of others in a list.
        """
        ...

    def numbers(self, draws: Draws, use: str, sides: tuple[int, int]) -> Floats:
        """What is drawn for each image, [n, count], from which a step on a device computes what `apply` does.

        Args:
            draws: random numbers of these n rows.
            use: as for `apply`.
            sides: height and width.

        Raises:
            ArgumentError: only transforms of this package tell their numbers.
        """
        raise ArgumentError(f"{type(self).__name__}: is applied on the host only")

    def check(self, shape: tuple[int, ...]) -> None:
        """Look whether images of this shape, [height, width, channels], can be changed so.

        Raises:
            ShapeError: if not.
        """
        if len(shape) != 3 or min(shape) < 1:
            raise ShapeError(
                f"{type(self).__name__}: expected images [height, width, channels], got {shape}"
            )


def in_range(owner: Any, name: str, least: float, most: float, *, whole: bool = False) -> None:
    """Look at a number of a transform.

    Raises:
        ArgumentError: if it is out of range or no such number.
    """
    value = getattr(owner, name)
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        what = "a whole number" if whole else "a number"
        raise ArgumentError(
            f"{type(owner).__name__}: {name} must be {what} from {least:g} to {most:g}, got {value!r}"
        )
