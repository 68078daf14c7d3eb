"""How fused kernels see the memory of their operands and results."""

from __future__ import annotations

from magmadnn.compiler.kernels.operands import COLUMN, FULL, SCALAR, Operand, Result

from .builder import I1, Array, Code, Value
from .formulas import ITEMS, cast, memory_item
from .frame import Slots


class Matrix:
    """The memory of an operand or a result inside a kernel."""

    def __init__(self, code: Code, slots: Slots, part: Operand | Result) -> None:
        self._code, self._part = code, part
        self._item = memory_item(part.dtype)
        self._base = slots.array(part.name, self._item)
        self._stride = slots.integer(f"{part.name}_row") if part.spread == FULL else None

    def _row(self, row: Value) -> Array:
        return self._base if self._stride is None else self._base.at(row * self._stride)

    def load(self, row: Value, column: Value, lanes: int, mask: Value | None) -> Value:
        """A vector of row `row`, from `column` on; a scalar where the operand does not change."""
        if self._part.spread == SCALAR:
            return self._seen(self._base[0])
        if self._part.spread == COLUMN:
            return self._seen(self._base[row])
        return self._seen(self._row(row).vector(column, lanes, mask))

    def store(self, row: Value, column: Value, value: Value, mask: Value | None) -> None:
        """Store a vector in row `row` from `column` on."""
        self._row(row).put(column, self._kept(value), mask)

    def store_one(self, index: Value, value: Value) -> None:
        """Store one element."""
        self._base[index] = self._kept(value)

    def _seen(self, value: Value) -> Value:
        """As formulas see it: bytes of truth become truth values."""
        return cast(self._code, value, I1) if self._part.dtype == "bool" else value

    def _kept(self, value: Value) -> Value:
        """As memory keeps it."""
        value = cast(self._code, value, ITEMS[self._part.dtype])
        return self._code.widened(value, self._item) if self._part.dtype == "bool" else value


def lanes_for(target_bytes: int, parts: list[Operand | Result]) -> int:
    """Lanes of a loop over `parts`: a register full of the widest floating-point type among them."""
    widest = 8 if any(part.dtype in ("float64", "int64") for part in parts) else 4
    return target_bytes // widest
