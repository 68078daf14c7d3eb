"""Measures what a core of this machine can do at most, in some hundredths of a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from magmadnn.compiler.rates import Rates

_COPIED = 1 << 26  # bytes; more than the caches of most machines hold for one core
_SECONDS = 0.04  # of each measurement


def measured_rates() -> Rates:
    """The FMA peak and the bandwidth of one core, each the best of a few short runs."""
    from magmadnn.compiler.llvm.driver.peak import Peak

    flops = {}
    for dtype in ("float32", "float64"):
        peak = Peak(dtype)
        _repeat(peak.sample)
        flops[dtype] = peak.flops_per_second
    source, goal = np.ones(_COPIED, np.uint8), np.ones(_COPIED, np.uint8)
    best = _repeat(lambda: np.copyto(goal, source))
    return Rates(flops, 2 * _COPIED / best)  # each byte is read and written


def _repeat(action: Callable[[], None]) -> float:
    """The shortest time of an action that is repeated for a while, at least three times."""
    best, count, end = float("inf"), 0, time.perf_counter() + _SECONDS
    while count < 3 or time.perf_counter() < end:
        begun = time.perf_counter()
        action()
        best, count = min(best, time.perf_counter() - begun), count + 1
    return best
