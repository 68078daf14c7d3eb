"""Kernels that reduce over rows as vector code; `kernels/columns.py` says what they compute.

Every column is reduced by itself: rows are combined in order within blocks of 64, and the blocks' results
in order after that. Columns may be cut into tiles anywhere; neither that nor vector width nor threads
change a bit.
"""

from __future__ import annotations

from collections.abc import Mapping

from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import Reduction

from .builder import Code, Value, Variable, vector
from .formulas import ITEMS, PRIMITIVES, Writer
from .frame import Frame
from .operands import Matrix, lanes_for
from .row_walk import neutral
from .target import Target

_BLOCK = 64  # rows whose results are combined before they join the total
_UNROLL = 4  # vectors of columns side by side, to have independent sums


def write_columns(kernel: Columns, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    lanes = lanes_for(target.vector_bytes, kernel.parts)
    matrices = {part: Matrix(code, frame, part) for part in kernel.parts}
    if not kernel.stacked:
        _write_matrix(_Strip(kernel, code, frame, lanes, matrices), frame)
        return
    steps = {part: frame.integer(f"{part.name}_outer") for part in kernel.apart}
    with code.loop(frame.integer("outer0"), frame.integer("outer1")) as outer:
        moved = {part: matrices[part].moved(outer * step) for part, step in steps.items()}
        _write_matrix(_Strip(kernel, code, frame, lanes, matrices | moved), frame)


def _write_matrix(strip: _Strip, frame: Frame) -> None:
    """The reduction of one matrix."""
    code, lanes = strip.code, strip.lanes
    column0, column1 = frame.integer("column0"), frame.integer("column1")
    wide, count = _UNROLL * lanes, column1 - column0
    whole = column0 + (count - count % wide)
    with code.loop(column0, whole, wide) as column:
        strip.write([(column + u * lanes, None) for u in range(_UNROLL)])
    with code.loop(whole, column1, lanes) as column:
        strip.write([(column, code.first(column1 - column, lanes))])


class _Strip:
    """Writes the reduction of some vectors of columns over all rows."""

    def __init__(
        self,
        kernel: Columns,
        code: Code,
        frame: Frame,
        lanes: int,
        matrices: Mapping[Operand | Result, Matrix],
    ) -> None:
        self.kernel, self.code, self.lanes, self.matrices = kernel, code, lanes, matrices
        self.row0, self.row1 = frame.integer("row0"), frame.integer("row1")
        self.item = ITEMS[kernel.dtype]

    def write(self, places: list[tuple[Value, Value | None]]) -> None:
        """Reduce the vectors at `places` (first column and mask), and store the results."""
        code = self.code
        keys = [(reduction, u) for reduction in self.kernel.reduce for u in range(len(places))]
        totals = {key: self._fresh(key[0]) for key in keys}
        parts = {key: self._fresh(key[0]) for key in keys}
        with code.loop(self.row0, self.row1, _BLOCK) as first:
            for key in keys:
                parts[key].value = self._start(key[0])
            with code.loop(first, code.smaller(first + _BLOCK, self.row1)) as row:
                for u, (column, mask) in enumerate(places):
                    writer = self._writer(row, column, mask, {})
                    for reduction in self.kernel.reduce:
                        self._join(reduction, parts[reduction, u], writer.write(reduction.formula))
            for key in keys:
                self._join(key[0], totals[key], parts[key].value)
        for u, (column, mask) in enumerate(places):
            numbers = {r.name: totals[r, u].value for r in self.kernel.reduce}
            writer = self._writer(self.row0, column, mask, numbers)
            for result in self.kernel.store:
                value = code.lift(writer.write(result.formula), vector(self.item, self.lanes))
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

    def _start(self, reduction: Reduction) -> Value:
        kind = vector(ITEMS[reduction.dtype], self.lanes)
        return self.code.lift(neutral(reduction), kind)

    def _fresh(self, reduction: Reduction) -> Variable:
        return self.code.variable(self._start(reduction))

    def _join(self, reduction: Reduction, total: Variable, value: Value) -> None:
        value = self.code.lift(value, vector(ITEMS[reduction.dtype], self.lanes))
        total.value = PRIMITIVES[reduction.kind](self.code, total.value, value)
