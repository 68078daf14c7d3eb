"""L and U of a matrix in float32, products by float16: on the device, and solutions by them.

Numbers of the rest are changed by products of three float16 matrices: high by high, low by high, high by
low, which keeps 22 bits. The panels of the next columns are factorised while the rest is changed.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from magmadnn.memory.pool import WHEN_SHORT

from .calls import Calls
from .kernels import BLOCK, BLOCKS, STEP, THREADS

_SCALE_OF_L = 256.0
_INVERTED = 128  # rows of triangles whose inverses make rows of U
_FIRST = -1  # the priority of what others wait for
# Multiprocessors that products of the whole rest leave to panels: their blocks stay until all is done, so
# that a cluster finds no room beside them. 16384 rows took 63.6 ms on an H200 (132 multiprocessors) with 0 to
# 24 left, 59.1 with 32, 58.5 with 48, 58.8 with 64.
_LEFT_TO_PANELS = 48
# Blocks of columns that are changed at once; others are changed when panels leave time for it.
_WINDOWS = 4
# What exchanges and rows of U take for each column, in blocks of rows of its product.
_PER_COLUMN = 10.0
_LEAST_LATE = 8  # blocks of columns from which on some are changed late
_BESIDE = BLOCK * (BLOCK + 1)  # elements from one block of an inverse to the next one

MOST_ROWS = BLOCKS * THREADS * 4  # whose panels of eight columns a cluster has in its registers


def bytes_of_factors(n: int) -> int:
    """About how much memory the factors of so many rows take, and what makes them."""
    total = padded(n)
    return 4 * total * total + 32 * BLOCK * total


def padded(n: int) -> int:
    """Rows that are computed for so many rows."""
    return -(-n // BLOCK) * BLOCK


def width_of(total: int) -> int:
    """Columns of a panel."""
    width = 32
    while total > BLOCKS * THREADS * (32 // width):
        width //= 2
    return width


# By which block blocks of columns are changed: from the first, up to the last.
Share = tuple[int, int, int]


def shares(blocks: int, window: int) -> list[tuple[list[Share], list[Share]]]:
    """What the stream beside the panels changes while each block is factorised: at once, and late.

    Blocks of columns in the same window as the next ones are changed at once. Columns behind it are
    changed later, in the order of blocks, so that each step of a window has about the same to do.

    Args:
        blocks: of columns.
        window: blocks of columns of a window.
    """
    steps: list[tuple[list[Share], list[Share]]] = []
    waiting: deque[Share] = deque()

    def work(share: Share) -> float:
        return (share[2] - share[1]) * (blocks - share[0] + _PER_COLUMN)

    done = goal = 0.0
    for number in range(blocks):
        next_ = number + 2  # the step itself changes the block of columns behind it
        end = min((next_ // window + 1) * window, blocks)
        near: list[Share] = []
        if next_ % window == 0 or number == 0:
            near, done = [*waiting], 0.0
            waiting.clear()
            ahead = [(k, k + 2, blocks) for k in range(number, min(end - 2, blocks - 2))]
            goal = sum(map(work, ahead)) / max(len(ahead), 1)
            begun = number
        if next_ < blocks:
            near.append((number, next_, end))
            done += work(near[-1])
            if end < blocks:
                waiting.append((number, end, blocks))
        late: list[Share] = []
        while waiting and done + work(waiting[0]) / 2 <= goal * (number + 1 - begun):
            done += work(waiting[0])
            late.append(waiting.popleft())
        steps.append((near, late))
    return steps


class Lanes:
    """The streams of an elimination, and what they are given.

    Args:
        cupy: the package.
        device: number of the device, which is the current one.
        width: columns of a panel.
        ahead: whether there are two.
    """

    def __init__(self, cupy: Any, device: int, width: int, ahead: bool) -> None:
        self.main = cupy.cuda.Stream(non_blocking=True, priority=_FIRST)
        self.side = cupy.cuda.Stream(non_blocking=True) if ahead else self.main
        self.first = Calls(cupy, device, width, self.main)
        self.second = Calls(cupy, device, width, self.side) if ahead else self.first
        if ahead:
            self.second.leave(_LEFT_TO_PANELS)

    def close(self) -> None:
        """Give back what the libraries hold."""
        self.first.close()
        if self.second is not self.first:
            self.second.close()


_FREE: dict[tuple[int, int, bool], list[Lanes]] = {}  # by device, width and whether there are two
_MOST_FREE = 2


def _taken(key: tuple[int, int, bool]) -> Lanes | None:
    """Lanes that nobody uses; None where there are none."""
    try:
        return _FREE.setdefault(key, []).pop()
    except IndexError:
        return None


def _let_go() -> None:
    """Give back what lanes that nobody uses hold."""
    for key in list(_FREE):
        while (lanes := _taken(key)) is not None:
            lanes.close()


WHEN_SHORT.append(_let_go)


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
        self._key = device, self.width, ahead
        single, half = cupy.float32, cupy.float16
        self.matrix = cupy.empty((total, total), single)
        self.order = cupy.arange(total, dtype="int32")
        self.wrong = cupy.zeros(1, "int32")
        self._moves = cupy.empty((total // self.width, STEP), "int32")
        blocks = total // BLOCK
        self._lower = cupy.zeros(blocks * _BESIDE, single)
        self._upper = cupy.zeros(blocks * _BESIDE, single)
        self._between = cupy.empty(blocks * (BLOCK // 2) ** 2 * 2, single)
        window = -(-blocks // _WINDOWS) if blocks >= _LEAST_LATE else blocks
        self._plan = shares(blocks, window)
        sources = [
            (k, share[0]) for k, step in enumerate(self._plan) for part in step for share in part
        ]
        # panels may be a step ahead
        kept = 2 + max((k - source for k, source in sources), default=0)
        self._left = [cupy.empty((max(total - BLOCK * k, 0), 3 * BLOCK), half) for k in range(kept)]
        self._found = [cupy.empty((BLOCK, c), single) for c in (BLOCK, total)]
        self._right = [cupy.empty((3 * BLOCK, c), half) for c in (BLOCK, total)]
        # last, since what was taken is put back by `close` only
        self._lanes = _taken(self._key) or Lanes(cupy, *self._key)
        self._main, self._side = self._lanes.main, self._lanes.side
        self._first, self._second = self._lanes.first, self._lanes.second

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
        try:
            self._begin(scale)
        except BaseException:  # memory that goes back is not written any more
            self._main.synchronize()
            self._side.synchronize()
            raise

    def _begin(self, scale: float) -> None:
        begun = self._cupy.cuda.get_current_stream().record()
        self._main.wait_event(begun)
        self._side.wait_event(begun)
        changed, first, free = None, self._first, [None] * len(self._left)
        self._panel(0)
        for number, column in enumerate(range(0, self.total, BLOCK)):
            self._block(column)
            behind, rest = column + BLOCK, self.total - column - BLOCK
            self._invert(first, column, BLOCK, lower=True, until=_INVERTED)
            slot = number % len(self._left)
            if free[slot] is not None:
                self._main.wait_event(free[slot])
            if rest:
                left = self._left[slot].data.ptr
                first.split_left(self.at(behind, column), self.total, left, rest, _SCALE_OF_L)
            known = self._main.record()
            if changed is not None:
                self._main.wait_event(changed)
            own = None
            if rest:
                self._change(first, number, number + 1, number + 2, 0, scale)
                own = self._main.record()
                self._panel(behind)
            self._side.wait_event(known)
            near, late = self._plan[number]
            # their products begin when the panel has its multiprocessors
            for source, begin, end in near:
                self._change(self._second, source, begin, end, 1, scale, own)
                free[source % len(self._left)], own = self._side.record(), None
            changed = self._side.record()
            for source, begin, end in late:
                self._change(self._second, source, begin, end, 1, scale)
                free[source % len(self._left)] = self._side.record()
            self._exchange_others(self._second, column)
        self._main.wait_event(self._side.record())
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
        self, calls: Calls, source: int, first: int, last: int, side: int, scale: float, after: Any = None
    ) -> None:  # fmt: skip
        """Exchange rows in blocks of columns behind block `source`, make those of U, and take products off.

        Where there is an event `after`, products wait for it.
        """
        column, begin, end = source * BLOCK, first * BLOCK, last * BLOCK
        moves, steps = self._steps(column)
        calls.exchange(self.at(column, 0), self.total, begin, end, moves, steps=steps)
        columns, rows = end - begin, self.total - column - BLOCK
        left = self._left[source % len(self._left)].data.ptr
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
        """Let others have the streams, and what the libraries hold for them."""
        free = _FREE[self._key]
        if len(free) < _MOST_FREE:
            free.append(self._lanes)
        else:
            self._lanes.close()
