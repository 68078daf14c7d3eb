"""A factor whose rows, and whose columns, are each several axes of memory: where its elements lie.

Element [i, p] lies at `row[i] + column[p]`, where both are found axis by axis. So for each block of a
product the addresses of its rows, and the bytes from there to each of its columns, are written into scratch
memory. A tile reads elements by both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magmadnn.compiler.kernels.gemm import axis_slots
from magmadnn.compiler.llvm.ir.builder import I8, Array, Code, Value, Variable
from magmadnn.compiler.llvm.ir.frame import Slots


@dataclass(frozen=True)
class JoinedRows:
    """Rows of a factor: element [x, y] lies at the address `rows[x] + columns[y]`, both in bytes.

    Attributes:
        rows: addresses.
        columns: bytes.
        panel: how many rows the largest tile has.
    """

    rows: Array
    columns: Array
    panel: Value

    def at(self, row: Value) -> JoinedRows:
        """Those from one on."""
        return JoinedRows(self.rows.at(row), self.columns, self.panel)

    def tile(self, i: Value, rows: int) -> JoinedRows:
        """The tile that starts at row `i`; tiles of `rows` rows are the largest."""
        return self.at(i)


class JoinedAxes:
    """Writes where the elements of blocks of the factor lie.

    Args:
        code: of the kernel.
        frame: its arguments.
        item: bytes of an element.
        factor: which, "a" or "b".
    """

    def __init__(self, code: Code, frame: Slots, item: int, factor: str) -> None:
        self._code = code
        self._start = code.number_of(frame.array(factor, I8))
        self._axes = {
            side: [
                number * item if slot.rpartition("_")[2].startswith("step") else number
                for slot in axis_slots(factor, side)
                for number in (frame.integer(slot),)
            ]
            for side in ("row", "column")
        }

    def rows(self, first: Value, count: Value, goal: Array) -> None:
        """Write the addresses of `count` rows, from number `first` on."""
        places = (self._start, first, count, goal)
        self._code.subroutine("places", write_places, *places, *self._axes["row"])

    def columns(self, first: Value, count: Value, goal: Array) -> None:
        """Write how many bytes behind the start of their row `count` columns are, from `first` on."""
        places = (self._code.integer(0), first, count, goal)
        self._code.subroutine("places", write_places, *places, *self._axes["column"])


def write_places(
    code: Code, start: Value, first: Value, count: Value, goal: Array, *axes: Value
) -> None:
    """goal[x] = start + the bytes to number `first + x`, for x < count.

    The innermost axis is walked in runs; between two of them the others go on like the digits of a number.

    Args:
        code: where to write.
        start: what is added to all.
        first: the number of the first.
        count: how many; the axes have no elements where there is none.
        goal: what is written.
        axes: size and bytes apart of each axis, the outermost first.
    """
    with code.when(count > 0):
        sizes, steps = axes[::2], axes[1::2]
        digits, rest = list[Variable](), first
        for size in reversed(sizes[1:]):
            digits.insert(0, code.variable(rest % size))
            rest = rest // size
        digits.insert(0, code.variable(rest))
        done = code.variable(code.integer(0))
        with code.repeat() as leave:
            leave.when(done.value >= count)
            begin, at = done.value, start
            for digit, step in zip(digits, steps, strict=True):
                at = at + digit.value * step
            run = code.smaller(sizes[-1] - digits[-1].value, count - begin)
            with code.loop(0, run) as x:
                goal[begin + x] = at + x * steps[-1]
            done.value = begin + run
            _carry(code, digits, sizes)


def _carry(code: Code, digits: list[Variable], sizes: Sequence[Value]) -> None:
    """The last digit becomes 0, and those before it go on by one."""
    digits[-1].value = code.integer(0)
    carried = code.integer(1)
    for digit, size in zip(digits[-2:0:-1], sizes[-2:0:-1], strict=True):
        following = digit.value + carried
        over = following >= size
        digit.value = code.select(over, 0, following)
        carried = code.select(over, 1, 0)
    digits[0].value = digits[0].value + carried
