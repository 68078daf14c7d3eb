"""Kernels that reduce over rows as vector code; `kernels/columns.py` says what they compute.

Every column is reduced by itself: rows are combined in order within blocks of 64, and the blocks' results
in order after that. Columns may be cut into tiles anywhere; neither that nor vector width nor threads
change a bit.

Rows are read as they lie in memory, a few at a time, and combined with a piece of numbers that stays in the
first-level cache. Down a strip of columns, whose numbers fit into registers, each row of a large matrix would
be another page.
"""

from __future__ import annotations

from collections.abc import Mapping

from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import Reduction
from magmadnn.compiler.llvm.expressions.formulas import ITEMS, PRIMITIVES, Writer
from magmadnn.compiler.llvm.expressions.operands import Matrix, lanes_for
from magmadnn.compiler.llvm.expressions.row_walk import neutral
from magmadnn.compiler.llvm.ir.builder import Array, Code, Value, vector
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

_BLOCK = 64  # rows whose results are combined before they join the total
_ROWS = 8  # that are combined at a time
_PIECE = 2048  # columns
_WIDEST = 8  # bytes of an element


def columns_scratch_bytes(kernel: Columns) -> int:
    """Scratch memory that the kernel needs: of each reduction a piece of totals and of a block's numbers."""
    return 2 * len(kernel.reduce) * _PIECE * _WIDEST


def write_columns(kernel: Columns, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    lanes = lanes_for(target.vector_bytes, kernel.parts)
    matrices = {part: Matrix(code, frame, part) for part in kernel.parts}
    row1 = frame.integer("row1")
    if not kernel.in_pieces:
        _Writer(kernel, code, frame, lanes, matrices, row1).write()
        return
    steps = {part: frame.integer(f"{part.name}_outer") for part in kernel.apart}
    with code.loop(frame.integer("outer0"), frame.integer("outer1")) as outer:
        moved = {part: matrices[part].moved(outer * step) for part, step in steps.items()}
        end = code.smaller(row1, frame.integer("rows") - outer * row1) if kernel.blocked else row1
        _Writer(kernel, code, frame, lanes, matrices | moved, end).write()


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
    ) -> None:
        self.kernel, self.code, self.lanes, self.matrices = kernel, code, lanes, matrices
        self.row0, self.row1 = frame.integer("row0"), row1
        self.column0, self.column1 = frame.integer("column0"), frame.integer("column1")
        self.item = ITEMS[kernel.dtype]
        self.totals, self.parts = (
            {
                reduction: frame.scratch.at((2 * number + which) * _PIECE * _WIDEST).viewed(
                    ITEMS[reduction.dtype]
                )
                for number, reduction in enumerate(kernel.reduce)
            }
            for which in (0, 1)
        )

    def write(self) -> None:
        """Pieces of columns one after the other."""
        code = self.code
        with code.loop(self.column0, self.column1, _PIECE) as column:
            count = code.smaller(self.column1 - column, _PIECE)
            self._start(self.totals, count)
            with code.loop(self.row0, self.row1, _BLOCK) as first:
                self._start(self.parts, count)
                end = code.smaller(first + _BLOCK, self.row1)
                whole = end - (end - first) % _ROWS
                with code.loop(first, whole, _ROWS) as row:
                    self._combine(row, _ROWS, column, count)
                with code.loop(whole, end) as row:
                    self._combine(row, 1, column, count)
                with code.loop(0, count, self.lanes) as j:
                    for reduction, totals in self.totals.items():
                        part = self.parts[reduction].vector(j, self.lanes)
                        totals.put(j, self._joined(reduction, totals.vector(j, self.lanes), part))
            with code.loop(0, count, self.lanes) as j:
                self._store(j, column + j, code.first(count - j, self.lanes))

    def _start(self, numbers: Mapping[Reduction, Array], count: Value) -> None:
        """Numbers that change no result."""
        with self.code.loop(0, count, self.lanes) as j:
            for reduction, memory in numbers.items():
                kind = vector(ITEMS[reduction.dtype], self.lanes)
                memory.put(j, self.code.lift(neutral(reduction), kind))

    def _combine(self, row: Value, rows: int, column: Value, count: Value) -> None:
        """Join some rows of a piece, in order, to its numbers of this block."""
        code, lanes = self.code, self.lanes

        def join(j: Value, mask: Value | None) -> None:
            numbers = {r: memory.vector(j, lanes) for r, memory in self.parts.items()}
            for x in range(rows):
                writer = self._writer(row + x, column + j, mask, {})
                for reduction, number in numbers.items():
                    value = writer.write(reduction.formula)
                    numbers[reduction] = self._joined(reduction, number, value)
            for reduction, number in numbers.items():
                self.parts[reduction].put(j, number)

        whole = count - count % lanes
        with code.loop(0, whole, lanes) as j:
            join(j, None)
        with code.when(whole < count):
            join(whole, code.first(count - whole, lanes))

    def _store(self, j: Value, column: Value, mask: Value) -> None:
        """The results of a vector of columns."""
        numbers = {r.name: totals.vector(j, self.lanes) for r, totals in self.totals.items()}
        writer = self._writer(self.row0, column, mask, numbers)
        for result in self.kernel.store:
            value = self.code.lift(writer.write(result.formula), vector(self.item, self.lanes))
            self.matrices[result].store(self.row0, column, value, mask)

    def _writer(
        self, row: Value, column: Value, mask: Value | None, numbers: dict[str, Value]
    ) -> Writer:
        def leaf(formula: Formula) -> Value:
            if formula == ("rows",):
                return self.code.convert(self.row1 - self.row0, self.item)
            if formula[0] == "value":
                return numbers[formula[1]]
            operand = self.kernel.operands[formula[1]]
            return self.matrices[operand].load(row, column, self.lanes, mask)

        return Writer(self.code, leaf, vector(self.item, self.lanes))

    def _joined(self, reduction: Reduction, total: Value, value: Value) -> Value:
        value = self.code.lift(value, vector(ITEMS[reduction.dtype], self.lanes))
        return PRIMITIVES[reduction.kind](self.code, total, value)
