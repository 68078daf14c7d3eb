"""Running sums as vector code; `kernels/accumulate.py` says what they compute.

A sum has to wait for the one before, so columns are taken in vectors side by side, and where there is one
column only, several rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from magmadnn.compiler.kernels.accumulate import Accumulate
from magmadnn.compiler.llvm.expressions.formulas import memory_item
from magmadnn.compiler.llvm.ir.builder import Array, Code, Value, item_bytes
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

_SIDE_BY_SIDE = 4  # rows of one column: an addition takes about four cycles


def write_accumulate(kernel: Accumulate, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    lines = _Lines(kernel, code, frame)
    row0, row1 = frame.integer("row0"), frame.integer("row1")
    column0, column1 = frame.integer("column0"), frame.integer("column1")
    with code.choose(lines.columns.equals(1)) as (single, several):
        with single:
            whole = row1 - (row1 - row0) % _SIDE_BY_SIDE
            with code.loop(row0, whole, _SIDE_BY_SIDE) as row:
                lines.write([(row + k, column0) for k in range(_SIDE_BY_SIDE)], 0)
            with code.loop(whole, row1) as row:
                lines.write([(row, column0)], 0)
        with several, code.loop(row0, row1) as row:
            lanes = target.lanes(item_bytes(lines.source.item))
            whole = column1 - (column1 - column0) % lanes
            with code.loop(column0, whole, lanes) as column:
                lines.write([(row, column)], lanes)
            with code.loop(whole, column1) as column:
                lines.write([(row, column)], 0)


class _Lines:
    """Lines along the axis: each begins at a place [outer, column]."""

    def __init__(self, kernel: Accumulate, code: Code, frame: Frame) -> None:
        self._code, self._reverse = code, kernel.reverse
        self.columns, self._length = frame.integer("columns"), frame.integer("length")
        item = memory_item(kernel.dtype)
        self.source, self._result = frame.array("source", item), frame.array("result", item)

    def write(self, begins: Sequence[tuple[Value, Value]], lanes: int) -> None:
        """Sum along lines side by side; with `lanes`, along as many columns of each."""
        code = self._code
        places = [row * self._length * self.columns + column for row, column in begins]
        ends = [(self.source.at(p), self._result.at(p)) for p in places]
        zero = ir.VectorType(self.source.item, lanes) if lanes else self.source.item
        totals = [code.variable(code.zero(zero)) for _ in ends]
        with code.when(self._length > 0):
            first = (self._length - 1) * self.columns if self._reverse else code.integer(0)
            for (source, result), total in zip(ends, totals, strict=True):
                total.value = _taken(source, first, lanes)  # not 0 + x, which would lose -0.0
                _put(result, first, total.value, lanes)
            with code.loop(1, self._length) as number:
                at = (self._length - 1 - number if self._reverse else number) * self.columns
                for (source, result), total in zip(ends, totals, strict=True):
                    total.value = total.value + _taken(source, at, lanes)
                    _put(result, at, total.value, lanes)


def _taken(source: Array, at: Value, lanes: int) -> Value:
    return source.vector(at, lanes) if lanes else source[at]


def _put(result: Array, at: Value, value: Value, lanes: int) -> None:
    if lanes:
        result.put(at, value)
    else:
        result[at] = value
