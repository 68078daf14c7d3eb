"""Kernels that reduce over rows as vector code; `kernels/columns.py` says what they compute.

Every column is reduced by itself: rows are combined in order within blocks of 64, and the blocks' results
in order after that. Columns may be cut into tiles anywhere; neither that nor vector width nor threads
change a bit.

Deviations from the mean are added up within each block, from that block's mean, while it is in a cache; two
blocks' are then those of both, and of their means from each other (Chan, Golub, LeVeque, "Updating formulae
and a pairwise algorithm for computing sample variances", 1979, eq. (2.1)). So the mean may be large.

Rows are read as they lie in memory, a few at a time, and combined with a piece of numbers that stays in the
first-level cache. Down a strip of columns, whose numbers fit into registers, each row of a large matrix would
be another page. What is cut into blocks of rows is large and comes from memory: one row at a time, so that
addresses follow each other, unless columns are so few that a row waits for the numbers that the row before
has stored; or, where a block is read twice, with the rows of the next one fetched meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from magmadnn.compiler.kernels.columns import DEVIATIONS, Columns
from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.operands import (
    FULL,
    PADDED,
    STRIDED,
    STRIDED_COLUMN,
    Operand,
    Result,
)
from magmadnn.compiler.kernels.rows import Reduction
from magmadnn.compiler.llvm.expressions.formulas import ITEMS, PRIMITIVES, Writer
from magmadnn.compiler.llvm.expressions.operands import (
    Matrix,
    MatrixRow,
    PaddedStarts,
    RowStarts,
    lanes_for,
    starts_of,
)
from magmadnn.compiler.llvm.expressions.row_walk import neutral
from magmadnn.compiler.llvm.ir.builder import Array, Code, Value, vector
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

_BLOCK = 64  # rows whose results are combined before they join the total
_ROWS = 8  # that are combined at a time
_FEW = 2  # vectors of columns, whose numbers would wait for their own stores if rows came one at a time
_PIECE = 2048  # columns
_READ_AGAIN = 256  # columns of a piece, where a block is read twice
_AHEAD = 4096  # elements from what is worked on to what is fetched, about
_WIDEST = 8  # bytes of an element
_KINDS = 3  # of numbers
_BY_STARTS = (STRIDED, STRIDED_COLUMN, PADDED)  # operands whose rows begin where a walk says

Starts = Mapping[Operand, RowStarts | PaddedStarts]
# loads a vector of an operand's row from a column on
Load = Callable[[Value, Value | None], Value]


def columns_scratch_bytes(kernel: Columns) -> int:
    """Scratch memory that it needs: a piece of totals, a block's numbers and its means of each reduction."""
    return _KINDS * len(kernel.reduce) * _PIECE * _WIDEST


