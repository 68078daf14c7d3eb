"""One walk over the columns of a row, and the order in which it sums.

A sum adds element c to partial sum c mod 32 (float64: mod 16), in the order of the columns, and then
halves the partial sums until one is left. So neither vector width nor threads change a bit of it.

As many vectors as hold all partial results are written out one after the other. Where formulas are short,
partial results stay in registers. Where they are long, registers are needed otherwise: vectors are combined
with partial results in memory, which is in the first cache. An extreme, of any order, stays in one register.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from magmadnn.compiler.kernels.rows import CHOOSING, Reduction
from magmadnn.compiler.llvm.ir.builder import (
    F32,
    I32,
    I64,
    Code,
    Value,
    Variable,
    is_float,
    item_bytes,
    vector,
)

from .formulas import ITEMS, PRIMITIVES

PARTIAL_BYTES = 128  # of the partial sums: 32 float32, 16 float64
_NARROWEST = 4  # lanes of a vector that is halved
_STORES = 4  # vectors of a loop that only stores
_IN_REGISTERS = 48  # instructions of a loop that leave registers for partial results, at most
_WRITTEN_OUT = 200  # instructions of a loop for several vectors, at most

_NEUTRAL = {
    "add": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf, "deviations": 0.0
}  # fmt: skip

# Works on the vector at a column, behind a mask, of a number within the loop; gives what is reduced.
Step = Callable[[Value, Value | None, int], list[Value]]


class Walk:
    """Writes a walk over the columns `column0` to `column1`."""

    def __init__(
        self,
        code: Code,
        lanes: int,
        column0: Value,
        column1: Value,
        step: Step,
        watch: bool = True,
    ) -> None:
        """`watch`: an extreme of elements of which one is NaN is NaN; else NaN counts for nothing."""
        self.code, self.lanes, self.step, self.watch = code, lanes, step, watch
        self.column0, self.column1 = column0, column1

    def write(self, reduce: Sequence[Reduction], work: int, narrow: bool) -> list[Value]:
        """Write it; the totals of what is reduced.

        Args:
            reduce: how the values of a step are combined.
            work: instructions of a step, roughly.
            narrow: whether code for several vectors one after the other is not worth it.
        """
        code, lanes = self.code, self.lanes
        parts = [_Parts(code, reduction, lanes, self.watch) for reduction in reduce]
        most = max((part.count for part in parts), default=_STORES)
        fits = most * work <= (_WRITTEN_OUT if parts else _IN_REGISTERS)
        together = most if fits and not narrow else 1
        in_registers = together * work <= _IN_REGISTERS
        count = self.column1 - self.column0
        whole = self.column0 + (count - count % lanes)
        wide = self.column0
        if together > 1:
            wide = wide + (count - count % (together * lanes))
        if together > 1 and in_registers:
            with code.loop(self.column0, wide, together * lanes) as column:
                steps = [self.step(column + n * lanes, None, n) for n in range(together)]
                for part, values in zip(parts, zip(*steps, strict=True), strict=True):
                    part.add(values)
        for part in parts:
            part.spill()
        if together > 1 and not in_registers:
            with code.loop(self.column0, wide, together * lanes) as column:
                for n in range(together):
                    at = code.integer(n * lanes)
                    _add_to_memory(parts, at, self.step(column + n * lanes, None, n), None)
        with code.loop(wide, whole, lanes) as column:
            _add_to_memory(parts, column - self.column0, self.step(column, None, 0), None)
        with code.when(whole < self.column1):
            mask = code.rest(self.column1 - whole, lanes)
            _add_to_memory(parts, whole - self.column0, self.step(whole, mask, 0), mask)
        return [part.total() for part in parts]


class _Parts:
    """The partial results of a reduction: in registers, later in memory."""

    def __init__(self, code: Code, reduction: Reduction, lanes: int, watch: bool) -> None:
        self.code, self.reduction, self.lanes = code, reduction, lanes
        self.item = ITEMS[reduction.dtype]
        self.elements = PARTIAL_BYTES // item_bytes(self.item)
        self.count = max(1, self.elements // lanes)
        self.kind = vector(self.item, lanes)
        self.memory = code.stack(self.item, max(self.elements, lanes))
        start = code.lift(neutral(reduction), self.kind)
        self.registers: list[Variable] = [code.variable(start) for _ in range(self.count)]
        # Extremes combine faster if NaN is looked for beside them.
        self.extreme = reduction.kind in CHOOSING
        self.none = code.zero(vector(I32 if self.item == F32 else I64, lanes))
        watched = self.extreme and is_float(self.item) and watch
        self.nans = code.variable(self.none) if watched else None

    def add(self, values: Sequence[Value]) -> None:
        """Combine vectors with the registers of their numbers."""
        lifted = [self.code.lift(value, self.kind) for value in values]
        # One comparison tells for two vectors.
        for a, b in zip(lifted[::2], (*lifted[1::2], lifted[-1]), strict=False):
            self._look_for_nan(a, b)
        for number, value in enumerate(lifted):
            register = self.registers[number % self.count]
            register.value = self._joined(register.value, value)

    def _look_for_nan(self, a: Value, b: Value) -> None:
        if self.nans is not None:
            found = self.code.select(self.code.unordered(a, b), ~self.none, self.none)
            self.nans.value = self.nans.value | found

    def _joined(self, old: Value, value: Value) -> Value:
        """The two combined; NaN is looked for beside that."""
        if not self.extreme:
            return PRIMITIVES[self.reduction.kind](self.code, value, old)
        better = value > old if self.reduction.kind == "maximum" else value < old
        return self.code.select(better, value, old)

    def spill(self) -> None:
        """Registers to memory."""
        for number, register in enumerate(self.registers):
            self.memory.put(number * self.lanes, register.value)

    def add_to_memory(self, offset: Value, value: Value, mask: Value | None) -> None:
        """Combine a vector with the partial results of its columns."""
        value = self.code.lift(value, self.kind)
        if mask is not None:
            none = self.code.lift(neutral(self.reduction), self.kind)
            value = self.code.select(mask, value, none)
        self._look_for_nan(value, value)
        if self.extreme:  # of any order
            self.registers[0].value = self._joined(self.registers[0].value, value)
            return
        at = offset & (self.elements - 1)
        self.memory.put(at, self._joined(self.memory.vector(at, self.lanes), value))

    def total(self) -> Value:
        """The partial results halved until one is left."""
        if self.extreme:
            self.spill()
        total = self._halved()
        if self.nans is None:
            return total
        return self.code.select(self.code.any(self.nans.value.differs(0)), math.nan, total)

    def _halved(self) -> Value:
        """Partial results combined in pairs i and i + count / 2, until one is left."""
        code, count = self.code, self.elements
        values = self.memory.vector(0, count)
        while count > 1:
            count //= 2
            width = max(count, min(_NARROWEST, 2 * count))  # a register, not numbers one by one
            low = code.shuffle(values, values, [k % (2 * count) for k in range(width)])
            high = code.shuffle(values, values, [(count + k) % (2 * count) for k in range(width)])
            values = self._joined(high, low)
        return code.lane(values, 0)


def _add_to_memory(
    parts: Sequence[_Parts], at: Value, values: Sequence[Value], mask: Value | None
) -> None:
    """Combine the values of a step with the partial results from place `at` on."""
    for part, value in zip(parts, values, strict=True):
        part.add_to_memory(at, value, mask)


def neutral(reduction: Reduction) -> float | int:
    """What changes no result: 0, 1, an infinity or the end of the integers' range."""
    item = ITEMS[reduction.dtype]
    if is_float(item) or reduction.kind in ("add", "multiply"):
        same = _NEUTRAL[reduction.kind]
        return same if is_float(item) else int(same)
    end = 1 << (int(item.width) - 1)
    return -end if reduction.kind == "maximum" else end - 1
