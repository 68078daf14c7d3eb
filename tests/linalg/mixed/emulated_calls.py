"""What the kernels and products of mixed-precision factors do, with NumPy at addresses of the host."""

from __future__ import annotations

import ctypes
from collections import deque
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from magmadnn.linalg.iterative.mixed.kernels import BLOCK

F32, F64, F16, I32 = np.float32, np.float64, np.float16, np.int32


class Held(np.ndarray):
    """An array with an address as CuPy's have it."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


def at(address: int, dtype: Any, rows: int, columns: int, ld: int) -> np.ndarray:
    """The matrix at an address."""
    if not rows or not columns:
        return np.zeros((rows, columns), dtype)
    count = (rows - 1) * ld + columns
    size = np.dtype(dtype).itemsize
    flat = np.frombuffer((ctypes.c_byte * (count * size)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (ld * size, size))


class Event:
    """A place in the order of a stream."""

    is_reached = False


class Stream:
    """One whose work is done late: when the current stream waits, in an order that events alone decide.

    Attributes:
        last_first: whether the stream that was made last goes ahead as far as it may, or the first.
    """

    ptr = 0
    last_first = False
    _all: ClassVar[list[Stream]] = []

    def __init__(self, **settings: Any) -> None:
        self._pending: deque[Any] = deque()
        self._all.append(self)

    def do(self, work: Any) -> None:
        self._pending.append(work)

    def record(self) -> Event:
        event = Event()
        self._pending.append(event)
        return event

    def wait_event(self, event: Event) -> None:
        self._pending.append((event,))

    def _goes_on(self) -> bool:
        """Do the next piece, if it need not wait."""
        if not self._pending:
            return False
        piece = self._pending[0]
        if isinstance(piece, tuple) and not piece[0].is_reached:
            return False
        self._pending.popleft()
        if isinstance(piece, Event):
            piece.is_reached = True
        elif not isinstance(piece, tuple):
            piece()
        return True

    @classmethod
    def go_on(cls) -> None:
        """Do all that is pending."""
        order = cls._all[::-1] if cls.last_first else cls._all
        while any(stream._goes_on() for stream in order):
            pass


class CurrentStream:
    """The one that NumPy computes on, at once."""

    def record(self) -> Event:
        event = Event()
        event.is_reached = True
        return event

    def wait_event(self, event: Event) -> None:
        Stream.go_on()
        assert event.is_reached


def _held(make: Any) -> Any:
    return lambda *a, **k: make(*a, **k).view(Held)


class Package:
    """The part of CuPy that is used."""

    cuda = SimpleNamespace(Stream=Stream, get_current_stream=CurrentStream)

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        makes = (
            "empty",
            "zeros",
            "arange",
            "ascontiguousarray",
            "empty_like",
            "zeros_like",
            "asarray",
        )
        return _held(found) if name in makes else found


class Calls:
    """What a stream is given: it is done when the stream comes to it."""

    def __init__(self, cupy: Any, device: int, width: int, stream: Stream) -> None:
        self._work, self._stream = Work(width), stream

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._work, name)
        return lambda *a, **k: self._stream.do(lambda: function(*a, **k))


class Work:
    """As the kernels, written another way."""

    def __init__(self, width: int) -> None:
        self.width = width

    def panel(self, a: int, ld: int, rows: int, moves: int, wrong: int) -> None:
        w = self.width
        x = at(a, F32, rows, w, ld)
        done = x.copy()
        left, pivots = np.ones(rows, bool), []
        for j in range(w):
            size = np.where(left, np.abs(done[:, j]), -1)
            pivot = int(size.argmax())
            pivots.append(pivot)
            left[pivot] = False
            if not abs(done[pivot, j]) > 1e-36:
                at(wrong, I32, 1, 1, 1)[0, 0] = 1
                done[left, j] = 0
                continue
            done[left, j] /= done[pivot, j]
            done[left, j + 1 :] -= np.outer(done[left, j], done[pivot, j + 1 :])
        goals = [p for p in pivots if p >= w]
        sources = [r for r in range(w) if r not in pivots]
        out = done.copy()
        out[goals] = done[sources]
        out[:w] = done[pivots]
        x[...] = out
        table = at(moves, I32, 1, 128, 128)[0]
        table[:w] = pivots
        table[32 : 32 + len(goals)], table[64 : 64 + len(goals)], table[96] = (
            goals,
            sources,
            len(goals),
        )

    def exchange(
        self, a: int, ld: int, begin: int, end: int, moves: int, *, hole: int | None = None,
        gap: int = 0, steps: int = 1, triangle: bool = False, rows: int = 0,
    ) -> None:  # fmt: skip
        w = self.width
        columns = [c for c in range(begin, end) if hole is None or not hole <= c < hole + gap]
        for s in range(steps):
            table = at(moves + 512 * s, I32, 1, 128, 128)[0]
            pivots, count = table[:w], int(table[96])
            goals, sources = table[32 : 32 + count], table[64 : 64 + count]
            height = max(int(pivots.max()), w - 1) + 1
            parts = [at(a + 4 * s * w * ld, F32, height, end, ld)[:, columns]] if columns else []
            if rows:
                parts.append(at(rows + 4 * s * w, I32, height, 1, 1))
            for number, part in enumerate(parts):
                new = part.copy()
                new[goals], new[:w] = part[sources], part[pivots]
                if number or not columns:
                    part[...] = new
                    continue
                if triangle and hole is not None:
                    lower = np.tril(at(a + 4 * hole, F32, w, w, ld), -1) + np.eye(w, dtype=F32)
                    behind = [i for i, c in enumerate(columns) if c >= hole]
                    new[:w, behind] = np.linalg.solve(lower, new[:w, behind])
                at(a + 4 * s * w * ld, F32, height, end, ld)[:, columns] = new

    @staticmethod
    def _halves(x: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
        x = x * F32(scale)
        high = x.astype(F16)
        return high, (x - high.astype(F32)).astype(F16)

    def split_left(self, a: int, ld: int, to: int, rows: int, scale: float) -> None:
        high, low = self._halves(at(a, F32, rows, BLOCK, ld), scale)
        at(to, F16, rows, 3 * BLOCK, 3 * BLOCK)[...] = np.hstack([high, low, high])

    def split_right(self, a: int, copy: int, ld: int, to: int, columns: int, scale: float) -> None:
        x = at(a, F32, BLOCK, columns, columns)
        at(copy, F32, BLOCK, columns, ld)[...] = x
        high, low = self._halves(x, scale)
        at(to, F16, 3 * BLOCK, columns, columns)[...] = np.vstack([high, high, low])

    def invert(self, a: int, ld: int, to: int, triangles: int, *, lower: bool) -> None:
        for t in range(triangles):
            x = at(a + 4 * 32 * t * (ld + 1), F32, 32, 32, ld)
            x = np.tril(x, -1) + np.eye(32, dtype=F32) if lower else np.triu(x)
            goal = at(to + 4 * 32 * t * (BLOCK + 1), F32, 32, 32, BLOCK)
            goal[...] = np.linalg.inv(x) if np.diag(x).all() else np.nan

    def leave(self, processors: int) -> None:
        """Products are done one after the other here."""

    def substitute(
        self, a: int, ld: int, inverses: int, rest: int, x: int, blocks: int, count: int, *, lower: bool
    ) -> None:  # fmt: skip
        total = blocks * BLOCK
        matrix, left, goal = (
            at(a, F32, total, total, ld),
            at(rest, F32, 1, total, total)[0],
            at(x, F32, 1, total, total)[0],
        )
        assert not at(count, I32, 1, 1, 1).any()
        for block in range(blocks) if lower else reversed(range(blocks)):
            own = slice(block * BLOCK, (block + 1) * BLOCK)
            others = slice(own.stop, total) if lower else slice(0, own.start)
            inverse = at(inverses + 4 * own.start * (BLOCK + 1), F32, BLOCK, BLOCK, BLOCK)
            goal[own] = inverse @ left[own]
            left[others] -= matrix[others, own] @ goal[own]

    def narrow(
        self, a: int, n: int, to: int, total: int, scale: float, sums: int, most: int
    ) -> None:
        x = at(a, F64, n, n, n) * scale
        goal = at(to, F32, total, total, total)
        goal[...] = np.eye(total)
        with np.errstate(over="ignore"):
            goal[:n, :n] = x
        at(sums, F64, 1, n, n)[0] = np.abs(x).sum(1)
        at(most, F64, 1, n, n)[0] = np.abs(x).max(1)

    def residual(self, a: int, x: int, r: int, n: int, count: int) -> None:
        at(r, F64, count, n, n)[...] -= at(x, F64, count, n, n) @ at(a, F64, n, n, n).T

    def of_halves(
        self, left: int, right: int, to: int, ld: int, rows: int, columns: int, alpha: float,
        beta: float,
    ) -> None:  # fmt: skip
        inner = 3 * BLOCK
        found = at(left, F16, rows, inner, inner).astype(F32) @ at(
            right, F16, inner, columns, columns
        ).astype(F32)
        goal = at(to, F32, rows, columns, ld)
        goal[...] = F32(alpha) * found + (F32(beta) * goal if beta else 0)

    def product(
        self, a: int, lda: int, b: int, ldb: int, to: int, ld: int, rows: int, columns: int,
        inner: int, alpha: float, beta: float,
    ) -> None:  # fmt: skip
        goal = at(to, F32, rows, columns, ld)
        found = F32(alpha) * (at(a, F32, rows, inner, lda) @ at(b, F32, inner, columns, ldb))
        goal[...] = found + (F32(beta) * goal if beta else 0)

    def products(
        self, a: tuple[int, int, int], b: tuple[int, int, int], to: tuple[int, int, int],
        side: int, count: int, alpha: float,
    ) -> None:  # fmt: skip
        for k in range(count):
            x, y, z = (at(p + 4 * k * step, F32, side, side, ld) for p, ld, step in (a, b, to))
            z[...] = F32(alpha) * (x @ y)

    def sides(
        self, a: int, lda: int, x: int, ldx: int, to: int, ld: int, rows: int, count: int,
        alpha: float, beta: float,
    ) -> None:  # fmt: skip
        goal = at(to, F32, count, rows, ld)
        found = F32(alpha) * (at(x, F32, count, BLOCK, ldx) @ at(a, F32, rows, BLOCK, lda).T)
        goal[...] = found + (F32(beta) * goal if beta else 0)
