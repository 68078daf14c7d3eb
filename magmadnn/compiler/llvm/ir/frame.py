"""The three arguments of a kernel as its author sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .builder import I8, I64, POINTER, Array, Code, Value

ALIGNMENT = 64  # of scratch memory


class Slots:
    """An argument block as seen in one of a kernel's functions.

    Args:
        code: writes the function.
        block: the argument block.
        names: of its slots.
    """

    def __init__(self, code: Code, block: Array, names: Sequence[str]) -> None:
        self._code, self.block, self._slots = code, block, tuple(names)

    def integer(self, slot: str) -> Value:
        """The integer in `slot`."""
        return self.block[self._slots.index(slot)]

    def array(self, slot: str, item: Any) -> Array:
        """The memory whose address is in `slot`, as elements of type `item`."""
        at = self.block.viewed(POINTER)[self._slots.index(slot)]
        return self._code.array(at, item)

    def array_after(self, slot: str, number: Value, item: Any) -> Array:
        """The memory whose address is `number` slots behind `slot`."""
        at = self.block.viewed(POINTER)[number + self._slots.index(slot)]
        return self._code.array(at, item)


class Frame(Slots):
    """The three arguments of a kernel as its author sees them."""

    def __init__(self, code: Code, slots: Sequence[str]) -> None:
        block, scratch, batch = code.function.args
        super().__init__(code, code.array(block, I64), slots)
        self.scratch: Array = code.array(scratch, I8)
        self.batch = Value(code, batch)
