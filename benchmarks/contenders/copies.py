"""A copy of given bytes by all threads: what memory can do at the most."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np


class Copy:
    """One run moves `nbytes`: half of them are read, half are written."""

    def __init__(self, nbytes: int, total_bytes: int) -> None:
        self._threads = int(os.environ["OMP_NUM_THREADS"])
        half = nbytes // 2
        self._pairs = [
            (np.ones(half, np.uint8), np.ones(half, np.uint8))
            for _ in range(max(2, -(-total_bytes // nbytes)))
        ]
        self._pool = ThreadPoolExecutor(self._threads)
        self._next = 0

    def run(self) -> None:
        source, target = self._pairs[self._next % len(self._pairs)]
        self._next += 1
        if self._threads == 1:
            np.copyto(target, source)
            return
        edges = np.linspace(0, len(source), self._threads + 1).astype(int) // 64 * 64
        edges[-1] = len(source)
        pieces = [slice(a, b) for a, b in pairwise(edges)]
        list(self._pool.map(lambda piece: np.copyto(target[piece], source[piece]), pieces))
