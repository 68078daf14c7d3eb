"""The FMA peak of several cores at once: what shares of peak are shares of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from magmadnn.compiler.emit.llvm import kernel
from magmadnn.compiler.emit.llvm.peak import CHAINS, Fmas
from magmadnn.compiler.emit.llvm.target import host


class AllCores:
    """One run does `steps` rounds of independent FMAs on each thread; `check` says how many FLOPs."""

    def __init__(self, threads: int, dtype: str, steps: int) -> None:
        made = Fmas(dtype)
        self._data = [np.zeros(64, dtype) for _ in range(threads)]
        self._blocks = [kernel.block(made, steps=steps, data=data) for data in self._data]
        self._scratch = [kernel.scratch(64) for _ in range(threads)]
        self._kernel = kernel.load([made])[0]
        self._pool = ThreadPoolExecutor(threads)
        item = np.dtype(dtype).itemsize
        self._flops = 2.0 * steps * CHAINS * host().lanes(item) * threads

    def run(self) -> None:
        list(self._pool.map(self._kernel, self._blocks, self._scratch))

    def check(self) -> float:
        return self._flops
