"""Where in a matrix product an epilogue stands, and what writes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from magmadnn.compiler.llvm.ir.builder import Code, Value
from magmadnn.compiler.llvm.ir.frame import Slots


@dataclass(frozen=True)
class Place:
    """Where in C a vector of the epilogue stands.

    Attributes:
        row: number of the row.
        column: number of the first column.
        lanes: columns in the vector.
        mask: lanes that exist; None if all do.
    """

    row: Value
    column: Value
    lanes: int
    mask: Value | None


Finisher = Callable[[Value, Place], Value]


class WrittenEpilogue(Protocol):
    """An epilogue that writes its own vector code, beside those that are formulas.

    A frozen dataclass whose `repr` says everything about its code.
    """

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slots it adds to the argument block."""
        ...

    def write(self, code: Code, slots: Slots, value: Value, place: Place) -> Value:
        """The vector to store in place of `value`."""
        ...
