"""What kernels read and write: operands that are spread over rows or columns, and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .formula import Formula

FULL, ROW, COLUMN, SCALAR = "full", "row", "column", "scalar"


@dataclass(frozen=True)
class Operand:
    """An array that formulas read: `("argument", i)` is operand i.

    Attributes:
        name: its slot; two operands, or an operand and a result, of one name are the same memory.
        dtype: of its elements.
        spread: `full`: [rows, columns], with a slot `<name>_row` for the elements from row to row;
            `row`: [columns], the same in every row; `column`: [rows], the same in every column;
            `scalar`: one element.
    """

    name: str
    dtype: str
    spread: str = FULL

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of its slots."""
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
    return part.spread in (COLUMN, SCALAR)
