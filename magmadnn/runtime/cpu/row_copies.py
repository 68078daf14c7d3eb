"""Rows of arrays into others, by native threads: what is read while a network trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from magmadnn.compiler.llvm.driver.driver import Driver, Task
from magmadnn.compiler.llvm.fused.copy_rows import CopyRows
from magmadnn.compiler.llvm.kernel import Loaded, block, load
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.graph.op import Array

_AHEAD_BYTES = 3 << 10  # how far ahead rows are announced
_SHARES = 4  # parts for each thread, so that one that is held up leaves its to others
_LEAST_BYTES = 1 << 16  # of a part
_PIECES, _PART, _ORDER, _SOURCE, _SOURCE_ROW = (
    CopyRows.slots.index(name) for name in ("pieces", "part", "order", "source", "source_row")
)


class RowCopies:
    """Copies rows of arrays, in an order, into arrays of the same dtype.

    Args:
        pairs: arrays that rows are copied from, and those with rows in C order that they are copied to, as
            `can` says.
        rows: how many are copied in one go, at most.
        threads: that copy, the caller's included.
        beside: tasks that also run for each piece, and see its number as that of the batch.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Array, Array]],
        rows: int,
        threads: int,
        beside: Sequence[Task] = (),
    ) -> None:
        self._rows, goals = rows, [goal for _, goal in pairs]
        kernel, loaded = CopyRows(), _kernel()
        blocks, end = [np.empty((0, len(kernel.slots)), np.int64)], 0
        self._tasks: dict[int, slice] = {}  # of each pair
        # long parts last
        for number in sorted(range(len(goals)), key=lambda number: goals[number][:1].nbytes):
            nbytes = goals[number][:1].nbytes
            count = max(min(threads * _SHARES, rows * nbytes // _LEAST_BYTES), 1)
            one = block(
                kernel, pieces=0, part=0, parts=count,
                ahead=-(-_AHEAD_BYTES // max(nbytes, 1)), order=0, source=0, source_row=0,
                result=goals[number], result_row=goals[number].strides[0], row_bytes=nbytes,
            )  # fmt: skip
            blocks.append(np.tile(one, (count, 1)))
            blocks[-1][:, _PART] = np.arange(count)
            self._tasks[number], end = slice(end, end + count), end + count
        self._blocks = np.concatenate(blocks)
        tasks = [Task(loaded, arguments, (goals,)) for arguments in self._blocks]
        count = keep_threads(threads if len(tasks) > 1 else 1)
        self._driver = Driver([[*beside, *tasks]], count, cache=kernel_cache())
        self.bind([source for source, _ in pairs])

    def bind(self, sources: Sequence[Array]) -> None:
        """Copy from these arrays from now on, which look like those before; those are let go of."""
        self._sources = list(sources)
        for number, source in enumerate(sources):
            own = self._blocks[self._tasks[number]]
            own[:, _SOURCE], own[:, _SOURCE_ROW] = source.ctypes.data, source.strides[0]

    @staticmethod
    def can(source: Array, goal: Array) -> bool:
        """Whether rows of one are the bytes of rows of the other."""
        return source.dtype == goal.dtype and source[:1].flags.c_contiguous

    @staticmethod
    def can_send(source: Array) -> bool:
        """Whether rows are bytes as any machine of this kind has them."""
        return source.dtype.isnative and RowCopies.can(source, source)

    def run(self, order: NDArray[np.int64], at: int, done: Callable[[int, int], None]) -> None:
        """Copy the rows that `order` says to row `at` of the goals and on.

        Args:
            order: numbers of rows that are there.
            at: row of the goals.
            done: called for each stretch of the goals' rows that is done, while no more is copied.
        """
        order = np.ascontiguousarray(order, np.int64)
        firsts = np.arange(0, len(order), self._rows)
        pieces = pieces_of(np.minimum(self._rows, len(order) - firsts), at + firsts)
        self._blocks[:, _PIECES], self._blocks[:, _ORDER] = pieces.ctypes.data, order.ctypes.data
        for number, (_, count, first) in enumerate(pieces.tolist()):
            self._driver.run(number, 1)
            done(first, first + count)

    def run_pieces(self, orders: Sequence[NDArray[np.int64]], pieces: NDArray[np.int64]) -> None:
        """Copy all pieces, one after the other, in one go of native code.

        Args:
            orders: for each pair, the numbers of its rows, that are there.
            pieces: as `pieces_of` gives them; each has at most so many rows as are copied in one go.
        """
        self._blocks[:, _PIECES] = pieces.ctypes.data
        held = [np.ascontiguousarray(order, np.int64) for order in orders]
        rows = pieces[:, 1].sum()
        for number, order in enumerate(held):
            assert rows <= len(order)
            self._blocks[self._tasks[number], _ORDER] = order.ctypes.data
        self._driver.run(0, len(pieces))

    def close(self) -> None:
        """Let go of the threads."""
        self._driver.close()


def pieces_of(counts: ArrayLike, goals: ArrayLike) -> NDArray[np.int64]:
    """Rows that follow each other, as pieces of so many, to be copied to these rows of the goals and on."""
    counts = np.asarray(counts, np.int64)
    return np.stack([np.cumsum(counts) - counts, counts, np.asarray(goals, np.int64)], axis=1)


@cache
def _kernel() -> Loaded:
    return load([CopyRows()], cache=kernel_cache())[0]


def keep_threads(count: int) -> int:
    """Let so many threads stay for the next driver that wants them, as it takes a while to start them."""
    _held(count)
    return count


@cache
def _held(threads: int) -> Driver:
    """A driver that does nothing."""
    return Driver([], threads, cache=kernel_cache())
