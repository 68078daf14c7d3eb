"""The three arguments of a kernel as its author sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .builder import I8, I64, POINTER, Array, Code, Value

ALIGNMENT = 64  # of scratch memory


class Frame:
    """The three arguments of a kernel as its author sees them."""

    def __init__(self, code: Code, slots: Sequence[str]) -> None:
        block, scratch, batch = code.function.args
        self._code = code
        self._slots = tuple(slots)
        self._block = code.array(block, I64)
        self.scratch: Array = code.array(scratch, I8)
        self.batch = Value(code, batch)

    def integer(self, slot: str) -> Value:
        """The integer in `slot`."""
        return self._block[self._slots.index(slot)]

    def array(self, slot: str, item: Any) -> Array:
        """The memory whose address is in `slot`, as elements of type `item`."""
        at = self._block.viewed(POINTER)[self._slots.index(slot)]
        return self._code.array(at, item)

    def array_after(self, slot: str, number: Value, item: Any) -> Array:
        """The memory whose address is `number` slots behind `slot`."""
        at = self._block.viewed(POINTER)[number + self._slots.index(slot)]
        return self._code.array(at, item)
