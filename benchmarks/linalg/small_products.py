"""Products of 10,000 small matrices beside NumPy's, and beside a sum, which moves the same bytes.

`taskset -c 0,1 python benchmarks/linalg/small_products.py [THREADS]`: microseconds, least and median.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import magmadnn as md

COUNT, BLOCKS, SECONDS = 10_000, 6, 0.1


def times(*calls: Callable[[], object]) -> list[tuple[float, float]]:
    """Of each call the least and the median, in blocks that take turns."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(BLOCKS):
        for call, taken in zip(calls, found, strict=True):
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                begin = time.perf_counter()
                call()
                taken.append(1e6 * (time.perf_counter() - begin))
    return [(min(taken), float(np.median(taken))) for taken in found]


def main() -> None:
    """Print a row for each size."""
    md.set_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    rng = np.random.default_rng(0)
    print(f"{'':>12} {'NumPy':>17} {'magmadnn':>17} {'np.add':>17} NumPy / ours, ours / np.add")
    for dtype in ("float64", "float32"):
        for n in (4, 8, 16, 32):
            x, w = (rng.normal(size=(COUNT, n, n)).astype(dtype) for _ in range(2))
            out, first, second = np.empty_like(x), md.asarray(x), md.asarray(w)
            found = times(
                lambda x=x, w=w, out=out: np.matmul(x, w, out=out),
                lambda first=first, second=second: first @ second,
                lambda x=x, w=w, out=out: np.add(x, w, out=out),
            )
            cells = " ".join(f"{least:8.0f} {median:8.0f}" for least, median in found)
            ratios = found[0][0] / found[1][0], found[1][0] / found[2][0]
            print(f"{dtype} {n:>4} {cells} {ratios[0]:6.2f} {ratios[1]:6.2f}", flush=True)


if __name__ == "__main__":
    main()
