"""What kernels read and write: operands that are spread over rows or columns, and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .formula import Formula

FULL, ROW, COLUMN, SCALAR = "full", "row", "column", "scalar"
STRIDED, STRIDED_COLUMN = "strided", "strided column"
PADDED = "padded"
ROW_AXES = 6  # that rows of strided operands are numbered by, at most


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
            `strided column`: [rows], likewise, the same in every column;
            `padded`: see `PaddedOperand`.
        axes: how many numbers i0, i1, ... a row of a strided operand has.
        like: name of an operand whose rows begin at the same elements, and whose slots say so; itself unless
            given.
    """

    name: str
    dtype: str
    spread: str = FULL
    axes: int = 0
    like: str = ""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of its slots."""
        if self.spread in (STRIDED, STRIDED_COLUMN):
            return (self.name, *row_slots(self.like or self.name, self.axes))
        return (self.name, f"{self.name}_row") if self.spread == FULL else (self.name,)


@dataclass(frozen=True)
class PaddedOperand(Operand):
    """An array that formulas read as if one constant were around it: [rows, columns] of the larger matrix.

    Row `(i0 * size1 + i1) * size2 + i2`, column c is element
    `i0 * step0 + i1 * step1 + i2 * step2 + c - origin` of the array where each index i is at least `first`
    and less than `end` of its axis, and c at least `left` and less than `right`; the constant elsewhere. All
    of these are slots, with the operand's name in front.

    Attributes:
        fill: the constant, a formula.
        has_edges: whether there are constants within rows; otherwise there are no slots `left` and `right`.
    """

    fill: Formula = ()
    has_edges: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of its slots."""
        ends = (f"{self.name}_{what}{k}" for what in ("first", "end") for k in range(self.axes))
        sides = ("left", "right") if self.has_edges else ()
        last = (f"{self.name}_{what}" for what in ("origin", *sides))
        return (self.name, *row_slots(self.name, self.axes), *ends, *last)


def row_slots(name: str, axes: int) -> tuple[str, ...]:
    """The slots of sizes and steps of a strided operand."""
    sizes = (f"{name}_size{k}" for k in range(1, axes))
    return (*sizes, *(f"{name}_step{k}" for k in range(axes)))


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
