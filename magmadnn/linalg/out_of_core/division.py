"""How a matrix is cut into strips of columns, and how many of them fit the memory that is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from magmadnn.errors import ArgumentError, OutOfMemoryError

from .place import Place

# Products of wide strips are faster; of narrow ones more fit, so that each that is streamed serves more.
_WIDTHS: Final = (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
_WANTED: Final = 8  # strips that a panel should have
STREAMED: Final = 2  # buffers of strips that pass: one is computed with, one arrives


@dataclass(frozen=True)
class Division:
    """Strips of the columns of [n, n].

    Attributes:
        n: rows and columns of the matrix.
        width: columns of a strip; the last one may be narrower.
        held: strips of a panel.
        spare: buffers besides those of the panel and the two that pass.
    """

    n: int
    width: int
    held: int
    spare: int

    @property
    def strips(self) -> list[slice]:
        """The columns of each strip."""
        return [
            slice(first, min(first + self.width, self.n)) for first in range(0, self.n, self.width)
        ]

    @property
    def buffers(self) -> int:
        """How many strips lie on the device at once."""
        return self.held + self.spare + STREAMED


def divided(
    name: str, n: int, dtype: np.dtype[Any], place: Place, memory_limit: int | None, spare: int,
    more: int = 0,
) -> Division:  # fmt: skip
    """The widest strips of which a panel has enough; else those of which most fit.

    Args:
        name: of the function, for errors.
        n: rows and columns.
        dtype: of the elements.
        place: where it is computed.
        memory_limit: bytes; None for what the place says.
        spare: buffers besides.
        more: bytes that the function wants besides.

    Raises:
        ArgumentError: for a limit that is no positive integer.
        OutOfMemoryError: if not even the narrowest strips fit; says what is needed.
    """
    if memory_limit is not None and (
        isinstance(memory_limit, bool) or not isinstance(memory_limit, int) or memory_limit <= 0
    ):
        raise ArgumentError(
            f"{name}: memory_limit must be a positive number of bytes or None, got {memory_limit!r}"
        )
    limit = place.free_bytes() if memory_limit is None else memory_limit
    found = None
    for width in _WIDTHS:
        if width > max(n // 4, 1):
            continue
        strip = n * width * dtype.itemsize
        held = (limit - more - place.workspace(n, width, dtype)) // strip - spare - STREAMED
        held = min(held, -(-n // width))
        if held >= min(_WANTED, -(-n // width)):
            return Division(n, width, held, spare)
        if found is None and held >= 1:
            found = Division(n, width, held, spare)
    if found is None:
        least = (1 + spare + STREAMED) * n * dtype.itemsize + more + place.workspace(n, 1, dtype)
        raise OutOfMemoryError(
            f"{name}: {limit} bytes on {place.name} are too little for strips of a matrix of {n} rows in "
            f"{dtype}: at least {least} are needed"
        )
    return found
