"""L and U of a matrix in float32, products by float16: on the device, and solutions by them.

Numbers of the rest are changed by products of three float16 matrices: high by high, low by high, high by
low, which keeps 22 bits. The panels of the next columns are factorised while the rest is changed.
"""

from __future__ import annotations

from typing import Any

from .calls import Calls
from .kernels import BLOCK, BLOCKS, STEP, THREADS

_SCALE_OF_L = 256.0
_INVERTED = 128  # rows of triangles whose inverses make rows of U
_FIRST = -1  # the priority of what others wait for
# Multiprocessors that products of the whole rest leave to panels: their blocks stay until all is done, so
# that a cluster finds no room beside them. 16384 rows took 63.6 ms on an H200 (132 multiprocessors) with 0 to
# 24 left, 59.1 with 32, 58.5 with 48, 58.8 with 64.
_LEFT_TO_PANELS = 48
_BESIDE = BLOCK * (BLOCK + 1)  # elements from one block of an inverse to the next one

MOST_ROWS = BLOCKS * THREADS * 4  # whose panels of eight columns a cluster has in its registers


def bytes_of_factors(n: int) -> int:
    """About how much memory the factors of so many rows take, and what makes them."""
    total = padded(n)
    return 4 * total * total + 26 * BLOCK * total


