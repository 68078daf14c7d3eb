"""Rows of arrays into others, by native threads: what is read while a network trains."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from magmadnn.compiler.emit.llvm.cache import kernel_cache
from magmadnn.compiler.emit.llvm.copy_rows import CopyRows
from magmadnn.compiler.emit.llvm.driver import Driver, Task
from magmadnn.compiler.emit.llvm.kernel import Loaded, block, load
from magmadnn.graph.op import Array

_AHEAD_BYTES = 3 << 10  # how far ahead rows are announced
_SHARES = 4  # parts for each thread, so that one that is held up leaves its to others
_LEAST_BYTES = 1 << 16  # of a part
_FIRST, _LAST, _ROWS, _ORDER, _RESULT, _RESULT_ROW, _SOURCE, _SOURCE_ROW = (
    CopyRows.slots.index(name)
    for name in (
        "row0", "row1", "rows", "order", "result", "result_row", "source", "source_row",
    )
)  # fmt: skip


class RowCopies:
    """Copies rows of arrays, in an order, into arrays of the same dtype.

    Args:
        pairs: arrays that rows are copied from, and those with rows in C order that they are copied to, as
            `can` says.
        rows: how many are copied in one go.
        threads: that copy, the caller's included.
    """

    def __init__(self, pairs: Sequence[tuple[Array, Array]], rows: int, threads: int) -> None:
        self._rows, goals = rows, [goal for _, goal in pairs]
        kernel, loaded = CopyRows(), _kernel()
        blocks, parts = [np.empty((0, len(kernel.slots)), np.int64)], []
        # long parts last
        for number in sorted(range(len(goals)), key=lambda number: goals[number][:1].nbytes):
            nbytes = goals[number][:1].nbytes
            count = max(min(threads * _SHARES, rows * nbytes // _LEAST_BYTES), 1)
            one = block(
                kernel, row0=0, row1=0, batch_rows=rows, rows=0,
                ahead=-(-_AHEAD_BYTES // max(nbytes, 1)), order=0, source=0, source_row=0,
                result=goals[number], result_row=goals[number].strides[0], row_bytes=nbytes,
            )  # fmt: skip
            blocks.append(np.tile(one, (count, 1)))
            parts += [(number, part, count) for part in range(count)]
        self._blocks = np.concatenate(blocks)
        # of each task: which pair, and which part of how many
        self._pair, self._part, self._parts = np.array(parts, np.int64).reshape(-1, 3).T
        self._starts = self._blocks[:, _RESULT].copy()
        tasks = [Task(loaded, arguments, (goals,)) for arguments in self._blocks]
        count = keep_threads(threads if len(tasks) > 1 else 1)
        self._driver = Driver([tasks], count, cache=kernel_cache())
        self.bind([source for source, _ in pairs])

    def bind(self, sources: Sequence[Array]) -> None:
        """Copy from these arrays from now on, which look like those before; those are let go of."""
        self._sources = list(sources)
        for number, source in enumerate(sources):
            own = self._pair == number
            self._blocks[own, _SOURCE] = source.ctypes.data
            self._blocks[own, _SOURCE_ROW] = source.strides[0]

    @staticmethod
    def can(source: Array, goal: Array) -> bool:
        """Whether rows of one are the bytes of rows of the other."""
        return source.dtype == goal.dtype and source[:1].flags.c_contiguous

    def run(self, order: NDArray[np.int64], at: int, done: Callable[[int, int], None]) -> None:
        """Copy the rows that `order` says to row `at` of the goals and on.

        Args:
            order: numbers of rows that are there.
            at: row of the goals.
            done: called for each stretch of the goals' rows that is done, while no more is copied.
        """
        order = np.ascontiguousarray(order, np.int64)
        together = min(len(order), self._rows)  # all threads have a share of few rows, too
        self._blocks[:, _FIRST] = self._part * together // self._parts
        self._blocks[:, _LAST] = (self._part + 1) * together // self._parts
        self._blocks[:, _ROWS], self._blocks[:, _ORDER] = len(order), order.ctypes.data
        self._blocks[:, _RESULT] = self._starts + at * self._blocks[:, _RESULT_ROW]
        for number in range(-(-len(order) // self._rows)):
            self._driver.run(number, 1)
            first = number * self._rows
            done(at + first, at + min(first + self._rows, len(order)))

    def close(self) -> None:
        """Let go of the threads."""
        self._driver.close()


@cache
def _kernel() -> Loaded:
    return load([CopyRows()], cache=kernel_cache())[0]


def keep_threads(count: int) -> int:
    """Let so many threads stay for the next driver that wants them, as it takes a while to start them."""
    _held(count, os.getpid())
    return count


@cache
def _held(threads: int, process: int) -> Driver:
    """A driver that does nothing."""
    return Driver([], threads, cache=kernel_cache())
