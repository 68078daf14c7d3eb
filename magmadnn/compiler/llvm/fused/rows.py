"""Kernels of stages over rows as vector code; `kernels/rows.py` says what they compute.

Memory should bound these kernels, so each number is computed once. What is the same in all of a row is
computed before the walk over it (`row_formulas.py`); what costs much and several stages need is kept
beside the row, in the first or second cache; while a row is worked on, the next one is fetched.
`row_walk.py` writes the walks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.operands import FULL, Operand, Result, row_constant
from magmadnn.compiler.kernels.rows import (
    BLOCKS,
    COLUMN_NUMBER,
    NARROW_ROW,
    SHORT_ROW,
    START,
    Reduction,
    Rows,
    Spike,
    parts,
    place_of,
)
from magmadnn.compiler.llvm.expressions.formulas import ITEMS, PRIMITIVES, Writer, cast
from magmadnn.compiler.llvm.expressions.operands import (
    Matrix,
    MatrixRow,
    PaddedStarts,
    RowStarts,
    lanes_for,
    starts_of,
)
from magmadnn.compiler.llvm.expressions.row_walk import Walk
from magmadnn.compiler.llvm.ir.builder import (
    I1,
    I32,
    I64,
    Array,
    Code,
    Value,
    Variable,
    item_type,
    vector,
)
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target
from magmadnn.compiler.llvm.vmath.exponential import exp_scaled, is_central

from .row_formulas import (
    Exponentials,
    RowFormulas,
    cost,
    exponentials_of,
    row_parts,
    with_choices,
    with_signs,
)

_BUFFER_BYTES = 8 * SHORT_ROW
_LONG = 20  # instructions; exp, tanh and the like
_AHEAD = 1024  # elements from what is worked on to what is fetched, at least


def rows_scratch_bytes(kernel: Rows) -> int:
    """Scratch memory for what is kept between stages."""
    return len(RowFormulas(kernel).kept) * _BUFFER_BYTES


def write_rows(kernel: Rows, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    lanes = lanes_for(target.vector_bytes, kernel.parts)
    if _is_long(kernel):
        lanes *= 2
    writer = _RowWriter(with_choices(with_signs(kernel)), code, frame, lanes, target.vector_bytes)
    with code.loop(frame.integer("row0"), frame.integer("row1")) as row:
        writer.write(row)
    if kernel.streamed:
        code.settle()


def _is_long(kernel: Rows) -> bool:
    """Whether each operation takes two registers: so two long chains of operations run beside each other."""
    stored = [result.formula for stage in kernel.stages for result in stage.store]
    reduces = any(stage.reduce for stage in kernel.stages)
    return not reduces and any(cost(formula) >= _LONG for formula in stored)


class _RowWriter:
    """Writes the stages for one row."""

    def __init__(self, kernel: Rows, code: Code, frame: Frame, lanes: int, align: int) -> None:
        self.kernel, self.code, self.lanes, self.align = kernel, code, lanes, align
        self.item, self._frame = ITEMS[kernel.dtype], frame
        self.formulas = RowFormulas(kernel)
        self.column0, self.column1 = frame.integer("column0"), frame.integer("column1")
        first = frame.integer("row0")
        self.starts = {
            o.name: starts_of(code, frame, o, first)
            for o in kernel.operands
            if o.axes and not o.like
        }
        self.matrices = {
            part: Matrix(code, frame, part, self._starts_of(part)) for part in kernel.parts
        }
        bytes_at = {f: k * _BUFFER_BYTES for k, f in enumerate(self.formulas.kept)}
        self.buffers = {f: frame.scratch.at(at) for f, at in bytes_at.items()}
        self.kept_items: dict[Formula, Any] = {}
        self.exponentials = None if kernel.narrow else exponentials_of(kernel, self.formulas)
        self.scale: Variable  # what makes exponentials that are kept those of the difference
        self.fetching = self._costliest() if kernel.short and len(kernel.stages) > 1 else -1
        if self.fetching >= 0:
            count = code.larger(self.column1, 1)
            self.ahead = (count + (_AHEAD - 1)) // count
        self.row: Value
        self.at: dict[Any, MatrixRow]
        self.numbers: dict[str, Value]
        self.next: list[MatrixRow]

    def _starts_of(self, part: Operand | Result) -> RowStarts | PaddedStarts | None:
        return (
            self.starts[part.like or part.name] if isinstance(part, Operand) and part.axes else None
        )

    def _costliest(self) -> int:
        """The stage that leaves most time to fetch the next row."""
        costs = [
            sum(cost(f, self.formulas.uses[n]) for f in self.formulas.of(self.kernel, n))
            for n in range(len(self.kernel.stages))
        ]
        return costs.index(max(costs))

    def write(self, row: Value) -> None:
        """All stages of a row."""
        self.row, self.numbers = row, {}
        self.at = {p: m.at_row(row) for p, m in self.matrices.items() if not row_constant(p)}
        writer = Writer(self.code, self._row_leaf, self.item)
        for number, stage in enumerate(self.kernel.stages):
            for reduction in stage.reduce:
                if reduction in self.formulas.spikes:
                    spike = self.formulas.spikes[reduction]
                    self.numbers[reduction.name] = self._spiked(number, reduction, spike, writer)
            if self.exponentials and self.exponentials.stage == number:
                self._write_exponentials(self.exponentials, writer)
            walked = [
                r
                for r in stage.reduce
                if r not in self.formulas.spikes and r.name not in self.numbers
            ]
            self.numbers.update(self._walked(number, walked, stage.store, writer))
            for name, formula in stage.then:
                self.numbers[name] = writer.write(formula)
            for result in stage.store_row:
                self.matrices[result].store_one(row, writer.write(result.formula))
        for starts in self.starts.values():
            starts.advance()

    # ------------------------------------------------------------------ exponentials

    def _write_exponentials(self, pair: Exponentials, writer: Writer) -> None:
        """The largest element of a row and the sum of exponentials beside it, by one walk where that can be.

        Exponentials of the elements themselves do not wait for the largest. They serve unless it is far from
        0; then, and where one is NaN, two walks do it again. Which way is taken depends on the row alone.
        """
        code, item = self.code, ITEMS[pair.total.dtype]
        largest, total, self.scale = (code.variable(code.lift(1.0, item)) for _ in range(3))
        done = code.variable(code.lift(0, I1))
        with code.when(self.column1 - self.column0 >= NARROW_ROW):
            first = self._element(self.column0).write(pair.largest.formula)
            with code.when(is_central(code, first)):
                both = [pair.largest, pair.scaled]
                found = self._walked(pair.stage + 1, both, (), writer.copy(), pair)
                largest.value = found[pair.largest.name]
                unit = exp_scaled(code, largest.value)
                total.value = found[pair.scaled.name] / unit
                self.scale.value = 1.0 / unit
                done.value = is_central(code, largest.value) & (total.value < math.inf)
        with code.when(~done.value):
            largest.value = self._reduced(pair.stage, pair.largest, writer)
            self.numbers[pair.largest.name] = largest.value
            total.value = self._reduced(pair.stage + 1, pair.total, writer)
            self.scale.value = 1.0
        self.numbers |= {pair.largest.name: largest.value, pair.total.name: total.value}

    # ------------------------------------------------------------------ walks

    def _walked(
        self,
        stage: int,
        reduce: Sequence[Reduction],
        store: Sequence[Result],
        writer: Writer,
        pair: Exponentials | None = None,
        rare: bool = False,
    ) -> dict[str, Value]:
        """One walk over the columns; the numbers that it gives. What is `rare` takes less code."""
        if not reduce and not store:
            return {}
        code = self.code
        formulas = [*(r.formula for r in reduce), *(r.formula for r in store)]
        kept = [formula for formula, first in self.formulas.kept.items() if first == stage]
        scaled = None if pair is None else pair.total.formula  # known from what is scaled
        written = [*formulas, *(formula for formula in kept if formula != scaled)]
        known = {f: writer.write(f) for formula in written for f in self._row_parts(formula)}
        places = {
            p: self._column_number(writer.write(place))
            for formula in written
            for p in parts(formula)
            if (place := place_of(p, self.kernel.operands)) is not None
        }
        if stage == self.fetching:
            full = [o for o in self.kernel.operands if o.spread == FULL]
            self.next = [self.matrices[o].at_row(self.row + self.ahead) for o in full]

        def step(column: Value, mask: Value | None, number: int) -> list[Value]:
            if stage == self.fetching and number * self.lanes * 4 % 64 == 0 and mask is None:
                for matrix in self.next:
                    matrix.prefetch(column)
            elements = self._elements(column, mask, known)
            for test, place in places.items():
                elements.know(test, self._is_here(place, column, number))
            for formula in self.formulas.uses[stage]:
                elements.know(formula, self._read(formula, column))
            if pair is not None:
                elements.know(pair.total.formula, elements.write(pair.scaled.formula))
            values = [elements.write(r.formula) for r in reduce]
            stored = [(result, elements.write(result.formula)) for result in store]
            for formula in kept:
                self._keep(formula, column, elements.write(formula))
            for result, value in stored:
                self._store(result, column, value, mask)
            return values

        done = {*self.formulas.uses[stage], *known}
        work = sum(cost(formula, done) for formula in formulas)
        walk = Walk(code, self.lanes, self.column0, self.column1, step, watch=pair is None)
        totals = walk.write(list(reduce), work, self.kernel.narrow or rare)
        return {r.name: total for r, total in zip(reduce, totals, strict=True)}

    def _reduced(self, stage: int, reduction: Reduction, writer: Writer) -> Value:
        """The same for one reduction, in code that seldom runs."""
        return self._walked(stage, [reduction], (), writer.copy(), rare=True)[reduction.name]

    def _row_parts(self, formula: Formula) -> list[Formula]:
        return list(row_parts(formula, self.kernel.operands))

    def _elements(self, column: Value, mask: Value | None, known: dict[Formula, Value]) -> Writer:
        """What writes formulas for a vector of columns."""

        def leaf(formula: Formula) -> Value:
            if formula == COLUMN_NUMBER:
                return self.code.lane_numbers(self.lanes, I64) + column
            operand = self.kernel.operands[formula[1]]
            return self.at[operand].load(column, self.lanes, mask)

        writer = Writer(self.code, leaf, vector(self.item, self.lanes))
        for formula, value in known.items():
            writer.know(formula, value)
        return writer

    def _store(self, result: Result, column: Value, value: Value, mask: Value | None) -> None:
        if item_type(value.type) == value.type:
            value = self.code.splat(value, self.lanes)
        if result.name in self.kernel.streamed and mask is None:
            self.at[result].stream(column, value, self.align)
        else:
            self.at[result].store(column, value, mask)

    def _row_leaf(self, leaf: Formula) -> Value:
        """A leaf that is the same in all of a row."""
        if leaf[0] == "value":
            return self.numbers[leaf[1]]
        if leaf == ("columns",):
            return self.code.convert(self.column1 - self.column0, self.item)
        if leaf == START:
            first, step = (self._frame.integer(slot) for slot in BLOCKS)
            return first + self.row * step
        operand = self.kernel.operands[leaf[1]]
        return self.matrices[operand].load(self.row, self.row, 1, None)

    # ------------------------------------------------------------------ what is kept

    def _kept(self, formula: Formula) -> Array:
        return self.buffers[formula].viewed(self.kept_items[formula])

    def _read(self, formula: Formula, column: Value) -> Value:
        """A vector of what is kept, from a column on."""
        kept = self._kept(formula).vector(column, self.lanes)
        if self.exponentials and formula == self.exponentials.total.formula:
            return kept * self.scale.value
        return kept

    def _keep(self, formula: Formula, column: Value, value: Value) -> None:
        """Whole vectors: there is room behind the last column."""
        self.kept_items[formula] = item_type(value.type)
        self._kept(formula).put(column, value)

    # ------------------------------------------------------------------ one column

    def _column_number(self, place: Value) -> Value:
        """A place as a number that compares fast; what is outside of the matrix is nowhere."""
        wide = cast(self.code, place, I64)
        if not self.kernel.short:
            return wide
        inside = (wide < self.column1) & (wide >= 0)
        return self.code.select(inside, self.code.narrowed(wide, I32), self.code.lift(-1, I32))

    def _is_here(self, place: Value, column: Value, number: int) -> Value:
        """Which of the columns from `column` on is the place; vectors of a loop share the difference."""
        code, item, offset = self.code, place.type, number * self.lanes
        start = column - offset
        first = start if item == I64 else code.narrowed(start, I32)
        difference: Value = place - first
        return code.compare("==", code.lane_numbers(self.lanes, item) + offset, difference)

    def _spiked(self, stage: int, reduction: Reduction, spike: Spike, writer: Writer) -> Value:
        """A sum whose terms are 0 but for one; the walk over all, should they turn out not to be."""
        code, item = self.code, ITEMS[reduction.dtype]
        place = cast(code, writer.write(spike.place), I64)
        total = code.variable(code.zero(item))

        def pick() -> None:
            with code.when((place >= self.column0) & (place < self.column1)):
                term = cast(code, self._element(place).write(spike.here), item)
                total.value = PRIMITIVES["add"](code, code.zero(item), term)

        if spike.elsewhere[0] == "constant" and spike.elsewhere[1] == 0:
            pick()
            return total.value
        other = cast(code, writer.write(spike.elsewhere), item)
        with code.choose(other.equals(code.zero(item))) as (yes, no):
            with yes:
                pick()
            with no:
                total.value = self._reduced(stage, reduction, writer)
        result: Value = total.value
        return result

    def _element(self, column: Value) -> Writer:
        """What writes formulas for a single column."""

        def leaf(formula: Formula) -> Value:
            if formula == COLUMN_NUMBER:
                return column
            if formula[0] == "argument":
                operand = self.kernel.operands[formula[1]]
                if not row_constant(operand):
                    return self.at[operand].load_one(column)
            return self._row_leaf(formula)

        return Writer(self.code, leaf, self.item)
