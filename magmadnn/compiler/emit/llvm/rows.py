"""Kernels of stages over rows as vector code; `kernels/rows.py` says what they compute.

A sum adds element c to partial sum c mod 32 (float64: mod 16), in the order of the columns, and then
halves the partial sums until one is left. So neither vector width nor threads change a bit of it.
"""

from __future__ import annotations

import math

from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.operands import row_constant
from magmadnn.compiler.kernels.rows import Reduction, Rows, Stage

from .builder import I64, Array, Code, Value, is_float, item_bytes, item_type, vector
from .formulas import ITEMS, PRIMITIVES, Writer
from .frame import Frame
from .operands import Matrix, lanes_for
from .target import Target

PARTIAL_BYTES = 128  # of the partial sums: 32 float32, 16 float64

_NEUTRAL = {"add": 0.0, "maximum": -math.inf, "minimum": math.inf}


def write_rows(kernel: Rows, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    walk = _Walk(kernel, code, frame, lanes_for(target.vector_bytes, kernel.parts))
    with code.loop(frame.integer("row0"), frame.integer("row1")) as row:
        walk.row(row)


class _Walk:
    """Writes the stages for one row."""

    def __init__(self, kernel: Rows, code: Code, frame: Frame, lanes: int) -> None:
        self.kernel, self.code, self.lanes = kernel, code, lanes
        self.item = ITEMS[kernel.dtype]
        self.column0, self.column1 = frame.integer("column0"), frame.integer("column1")
        self.matrices = {part: Matrix(code, frame, part) for part in kernel.parts}
        self.partial = {
            reduction: code.stack(ITEMS[reduction.dtype], _partials(reduction))
            for stage in kernel.stages
            for reduction in stage.reduce
        }

    def row(self, row: Value) -> None:
        """All stages of a row."""
        numbers: dict[str, Value] = {}
        for stage in self.kernel.stages:
            self._walk(stage, row, numbers)
            for reduction in stage.reduce:
                numbers[reduction.name] = self._total(reduction)
            writer = Writer(self.code, lambda leaf: self._row_leaf(leaf, row, numbers), self.item)
            for name, formula in stage.then:
                numbers[name] = writer.write(formula)
            for result in stage.store_row:
                self.matrices[result].store_one(row, writer.write(result.formula))

    def _walk(self, stage: Stage, row: Value, numbers: dict[str, Value]) -> None:
        """One walk over the columns, the last of them behind a mask."""
        if not stage.reduce and not stage.store:
            return
        for reduction in stage.reduce:
            self._start(reduction)
        code, lanes = self.code, self.lanes
        count = self.column1 - self.column0
        whole = self.column0 + (count - count % lanes)
        with code.loop(self.column0, whole, lanes) as column:
            self._step(stage, row, column, None, numbers)
        with code.when(whole < self.column1):
            mask = code.first(self.column1 - whole, lanes)
            self._step(stage, row, whole, mask, numbers)

    def _step(
        self,
        stage: Stage,
        row: Value,
        column: Value,
        mask: Value | None,
        numbers: dict[str, Value],
    ) -> None:
        """One vector of columns."""

        def leaf(formula: Formula) -> Value:
            if formula == ("column",):
                return self.code.lane_numbers(self.lanes, I64) + column
            if formula[0] == "argument":
                operand = self.kernel.operands[formula[1]]
                if not row_constant(operand):
                    return self.matrices[operand].load(row, column, self.lanes, mask)
            return self._row_leaf(formula, row, numbers)

        writer = Writer(self.code, leaf, vector(self.item, self.lanes))
        values = [(reduction, writer.write(reduction.formula)) for reduction in stage.reduce]
        stored = [(result, writer.write(result.formula)) for result in stage.store]
        for reduction, value in values:
            self._add(reduction, column, value, mask)
        for result, value in stored:
            spread = value
            if item_type(value.type) == value.type:
                spread = self.code.splat(value, self.lanes)
            self.matrices[result].store(row, column, spread, mask)

    def _row_leaf(self, leaf: Formula, row: Value, numbers: dict[str, Value]) -> Value:
        """A leaf that is the same in all of a row."""
        if leaf[0] == "value":
            return numbers[leaf[1]]
        if leaf == ("columns",):
            return self.code.convert(self.column1 - self.column0, self.item)
        return self.matrices[self.kernel.operands[leaf[1]]].load(row, row, 1, None)

    # ------------------------------------------------------------------ reductions

    def _start(self, reduction: Reduction) -> None:
        array, count = self.partial[reduction], _partials(reduction)
        kind = vector(ITEMS[reduction.dtype], count)
        array.put(0, self.code.lift(neutral(reduction), kind))

    def _add(self, reduction: Reduction, column: Value, value: Value, mask: Value | None) -> None:
        """Combine a vector with the partial results of its columns."""
        code, array, lanes = self.code, self.partial[reduction], self.lanes
        kind = vector(ITEMS[reduction.dtype], lanes)
        value = code.lift(value, kind)
        if mask is not None:
            value = code.select(mask, value, code.lift(neutral(reduction), kind))
        at = (column - self.column0) & (_partials(reduction) - 1)
        array.put(at, PRIMITIVES[reduction.kind](code, array.vector(at, lanes), value))

    def _total(self, reduction: Reduction) -> Value:
        """The partial results halved until one is left."""
        return halved(self.code, self.partial[reduction], _partials(reduction), reduction.kind)


def halved(code: Code, partial: Array, count: int, kind: str) -> Value:
    """`count` partial results, a power of two, combined in pairs i and i + count / 2."""
    values = partial.vector(0, count)
    while count > 1:
        count //= 2
        low = code.shuffle(values, values, range(count))
        high = code.shuffle(values, values, range(count, 2 * count))
        values = PRIMITIVES[kind](code, low, high)
    return code.lane(values, 0)


def _partials(reduction: Reduction) -> int:
    return PARTIAL_BYTES // item_bytes(ITEMS[reduction.dtype])


def neutral(reduction: Reduction) -> float | int:
    """What changes no result: 0 for sums, an infinity or the end of the integers' range."""
    item = ITEMS[reduction.dtype]
    if is_float(item) or reduction.kind == "add":
        return _NEUTRAL[reduction.kind] if is_float(item) else 0
    end = 1 << (int(item.width) - 1)
    return -end if reduction.kind == "maximum" else end - 1
