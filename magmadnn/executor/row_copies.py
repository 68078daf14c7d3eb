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
_FIRST, _LAST, _ROWS, _ORDER, _RESULT, _ROW_BYTES = (
    CopyRows.slots.index(name) for name in ("row0", "row1", "rows", "order", "result", "row_bytes")
)


class RowCopies:
    """Copies rows of arrays, in an order, into arrays of the same dtype.

    Args:
        pairs: arrays that rows are copied from, and those in C order that they are copied to, as `can` says.
        rows: how many are copied in one go.
        threads: that copy, the caller's included.
    """

    def __init__(self, pairs: Sequence[tuple[Array, Array]], rows: int, threads: int) -> None:
        self._rows = rows
        kernel, loaded = CopyRows(), _kernel()
        blocks = []
        for source, goal in sorted(pairs, key=lambda pair: pair[1][:1].nbytes):  # long parts last
            nbytes = goal[:1].nbytes
            parts = max(min(threads * _SHARES, rows * nbytes // _LEAST_BYTES), 1)
            one = block(
                kernel, row0=0, row1=0, batch_rows=rows, rows=0,
                ahead=-(-_AHEAD_BYTES // max(nbytes, 1)), order=0, source=source,
                source_row=source.strides[0], result=goal, row_bytes=nbytes,
            )  # fmt: skip
            ends = np.arange(parts + 1) * rows // parts
            blocks.append(np.tile(one, (parts, 1)))
            blocks[-1][:, _FIRST], blocks[-1][:, _LAST] = ends[:-1], ends[1:]
        self._blocks = np.concatenate([np.empty((0, len(kernel.slots)), np.int64), *blocks])
        self._starts = self._blocks[:, _RESULT].copy()
        tasks = [Task(loaded, arguments, (pairs,)) for arguments in self._blocks]
        count = threads if len(tasks) > 1 else 1
        _held(count, os.getpid())
        self._driver = Driver([tasks], count, cache=kernel_cache())

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
        self._blocks[:, _ROWS], self._blocks[:, _ORDER] = len(order), order.ctypes.data
        self._blocks[:, _RESULT] = self._starts + at * self._blocks[:, _ROW_BYTES]
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


@cache
def _held(threads: int, process: int) -> Driver:
    """A driver that does nothing: threads stay for the next copies, as it takes a while to start them."""
    return Driver([], threads, cache=kernel_cache())