def padded(n: int) -> int:
    """Rows that are computed for so many rows."""
    return -(-n // BLOCK) * BLOCK


def width_of(total: int) -> int:
    """Columns of a panel."""
    width = 32
    while total > BLOCKS * THREADS * (32 // width):
        width //= 2
    return width


class Elimination:
    """P A = L U of [total, total], total a multiple of `BLOCK`.

    Args:
        cupy: the package.
        device: number of the device, which is the current one.
        total: rows.
        ahead: whether panels are factorised beside products.
    """

    def __init__(self, cupy: Any, device: int, total: int, *, ahead: bool = True) -> None:
        self._cupy, self.total, self.ahead = cupy, total, ahead
        self.width = width_of(total)
        self._main = cupy.cuda.Stream(non_blocking=True, priority=_FIRST)
        self._side = cupy.cuda.Stream(non_blocking=True) if ahead else self._main
        self._first = Calls(cupy, device, self.width, self._main)
        self._second = Calls(cupy, device, self.width, self._side) if ahead else self._first
        if ahead:
            self._second.leave(_LEFT_TO_PANELS)
        single, half = cupy.float32, cupy.float16
        self.matrix = cupy.empty((total, total), single)
        self.order = cupy.arange(total, dtype="int32")
        self.wrong = cupy.zeros(1, "int32")
        self._moves = cupy.empty((total // self.width, STEP), "int32")
        blocks = total // BLOCK
        self._lower = cupy.zeros(blocks * _BESIDE, single)
        self._upper = cupy.zeros(blocks * _BESIDE, single)
        self._between = cupy.empty(blocks * (BLOCK // 2) ** 2 * 2, single)
        self._left = [cupy.empty((total, 3 * BLOCK), half) for _ in range(2)]
        self._found = [cupy.empty((BLOCK, c), single) for c in (BLOCK, total)]
        self._right = [cupy.empty((3 * BLOCK, c), half) for c in (BLOCK, total)]

    def at(self, row: int, column: int) -> int:
        """Address of an element."""
        return int(self.matrix.data.ptr) + 4 * (row * self.total + column)

    def narrow(self, a: int, n: int, scale: float, sums: int, most: int) -> None:
        """Take over a matrix [n, n] of float64, scaled; its rows' sums of sizes, and largest sizes."""
        now = self._cupy.cuda.get_current_stream()
        self._main.wait_event(now.record())
        self._first.narrow(a, n, self.matrix.data.ptr, self.total, scale, sums, most)
        now.wait_event(self._main.record())

    def residual(self, a: Any, x: Any, b: Any) -> Any:
        """b - x A^T in float64 for rows x and b."""
        now, r = self._cupy.cuda.get_current_stream(), b.copy()
        x = self._cupy.ascontiguousarray(x)
        self._main.wait_event(now.record())
        self._first.residual(a.data.ptr, x.data.ptr, r.data.ptr, len(a), len(b))
        now.wait_event(self._main.record())
        return r

    def factorise(self, scale: float) -> None:
        """Begin to factorise `matrix`, whose elements times `scale` are about 10."""
        begun = self._cupy.cuda.get_current_stream().record()
        self._main.wait_event(begun)
        self._side.wait_event(begun)
        changed, first = None, self._first
        self._panel(0)
        for number, column in enumerate(range(0, self.total, BLOCK)):
            self._block(column)
            behind, rest = column + BLOCK, self.total - column - BLOCK
            self._invert(first, column, BLOCK, lower=True, until=_INVERTED)
            left = self._left[number % 2].data.ptr
            if rest:
                first.split_left(self.at(behind, column), self.total, left, rest, _SCALE_OF_L)
            known = self._main.record()
            if changed is not None:
                self._main.wait_event(changed)
            if rest:
                self._change(first, column, behind, behind + BLOCK, left, 0, scale)
                own = self._main.record()
                self._panel(behind)
            self._side.wait_event(known)
            self._exchange_others(self._second, column)
            if rest > BLOCK:  # its product begins when the panel has its multiprocessors
                self._change(self._second, column, behind + BLOCK, self.total, left, 1, scale, own)
            changed = self._side.record()
        self._main.wait_event(changed)
        self._invert(first, 0, self.total, lower=True, since=_INVERTED)
        self._invert(first, 0, self.total, lower=False)
        self._cupy.cuda.get_current_stream().wait_event(self._main.record())

    def _panel(self, k: int) -> None:
        """Factorise the panel that begins with column k."""
        moves = self._moves.data.ptr + 4 * STEP * (k // self.width)
        rows, wrong = self.total - k, self.wrong.data.ptr
        self._first.panel(self.at(k, k), self.total, rows, moves, wrong)

    def _block(self, column: int) -> None:
        """Panels of the next columns behind the first one, and what they do to each other."""
        calls, width, total = self._first, self.width, self.total
        for k in range(column, column + BLOCK, width):
            if k > column:
                self._panel(k)
            moves = self._moves.data.ptr + 4 * STEP * (k // width)
            calls.exchange(
                self.at(k, 0),
                total,
                column,
                column + BLOCK,
                moves,
                hole=k,
                gap=width,
                triangle=True,
            )
            columns = column + BLOCK - k - width
            if columns and total - k - width:
                calls.product(
                    self.at(k + width, k), total, self.at(k, k + width), total,
                    self.at(k + width, k + width), total, total - k - width, columns, width, -1.0, 1.0,
                )  # fmt: skip

    def _steps(self, column: int) -> tuple[int, int]:
        """Where the exchanges of a block of columns are, and how many."""
        return self._moves.data.ptr + 4 * STEP * (column // self.width), BLOCK // self.width

    def _exchange_others(self, calls: Calls, column: int) -> None:
        """Exchange rows in columns in front of the block, and the order."""
        moves, steps = self._steps(column)
        calls.exchange(
            self.at(column, 0), self.total, 0, column, moves, steps=steps,
            rows=self.order.data.ptr + 4 * column,
        )  # fmt: skip

    def _change(
        self, calls: Calls, column: int, begin: int, end: int, left: int, side: int, scale: float,
        after: Any = None,
    ) -> None:  # fmt: skip
        """Exchange rows in columns behind the block, make those of U, and take their products off.

        Where there is an event `after`, products wait for it.
        """
        moves, steps = self._steps(column)
        calls.exchange(self.at(column, 0), self.total, begin, end, moves, steps=steps)
        columns, rows = end - begin, self.total - column - BLOCK
        right, upper = self._right[side].data.ptr, self.at(column, begin)
        found, total = self._found[side].data.ptr, self.total
        # By inverses of few rows: those of all rows of the block lose two more bits.
        inverse = self._lower.data.ptr + 4 * _BESIDE * (column // BLOCK)
        for row in range(0, BLOCK, _INVERTED):
            goal = self.at(column + row, begin)
            if row:
                calls.product(
                    self.at(column + row, column), total, found, columns, goal, total,
                    _INVERTED, columns, row, -1.0, 1.0,
                )  # fmt: skip
            calls.product(
                inverse + 4 * row * (BLOCK + 1), BLOCK, goal, total, found + 4 * row * columns, columns,
                _INVERTED, columns, _INVERTED, 1.0, 0.0,
            )  # fmt: skip
        calls.split_right(found, upper, self.total, right, columns, scale)
        if after is not None:
            self._side.wait_event(after)
        calls.of_halves(
            left, right, self.at(column + BLOCK, begin), self.total, rows, columns,
            -1 / (_SCALE_OF_L * scale), 1.0,
        )  # fmt: skip

    # --- inverses of the blocks on the diagonal ---------------------------------------------------

    def _invert(
        self, calls: Calls, column: int, rows: int, *, lower: bool, since: int = 0,
        until: int = BLOCK,
    ) -> None:  # fmt: skip
        """Inverses of triangles along the diagonal of so many rows each, from those of fewer rows."""
        store = self._lower if lower else self._upper
        to = store.data.ptr + 4 * _BESIDE * (column // BLOCK)
        if not since:
            calls.invert(self.at(column, column), self.total, to, rows // 32, lower=lower)
        side = since or 32
        while side < until:
            # [X11 0; X21 X22] with X21 = -X22 L21 X11, and [X11 X12; 0 X22] with X12 = -X11 U12 X22
            down, across = (side, 0) if lower else (0, side)
            middle = (
                self.at(column + down, column + across),
                self.total,
                2 * side * (self.total + 1),
            )
            step = 2 * side * (BLOCK + 1)
            first = (to, BLOCK, step)
            second = (to + 4 * side * (BLOCK + 1), BLOCK, step)
            goal = (to + 4 * (down * BLOCK + across), BLOCK, step)
            between = (self._between.data.ptr, side, side * side)
            before, after = (first, second) if lower else (second, first)
            count = rows // (2 * side)
            calls.products(middle, before, between, side, count, 1.0)
            calls.products(after, between, goal, side, count, -1.0)
            side *= 2

    # --- solutions --------------------------------------------------------------------------------

    def solve(self, right: Any) -> Any:
        """x [k, total] with A x = right for each row of right in float32, in the order of A's rows.

        It is computed on the current stream's time: the streams of factors wait for it and are waited for.
        """
        cupy, total = self._cupy, self.total
        now = cupy.cuda.get_current_stream()
        rest = cupy.ascontiguousarray(right[:, self.order])
        middle, x = cupy.empty_like(rest), cupy.empty_like(rest)
        counts = cupy.zeros(2, "uint32")
        self._main.wait_event(now.record())
        if len(rest) == 1:
            self._substitute(self._lower, rest, middle, counts.data.ptr, lower=True)
            self._substitute(self._upper, middle, x, counts.data.ptr + 4, lower=False)
            now.wait_event(self._main.record())
            return x
        for block in range(total // BLOCK):
            row = block * BLOCK
            self._solve_block(self._lower, block, rest, middle)
            behind = row + BLOCK
            self._take_off(behind, row, total - behind, middle, rest)
        for block in reversed(range(total // BLOCK)):
            row = block * BLOCK
            self._solve_block(self._upper, block, middle, x)
            self._take_off(0, row, row, x, middle)
        now.wait_event(self._main.record())
        return x

    def _substitute(self, store: Any, rest: Any, x: Any, count: int, *, lower: bool) -> None:
        self._first.substitute(
            self.at(0, 0), self.total, store.data.ptr, rest.data.ptr, x.data.ptr,
            self.total // BLOCK, count, lower=lower,
        )  # fmt: skip

    def _solve_block(self, store: Any, block: int, rest: Any, to: Any) -> None:
        inverse, place = store.data.ptr + 4 * _BESIDE * block, 4 * block * BLOCK
        self._first.sides(
            inverse, BLOCK, rest.data.ptr + place, self.total, to.data.ptr + place, self.total, BLOCK,
            len(rest), 1.0, 0.0,
        )  # fmt: skip

    def _take_off(self, row: int, column: int, rows: int, x: Any, rest: Any) -> None:
        """Take what is known by now off other rows."""
        if rows:
            self._first.sides(
                self.at(row, column), self.total, x.data.ptr + 4 * column, self.total,
                rest.data.ptr + 4 * row, self.total, rows, len(x), -1.0, 1.0,
            )  # fmt: skip

    def close(self) -> None:
        """Give back what the libraries hold."""
        self._first.close()
        if self._second is not self._first:
            self._second.close()
