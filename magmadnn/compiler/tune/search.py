"""The search for the fastest way of a product: many ways, most of which are soon left out.

Each round runs all ways that are left, in turns, so that whatever disturbs the machine disturbs all. The best
one then meets the emitter's rule in pairs, and takes its place only if it is faster by a clear margin in the
minimum, in the median, and in nearly every pair. Ways with a tile of their own need more of a margin, since
they cost code: a program whose products have several tiles compiles longer.

A search goes on step by step, so that it may run between other work.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from magmadnn.compiler.llvm.gemm.cuts import BETWEEN, RULE

from .file import Record

Run = Callable[[], None]

_WORTH = 0.97  # of the rule's time: what another way must do to be chosen,
_WORTH_TILE = 0.95  # and one with a tile of its own
# Times the best: how near a tile must be, by its own rule, for its cuts to be tried.
_TILE_NEAR = 1.06
# So many rounds; who is near the best stays; at most so many.
_ROUNDS = ((2, 1.10, 8), (4, 1.05, 4), (6, 1.03, 3))
_PAIRS = 9
_LOST = 1  # pairs that may be lost
RUN_SECONDS = 2e-3  # that a run of a pair takes at least


Steps = Generator[None, None, None]


class Search:
    """Measures the ways of one product.

    Args:
        runs: for each way, by name, a call.
        clock: seconds, from any start.
        run_seconds: what is timed in a pair takes so long at least: several calls, if one takes less.
    """

    def __init__(
        self,
        runs: Mapping[str, Run],
        clock: Callable[[], float],
        run_seconds: float = RUN_SECONDS,
    ) -> None:
        self._runs, self._clock, self._run_seconds = runs, clock, run_seconds
        self._times: dict[str, list[float]] = {}

    def until(self, end: float) -> Record | None:
        """What `steps` finds; None where that is not before `end`, by the clock."""
        steps = self.steps()
        while self._clock() < end:
            if (record := next(steps)) is not None:
                return record
        return None

    def steps(self) -> Iterator[Record | None]:
        """None after each run that was timed; then the way to choose, and the best time of each that ran."""
        names = [n for n in self._runs if BETWEEN not in n or n.endswith(BETWEEN + RULE)]
        yield from self._round(names)  # fetches code and matrices into the caches
        self._times.clear()
        for _ in range(_ROUNDS[0][0]):
            yield from self._round(names)
        best = min(map(self._best, names))
        near = {n.rpartition(BETWEEN)[0] for n in names if self._best(n) <= _TILE_NEAR * best}
        rest = [n for n in self._runs if n not in names and n.rpartition(BETWEEN)[0] in near]
        for _ in range(_ROUNDS[0][0]):
            yield from self._round(rest)
        left = [*names, *rest]
        for rounds, distance, most in _ROUNDS:
            left = self._nearest(left, distance, most)
            for _ in range(rounds):
                yield from self._round(left)
        order = sorted(set(left) - {RULE}, key=self._best)
        plain = [n for n in order if BETWEEN not in n]
        choice = RULE
        for name in (*order[:1], *plain[:1]):
            if (yield from self._wins(name)):
                choice = name
                break
        yield Record(choice, {n: round(self._best(n) * 1e6, 1) for n in self._times})

    def _nearest(self, names: Sequence[str], distance: float, most: int) -> list[str]:
        """The best ways, and the rule."""
        best = min(map(self._best, names))
        near = sorted((n for n in names if self._best(n) <= distance * best), key=self._best)
        return [RULE, *(n for n in near[:most] if n != RULE)]

    def _best(self, name: str) -> float:
        return min(self._times[name])

    def _round(self, names: Sequence[str]) -> Steps:
        for name in names:
            self._times.setdefault(name, []).append(self._timed(name, 1))
            yield

    def _timed(self, name: str, times: int) -> float:
        """Seconds of one run, the mean of `times`."""
        run, before = self._runs[name], self._clock()
        for _ in range(times):
            run()
        return (self._clock() - before) / times

    def _wins(self, name: str) -> Generator[None, None, bool]:
        """Whether a way is faster than the rule, and not by chance."""
        worth = _WORTH_TILE if BETWEEN in name else _WORTH
        if self._best(name) > worth * self._best(RULE):
            return False
        times = max(math.ceil(self._run_seconds / max(self._best(name), 1e-9)), 1)
        pairs = []
        for number in range(_PAIRS):
            found = {}
            for each in (name, RULE) if number % 2 else (RULE, name):
                found[each] = self._timed(each, times)
                yield
            pairs.append((found[name], found[RULE]))
        ratios = [a / b for a, b in pairs]
        lowest = min(a for a, _ in pairs) / min(b for _, b in pairs)
        lost = sum(ratio >= 1 for ratio in ratios)
        return lost <= _LOST and max(lowest, statistics.median(ratios)) <= worth
