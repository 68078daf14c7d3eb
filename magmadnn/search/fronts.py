"""Comparing trials of several objectives: who is dominated, and an order that keeps the front spread out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Scores = Sequence[tuple[float, ...]]


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
    left, found = list(range(len(scores))), []
    while left:
        members = [left[k] for k in front([scores[k] for k in left])]
        room = _room([scores[k] for k in members])
        found += [members[k] for k in sorted(range(len(members)), key=lambda k: (-room[k], k))]
        taken = set(members)
        left = [k for k in left if k not in taken]
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
