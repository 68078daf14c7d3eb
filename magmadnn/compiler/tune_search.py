"""The patient search for the fastest way of a product: many ways, most of which are soon left out.

Each round runs all ways that are left, in turns, so that whatever disturbs the machine disturbs all. The best
one then meets the emitter's rule in pairs, and takes its place only if it is faster by a clear margin in the
minimum, in the median, and in nearly every pair. Ways with a tile of their own need more of a margin, since
they cost code: a program whose products have several tiles compiles longer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from .emit.llvm.gemm_cuts import BETWEEN, RULE
from .tune_file import Record

Run = Callable[[], None]

_WORTH = 0.97  # of the rule's time: what another way must do to be chosen,
_WORTH_TILE = 0.95  # and one with a tile of its own
# Times the best: how near a tile must be, by its own rule, for its cuts to be tried.
_TILE_NEAR = 1.06
# So many rounds; who is near the best stays; at most so many.
_ROUNDS = ((2, 1.10, 8), (4, 1.05, 4), (6, 1.03, 3))
_PAIRS = 9
_LOST = 1  # pairs that may be lost
_RUN_SECONDS = 2e-3  # that a run of a pair takes at least


class Search:
    """Measures the ways of one product.

    Args:
        runs: for each way, by name, a call.
        clock: seconds, from any start.
        end: when to stop, by the clock.
    """

    def __init__(self, runs: Mapping[str, Run], clock: Callable[[], float], end: float) -> None:
        self._runs, self._clock, self._end = runs, clock, end
        self._times: dict[str, list[float]] = {}

    def record(self) -> Record | None:
        """The way to choose, and the best time of each that was tried; None where time ran out."""
        try:
            return self._record()
        except TimeoutError:
            return None

    def _record(self) -> Record:
        names = [n for n in self._runs if BETWEEN not in n or n.endswith(BETWEEN + RULE)]
        self._round(names)  # fetches code and matrices into the caches
        self._times.clear()
        for _ in range(_ROUNDS[0][0]):
            self._round(names)
        best = min(map(self._best, names))
        near = {n.rpartition(BETWEEN)[0] for n in names if self._best(n) <= _TILE_NEAR * best}
        rest = [n for n in self._runs if n not in names and n.rpartition(BETWEEN)[0] in near]
        for _ in range(_ROUNDS[0][0]):
            self._round(rest)
        left = [*names, *rest]
        for rounds, distance, most in _ROUNDS:
            left = self._nearest(left, distance, most)
            for _ in range(rounds):
                self._round(left)
        order = sorted(set(left) - {RULE}, key=self._best)
        plain = [n for n in order if BETWEEN not in n]
        choice = next((n for n in (*order[:1], *plain[:1]) if self._wins(n)), RULE)
        return Record(choice, {n: round(self._best(n) * 1e6, 1) for n in self._times})

    def _nearest(self, names: Sequence[str], distance: float, most: int) -> list[str]:
        """The best ways, and the rule."""
        best = min(map(self._best, names))
        near = sorted((n for n in names if self._best(n) <= distance * best), key=self._best)
        return [RULE, *(n for n in near[:most] if n != RULE)]

    def _best(self, name: str) -> float:
        return min(self._times[name])

    def _round(self, names: Sequence[str]) -> None:
        for name in names:
            self._times.setdefault(name, []).append(self._timed(name, 1))

    def _timed(self, name: str, times: int) -> float:
        """Seconds of one run, the mean of `times`."""
        before = self._clock()
        if before >= self._end:
            raise TimeoutError
        run = self._runs[name]
        for _ in range(times):
            run()
        return (self._clock() - before) / times

    def _wins(self, name: str) -> bool:
        """Whether a way is faster than the rule, and not by chance."""
        worth = _WORTH_TILE if BETWEEN in name else _WORTH
        if self._best(name) > worth * self._best(RULE):
            return False
        times = math.ceil(_RUN_SECONDS / max(self._best(name), 1e-9))
        pairs = []
        for number in range(_PAIRS):
            order = (name, RULE) if number % 2 else (RULE, name)
            found = {n: self._timed(n, times) for n in order}
            pairs.append((found[name], found[RULE]))
        ratios = [a / b for a, b in pairs]
        lowest = min(a for a, _ in pairs) / min(b for _, b in pairs)
        lost = sum(ratio >= 1 for ratio in ratios)
        return lost <= _LOST and max(lowest, statistics.median(ratios)) <= worth
