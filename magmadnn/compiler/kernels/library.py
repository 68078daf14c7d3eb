"""A step that is a call of a library's function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .moves import FAULTS

FUNCTION = "function"  # the slot of the function's address
WORKSPACE = "workspace"  # the slot of memory that the call works in
SMALL = "small"  # the slot that says whether small matrices are taken side by side, on the CPU
Setting = tuple[str, Any]  # the name of an attribute, and its value


@dataclass(frozen=True)
class Library:
    """result[i] = function(x0[i], x1[i], ...), for the matrices `row0` to `row1` of a stack.

    Slots: `row0, row1`, the part of the stack; `rows, columns`, sizes of a matrix of the result; `x0`, `x1`
    and so on: operands, packed, with `x0_step`, ...: elements from one matrix to the next, 0 for one that
    serves all; `height, width`, sizes of a matrix of the first operand; `result`, packed; `function` and
    `workspace`, addresses, for targets that need them; `small`, not 0 where the CPU takes many small matrices
    at a time in place of calls; `faults`, a word that is set where the function finds
    something wrong.

    Attributes:
        function: name in the tables of targets (`graph/computed_by.py`).
        dtype: of operands and result.
        operands: how many there are.
        settings: what the function is told besides.
        known: numbers that the kernel is for alone, in the order of its function.
    """

    function: str
    dtype: str
    operands: int
    settings: tuple[bool, ...] = ()
    known: tuple[int, ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots."""
        operands = (name for k in range(self.operands) for name in (f"x{k}", f"x{k}_step"))
        sizes = ("row0", "row1", "rows", "columns", "height", "width")
        return (*sizes, *operands, "result", FUNCTION, WORKSPACE, SMALL, FAULTS)


@dataclass(frozen=True)
class WholeLibrary:
    """result = function(x0, x1, ...) of whole arrays.

    Slots: `x0`, `x1` and so on: operands, packed; `result`, packed.

    Attributes:
        function: name in the tables of targets (`graph/computed_by.py`).
        dtype: of operands and result, but for those that are bytes.
        operands: how many there are.
        settings: what the function is told besides.
    """

    function: str
    dtype: str
    operands: int
    settings: tuple[Setting, ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots."""
        return (*(f"x{k}" for k in range(self.operands)), "result")
