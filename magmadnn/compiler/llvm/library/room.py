"""Memory that a call of a library works in, beside its operands and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LINE = 64  # bytes, to which each piece is aligned


@dataclass(frozen=True)
class Room:
    """Words come first in it, then numbers.

    Attributes:
        words: how many integers of 32 bits.
        numbers: how many elements of the matrices' dtype.
    """

    words: int = 0
    numbers: int = 0

    def nbytes(self, item: int) -> int:
        """Bytes of it, with elements of so many bytes."""
        return -(-4 * self.words // LINE) * LINE + item * self.numbers


Sizes = Mapping[str, int]  # `rows, columns, height, width` of matrices, see `kernels/library.py`
