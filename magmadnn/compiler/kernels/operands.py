"""What kernels read and write: operands that are spread over rows or columns, and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .formula import Formula

FULL, ROW, COLUMN, SCALAR = "full", "row", "column", "scalar"
STRIDED, STRIDED_COLUMN = "strided", "strided column"
ROW_AXES = 3  # that rows of strided operands are numbered by
_ROW_SLOTS = ("size1", "size2", "step0", "step1", "step2")


@dataclass(frozen=True)
class Operand:
    """An array that formulas read: `("argument", i)` is operand i.

    Attributes:
        name: its slot; two operands, or an operand and a result, of one name are the same memory.
        dtype: of its elements.
        spread: `full`: [rows, columns], with a slot `<name>_row` for the elements from row to row;
            `row`: [columns], the same in every row; `column`: [rows], the same in every column;
            `scalar`: one element;
            `strided`: [rows, columns], where row `(i0 * size1 + i1) * size2 + i2` begins at element
            `i0 * step0 + i1 * step1 + i2 * step2`, in slots `<name>_size1` and so on: a value that repeats
            itself along an axis in the middle, or part of a larger one;
            `strided column`: [rows], likewise, the same in every column.
    """

    name: str
    dtype: str
    spread: str = FULL

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of its slots."""
        if self.spread in (STRIDED, STRIDED_COLUMN):
            return (self.name, *(f"{self.name}_{slot}" for slot in _ROW_SLOTS))
        return (self.name, f"{self.name}_row") if self.spread == FULL else (self.name,)


@dataclass(frozen=True)
class Result:
    """A formula whose values are stored: [rows, columns] with a slot `<name>_row`, or by `spread`."""

    name: str
    dtype: str
    formula: Formula
    spread: str = FULL

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of its slots."""
        return Operand(self.name, self.dtype, self.spread).slots


def all_slots(parts: list[Operand | Result]) -> tuple[str, ...]:
    """The slots of all parts, each once, in order."""
    return tuple(dict.fromkeys(slot for part in parts for slot in part.slots))


def row_constant(part: Any) -> bool:
    """Whether an operand is the same in all of a row."""
    return part.spread in (COLUMN, SCALAR, STRIDED_COLUMN)
