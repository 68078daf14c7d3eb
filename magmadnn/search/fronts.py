"""Comparing trials of several objectives: who is dominated, and an order that keeps the front spread out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = Sequence[tuple[float, ...]]

_AT_ONCE = 512  # scores that move down together


def front(scores: Scores) -> list[int]:
    """The numbers of those that no other one is at least as good as in all objectives and better in one.

    Of several that are equal, the first is on the front.
    """
    values = np.array(scores, np.float64).reshape(len(scores), -1)
    order = np.lexsort(
        [np.arange(len(values)), *(-values.T[::-1])]
    )  # best of the first objective first
    kept: list[int] = []
    best: NDArray[np.float64] = np.empty((0, values.shape[1]))
    for number in order.tolist():
        value = values[number]
        if len(best) and (best >= value).all(axis=1).any():
            continue
        kept.append(number)
        best = np.vstack([best, value])
    return sorted(kept)


def ranking(scores: Scores) -> list[int]:
    """Numbers from best to worst.

    One objective: by its score. Several: front by front, where a front is what is left when those before are
    taken away; within one, those with more room around them first. Ties go to the lower number.

    Source: Deb, Pratap, Agarwal, Meyarivan, "A fast and elitist multiobjective genetic algorithm: NSGA-II",
    IEEE Trans. Evol. Comput. 6 (2002), section III.
    """
    if not scores or len(scores[0]) == 1:
        return sorted(range(len(scores)), key=lambda k: (-scores[k][0], k))
    fronts = Fronts(len(scores[0]))
    fronts.add(scores)
    found: list[int] = fronts.best(len(scores)).tolist()
    return found


class Fronts:
    """Scores in fronts, to which more come: what is there is not sorted again.

    New scores move down: at each front those that nobody there dominates stay, and take with them, to the
    next one, the members that they dominate. Fronts that dominate all that is under way are passed over by
    bisection, and one whose members all have to go is the next front as it is. With n scores in f fronts
    one more takes about n / f + f comparisons at worst, where sorting anew takes n f.

    Source: Li, Deb, Zhang, Suganthan, "Efficient non-domination level update method for steady-state
    evolutionary multiobjective optimization", IEEE Trans. Cybernetics 47 (2017), section III.

    Args:
        objectives: how many each score has.
    """

    def __init__(self, objectives: int) -> None:
        self._scores = np.empty((objectives, 0))  # by objective and number; longer than `_count`
        self._count = 0
        self._fronts: list[NDArray[np.int64]] = []  # numbers

    def __len__(self) -> int:
        return self._count

    def add(self, scores: Scores) -> None:
        """Add scores, whose numbers follow on those before."""
        first, self._count = self._count, self._count + len(scores)
        if self._count > self._scores.shape[1]:
            more = np.empty((len(self._scores), self._count))  # twice what is needed
            self._scores = np.concatenate([self._scores, more], axis=1)
        self._scores[:, first : self._count] = np.array(scores).T
        for begin in range(first, self._count, _AT_ONCE):
            self._insert(np.arange(begin, min(begin + _AT_ONCE, self._count)))

    def best(self, count: int) -> NDArray[np.int64]:
        """The numbers of the best `count`, best first."""
        return np.concatenate([np.empty(0, np.int64), *map(self._spread, self._fronts)])[:count]

    def members_of_best(self, count: int) -> NDArray[np.int64]:
        """The numbers of `best(count)` in any order, for which one front is put in order, not all."""
        sizes = np.cumsum([0, *map(len, self._fronts)])  # [k]: of the first k fronts together
        whole = int(np.searchsorted(sizes, count, side="right")) - 1
        last = [self._spread(front)[: count - sizes[whole]] for front in self._fronts[whole:][:1]]
        return np.concatenate([np.empty(0, np.int64), *self._fronts[:whole], *last])

    def _spread(self, members: NDArray[np.int64]) -> NDArray[np.int64]:
        """The members of a front, those with more room around them first."""
        members = np.sort(members)
        room = _room(self._scores[:, members].T.tolist())
        return members[sorted(range(len(members)), key=lambda k: (-room[k], k))]

    def _insert(self, moving: NDArray[np.int64]) -> None:
        """Put numbers where they belong, and those that they dominate further down."""
        level = 0
        while len(moving):
            level, free = self._first_not_above(moving, level)
            if level == len(self._fronts):
                self._fronts.append(np.empty(0, np.int64))
            there = self._fronts[level]
            if len(moving) > 1:  # who is dominated by one that is not free is not free either
                free[free] = ~self._dominated(moving[free], moving[free])
            stays, moving = moving[free], moving[~free]
            gone = self._dominated(
                there, stays
            )  # the others cannot dominate a member of this front
            if len(there) and gone.all():
                self._fronts.insert(level, stays)
            elif gone.any():
                self._fronts[level] = np.concatenate([there[~gone], stays])
                moving = np.concatenate([moving, there[gone]])
            else:
                self._fronts[level] = np.concatenate([there, stays])
            level += 1

    def _first_not_above(
        self, moving: NDArray[np.int64], level: int
    ) -> tuple[int, NDArray[np.bool_]]:
        """The first front from `level` on that does not dominate all of `moving`, and whom it does not."""
        low, high, free = level, len(self._fronts), np.ones(len(moving), np.bool_)
        while low < high:
            middle = (low + high) // 2 if low > level else low  # mostly it is the first
            dominated = self._dominated(moving, self._fronts[middle])
            if dominated.all():
                low = middle + 1
            else:
                high, free = middle, ~dominated
        return low, free

    def _dominated(self, some: NDArray[np.int64], by: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `some` one of `by` is as good as in all objectives, and better or, if equal, earlier."""
        good: Any = True
        for own in self._scores:
            good = good & (own[by] >= own[some, None])  # [some, by]
        one, other = np.nonzero(good)
        found = np.zeros(len(some), np.bool_)
        later = by[other] >= some[one]
        if later.any():  # ones that come later have to be better somewhere
            better: Any = ~later
            for own in self._scores:
                better = better | (own[by[other]] > own[some[one]])
            one = one[better]
        found[one] = True
        return found


def _room(scores: Scores) -> list[float]:
    """The crowding distance of each: infinite at the ends of an objective."""
    room = [0.0] * len(scores)
    for axis in range(len(scores[0])):
        order = sorted(range(len(scores)), key=lambda k: (scores[k][axis], k))
        span = scores[order[-1]][axis] - scores[order[0]][axis]
        room[order[0]] = room[order[-1]] = math.inf
        if span > 0:
            for before, k, after in zip(order, order[1:], order[2:], strict=False):
                room[k] += (scores[after][axis] - scores[before][axis]) / span
    return room
