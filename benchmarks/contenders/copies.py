"""A copy of given bytes by all threads: what memory can do at the most."""

from __future__ import annotations

import itertools
import os

from magmadnn.compiler.llvm.kernel import scratch
from magmadnn.runtime.cpu.sliced.slices import Saved


class Copy:
    """One run moves `nbytes`: half of them are read, half are written, past the caches.

    The driver's threads share it out, since what Python's take to begin, a fifth of such a copy, is not
    the memory's time.
    """

    def __init__(self, nbytes: int, total_bytes: int) -> None:
        pairs = max(2, -(-total_bytes // nbytes))
        self._copies = itertools.cycle([_copy(nbytes // 2) for _ in range(pairs)])

    def run(self) -> None:
        next(self._copies).save()


def _copy(nbytes: int) -> Saved:
    """What copies an array to another, both of them written before."""
    source = scratch(nbytes)
    source[:] = 1
    saved = Saved([source], int(os.environ["OMP_NUM_THREADS"]))
    saved.save()
    return saved
