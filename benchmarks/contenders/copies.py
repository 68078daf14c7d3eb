"""A copy of given bytes by all threads: what memory can do at the most."""

from __future__ import annotations

import itertools
import os

from benchmarks.networks import Array
from magmadnn.compiler.emit.llvm.driver import Driver
from magmadnn.compiler.emit.llvm.kernel import scratch
from magmadnn.compiler.emit.llvm.saving import Save
from magmadnn.executor.tasks import task_of

_PART_BYTES = 1 << 18


class Copy:
    """One run moves `nbytes`: half of them are read, half are written, past the caches.

    The driver's threads share it out, since what Python's take to begin, a fifth of such a copy, is not
    the memory's time.
    """

    def __init__(self, nbytes: int, total_bytes: int) -> None:
        pairs = max(2, -(-total_bytes // nbytes))
        self._copies = itertools.cycle([_copy(nbytes // 2) for _ in range(pairs)])

    def run(self) -> None:
        driver, _ = next(self._copies)
        driver.run(0, 1)


def _copy(nbytes: int) -> tuple[Driver, tuple[Array, Array]]:
    """What copies an array to another, and both."""
    source, target = scratch(nbytes), scratch(nbytes)
    source[:], target[:] = 1, 2
    tasks = [
        task_of(
            Save(), start=start, end=min(start + _PART_BYTES, nbytes), source=source, result=target
        )
        for start in range(0, nbytes, _PART_BYTES)
    ]
    return Driver([tasks], int(os.environ["OMP_NUM_THREADS"])), (source, target)