def write_columns(kernel: Columns, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    lanes = lanes_for(target.vector_bytes, kernel.parts)
    matrices = {part: Matrix(code, frame, part) for part in kernel.parts}
    row1 = frame.integer("row1")
    if not kernel.in_pieces:
        _Writer(kernel, code, frame, lanes, matrices, row1, code.integer(0)).write()
        return
    steps = {part: frame.integer(f"{part.name}_outer") for part in kernel.apart}
    with code.loop(frame.integer("outer0"), frame.integer("outer1")) as outer:
        moved = {part: matrices[part].moved(outer * step) for part, step in steps.items()}
        end = code.smaller(row1, frame.integer("rows") - outer * row1) if kernel.blocked else row1
        _Writer(kernel, code, frame, lanes, matrices | moved, end, outer * row1).write()


class _Writer:
    """Writes the reduction of one matrix, or of one block of its rows."""

    def __init__(
        self,
        kernel: Columns,
        code: Code,
        frame: Frame,
        lanes: int,
        matrices: Mapping[Operand | Result, Matrix],
        row1: Value,
        before: Value,
    ) -> None:
        """`before`: rows of strided operands before the first."""
        self.kernel, self.code, self.lanes, self.matrices = kernel, code, lanes, matrices
        self.frame, self.before = frame, before
        self.row0, self.row1 = frame.integer("row0"), row1
        self.column0, self.column1 = frame.integer("column0"), frame.integer("column1")
        self.item = ITEMS[kernel.dtype]
        self.totals, self.parts, self.means = (
            {
                reduction: frame.scratch.at((_KINDS * number + which) * _PIECE * _WIDEST).viewed(
                    ITEMS[reduction.dtype]
                )
                for number, reduction in enumerate(kernel.reduce)
            }
            for which in range(_KINDS)
        )
        self.streams = [matrices[o] for o in kernel.operands if o.spread == FULL]
        across = code.larger(self.column1 - self.column0, 1)
        self.ahead = code.larger(code.integer(_AHEAD) // across, _ROWS)
        self.plain = [r for r in kernel.reduce if r.kind != DEVIATIONS]
        if kernel.joins:
            self.all_rows, self.each = frame.integer("rows"), frame.integer("each")

    def write(self) -> None:
        """Pieces of columns one after the other."""
        code = self.code
        piece = _READ_AGAIN if self.kernel.sums else _PIECE
        with code.loop(self.column0, self.column1, piece) as column:
            count = code.smaller(self.column1 - column, piece)
            self._start(self.totals, count)
            if self.kernel.joins:
                with code.loop(self.row0, self.row1) as row:
                    self._take_block(row, column, count)
            else:
                with code.loop(self.row0, self.row1, _BLOCK) as first:
                    self._reduce_block(first, column, count)
            with code.loop(0, count, self.lanes) as j:
                self._store(j, column + j, code.first(count - j, self.lanes))

    def _reduce_block(self, first: Value, column: Value, count: Value) -> None:
        """Rows from `first` on as a block, which joins the totals."""
        code = self.code
        end = code.smaller(first + _BLOCK, self.row1)
        self._start(self.parts, count)
        self._walk(self.plain, first, end, column, count)
        if self.kernel.sums:
            rows = self._number(end - first)
            with code.loop(0, count, self.lanes) as j:
                for reduction, total in self.kernel.sums.items():
                    mean = self.parts[total].vector(j, self.lanes) / rows(reduction)
                    self.means[reduction].put(j, mean)
            self._walk(list(self.kernel.sums), first, end, column, count)
        with code.loop(0, count, self.lanes) as j:
            parts = {r: memory.vector(j, self.lanes) for r, memory in self.parts.items()}
            self._join(j, parts, first - self.row0, end - first)

    def _take_block(self, row: Value, column: Value, count: Value) -> None:
        """What another kernel made of a block joins the totals."""
        before = row * self.each
        rows = self.code.smaller(self.each, self.all_rows - before)

        def join(j: Value, mask: Value | None) -> None:
            writer = self._writer(row, column + j, mask, {})
            parts = {r: writer.write(r.formula) for r in self.kernel.reduce}
            self._join(j, parts, before, rows)

        self._each_vector(count, join)

    def _join(self, j: Value, parts: Mapping[Reduction, Value], before: Value, rows: Value) -> None:
        """Results of `rows` rows join the totals of those `before`."""
        code = self.code
        totals = {r: memory.vector(j, self.lanes) for r, memory in self.totals.items()}
        for reduction, number in parts.items():
            joined = totals[reduction]
            if reduction in self.kernel.sums:
                total, (one, other) = self.kernel.sums[reduction], map(self._number, (before, rows))
                apart = parts[total] / other(reduction) - totals[total] / one(reduction)
                weight = one(reduction) * other(reduction) / self._number(before + rows)(reduction)
                both = joined + number + apart * apart * weight
                joined = code.select(code.splat(before > 0, self.lanes), both, number)
            else:
                joined = self._joined(reduction, joined, number)
            self.totals[reduction].put(j, joined)

    def _number(self, count: Value) -> Callable[[Reduction], Value]:
        """A count of rows as a vector of numbers like those of a reduction."""
        return lambda reduction: self.code.splat(
            self.code.convert(count, ITEMS[reduction.dtype]), self.lanes
        )

    def _walk(
        self, reduce: Sequence[Reduction], first: Value, end: Value, column: Value, count: Value
    ) -> None:
        """Join the rows of a block, some at a time and then one by one, to its numbers."""
        code = self.code
        whole = end - (end - first) % _ROWS
        if self.kernel.blocked and not self.kernel.sums:
            whole = code.select(count <= _FEW * self.lanes, whole, first)
        starts = self._starts(first)
        with code.loop(first, whole, _ROWS) as row:
            self._combine(reduce, row, _ROWS, column, count, starts)
        with code.loop(whole, end) as row:
            self._combine(reduce, row, 1, column, count, starts)

    def _starts(self, first: Value) -> Starts:
        """Where rows begin from `first` on, of the operands of which each has to be found."""
        made: dict[str, RowStarts | PaddedStarts] = {}
        found: dict[Operand, RowStarts | PaddedStarts] = {}
        for operand in self.kernel.operands:
            if operand.spread in _BY_STARTS:
                name = operand.like or operand.name
                if name not in made:
                    row = first + self.before
                    made[name] = starts_of(self.code, self.frame, operand, row)
                found[operand] = made[name]
        return found

    def _found(self, row: Value, starts: Starts) -> dict[Operand, Load]:
        """How vectors of a row of these operands are loaded; then the next row begins."""
        loads: dict[Operand, Load] = {}
        for operand, start in starts.items():
            matrix = self.matrices[operand].walked(start)
            if operand.spread == STRIDED_COLUMN:
                loads[operand] = partial(_given, matrix.load(row, row, 1, None))
            else:
                loads[operand] = partial(self._loaded, matrix.at_row(row))
        for start in dict.fromkeys(starts.values()):
            start.advance()
        return loads

    def _start(self, numbers: Mapping[Reduction, Array], count: Value) -> None:
        """Numbers that change no result."""
        with self.code.loop(0, count, self.lanes) as j:
            for reduction, memory in numbers.items():
                kind = vector(ITEMS[reduction.dtype], self.lanes)
                memory.put(j, self.code.lift(neutral(reduction), kind))

    def _loaded(self, found: MatrixRow, column: Value, mask: Value | None) -> Value:
        return found.load(column, self.lanes, mask)

    def _combine(
        self,
        reduce: Sequence[Reduction],
        row: Value,
        rows: int,
        column: Value,
        count: Value,
        starts: Starts,
    ) -> None:
        """Join some rows of a piece, in order, to its numbers of this block."""
        found = [self._found(row + x, starts) for x in range(rows)]

        def join(j: Value, mask: Value | None) -> None:
            numbers = {r: self.parts[r].vector(j, self.lanes) for r in reduce}
            for x in range(rows):
                if self.kernel.blocked and rows > 1 and mask is None:
                    self._fetch(row + x, column + j)
                writer = self._writer(row + x, column + j, mask, {}, found[x])
                for reduction, number in numbers.items():
                    value = writer.write(reduction.formula)
                    if reduction in self.kernel.sums:
                        value = self.code.lift(value, number.type)
                        apart = value - self.means[reduction].vector(j, self.lanes)
                        numbers[reduction] = number + apart * apart
                    else:
                        numbers[reduction] = self._joined(reduction, number, value)
            for reduction, number in numbers.items():
                self.parts[reduction].put(j, number)

        self._each_vector(count, join)

    def _fetch(self, row: Value, column: Value) -> None:
        """What lies some rows further on is read soon."""
        for matrix in self.streams:
            matrix.at_row(row + self.ahead).prefetch(column, first=False)

    def _each_vector(self, count: Value, join: Callable[[Value, Value | None], None]) -> None:
        """Something for each vector of a piece's columns; the last may need a mask."""
        code, lanes = self.code, self.lanes
        whole = count - count % lanes
        with code.loop(0, whole, lanes) as j:
            join(j, None)
        with code.when(whole < count):
            join(whole, code.first(count - whole, lanes))

    def _store(self, j: Value, column: Value, mask: Value) -> None:
        """The results of a vector of columns."""
        numbers = {r.name: totals.vector(j, self.lanes) for r, totals in self.totals.items()}
        writer = self._writer(self.row0, column, mask, numbers)
        kind = vector(self.item, self.lanes)
        stored = [self.code.lift(writer.write(r.formula), kind) for r in self.kernel.store]
        for result, value in zip(self.kernel.store, stored, strict=True):  # some lie over operands
            self.matrices[result].store(self.row0, column, value, mask)

    def _writer(
        self,
        row: Value,
        column: Value,
        mask: Value | None,
        numbers: dict[str, Value],
        found: Mapping[Operand, Load] | None = None,
    ) -> Writer:
        """`found`: operands of this row whose place was found."""

        def leaf(formula: Formula) -> Value:
            if formula == ("rows",):
                joins = self.kernel.joins
                rows = self.all_rows if joins else self.row1 - self.row0
                return self.code.convert(rows, self.item)
            if formula[0] == "value":
                return numbers[formula[1]]
            operand = self.kernel.operands[formula[1]]
            if found and operand in found:
                return found[operand](column, mask)
            return self.matrices[operand].load(row, column, self.lanes, mask)

        return Writer(self.code, leaf, vector(self.item, self.lanes))

    def _joined(self, reduction: Reduction, total: Value, value: Value) -> Value:
        value = self.code.lift(value, vector(ITEMS[reduction.dtype], self.lanes))
        return PRIMITIVES[reduction.kind](self.code, total, value)


def _given(number: Value, column: Value, mask: Value | None) -> Value:
    """What is the same in all of a row."""
    return number
