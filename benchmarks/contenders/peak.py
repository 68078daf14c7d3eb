"""The FMA peak of several cores at once: what shares of peak are shares of."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np

from benchmarks.harness.machine import cores
from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.llvm.driver.peak import Fmas, chains
from magmadnn.compiler.llvm.ir.target import host


class AllCores:
    """One run does `steps` rounds of independent FMAs on each thread; `check` says how many FLOPs."""

    def __init__(self, threads: int, dtype: str, steps: int) -> None:
        made = Fmas(dtype)
        self._data = [np.zeros(64, dtype) for _ in range(threads)]
        self._blocks = [kernel.block(made, steps=steps, data=data) for data in self._data]
        self._scratch = [kernel.scratch(64) for _ in range(threads)]
        self._kernel = kernel.load([made])[0]
        numbers = itertools.cycle(cores())
        # each thread on a core of its own: left alone, two may share one for the whole run
        self._pool = ThreadPoolExecutor(threads, initializer=lambda: _pin(next(numbers)))
        self._start = Barrier(threads)
        item = np.dtype(dtype).itemsize
        self._flops = 2.0 * steps * chains(host()) * host().lanes(item) * threads

    def run(self) -> None:
        list(self._pool.map(self._one, self._blocks, self._scratch))

    def _one(self, block: Any, scratch: Any) -> None:
        self._start.wait()  # so that no thread takes two
        self._kernel(block, scratch)

    def check(self) -> float:
        return self._flops


def _pin(core: int) -> None:
    """Keep this thread on a core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
