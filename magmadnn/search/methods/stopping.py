"""Methods that end poor trials early: successive halving, ASHA, and the median rule.

They train all trials for few epochs, and the better ones further. What they decide depends on results in the
logical order only (`method.py`), so that ASHA here promotes by cohorts: after each cohort of new trials,
those that are among the best 1/eta of all that have arrived at a rung so far.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.search.fronts import Fronts
from magmadnn.search.spaces.space import Space
from magmadnn.training.arguments import at_least

from .method import Arrived
from .plain_methods import RandomSearch

Ranked = tuple[float, int]  # minus the score, number


@dataclass
class _Fronted:
    """Trials that have arrived at a rung, of several objectives.

    Attributes:
        fronts: of their scores.
        numbers: of the trials, in the order in which they arrived.
        waits: for each whether it has not gone on.
    """

    fronts: Fronts
    numbers: list[int] = field(default_factory=list)
    waits: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))


class _Rungs(RandomSearch):
    """Random points, trained by rungs of growing numbers of epochs."""

    label = ""


class Asha(_Rungs):
    """Asynchronous successive halving: trials go on that are among the best 1/eta of a rung so far.

    Rungs end after epochs / eta**k epochs for k = ..., 2, 1, 0, rounded, at least `least_epochs`.

    Source: Li, Jamieson, Rostamizadeh, Gonina, Hardt, Recht, Talwalkar, "A system for massively parallel
    hyperparameter tuning", MLSys 2020, algorithm 2. There a worker promotes whatever is promotable when it is
    free; here that is decided after each cohort, so that the number of workers changes nothing.

    With several objectives "best" is the order of NSGA-II: front by front, those with more room first.

    Args:
        space: what is searched.
        seed: of all that is drawn.
        eta: one in so many goes on.
        least_epochs: of the first rung.
        cohort: new trials between two decisions; eta * eta where it is left out.

    Raises:
        ArgumentError: if one is out of range.
    """

    label = "asha"
    least = 0  # that go on from a rung: ASHA waits for more to arrive

    def __init__(
        self,
        space: Space,
        seed: int,
        *,
        eta: int = 3,
        least_epochs: int = 1,
        cohort: int | None = None,
    ) -> None:
        super().__init__(space, seed)
        at_least(f"search: {self.label}: eta", eta, 2)
        at_least(f"search: {self.label}: least_epochs", least_epochs, 1)
        if cohort is not None:
            at_least(f"search: {self.label}: cohort", cohort, 1)
        self._eta, self._least = int(eta), int(least_epochs)
        self.cohort = self._eta**2 if cohort is None else int(cohort)
        self._ranked: list[list[Ranked]] = []  # at each rung, best first
        self._waiting: list[list[Ranked]] = []  # those of them that have not gone on
        self._fronts: list[_Fronted] = []  # at each rung, of several objectives

    def settings(self) -> dict[str, Any]:
        """Its arguments."""
        return {"eta": self._eta, "least_epochs": self._least, "cohort": self.cohort}

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """epochs / eta**k, as long as that is at least `least_epochs`."""
        found = [epochs]
        while (next_one := round(epochs / self._eta ** len(found))) >= self._least:
            if next_one == found[-1] or next_one < 1:
                break
            found.append(next_one)
        return tuple(reversed(found))

    def promoted(self, cohort: int, rung: int, trials: Sequence[Arrived]) -> list[int]:
        """Those among the best 1/eta of all that have arrived at the rung, and have not gone on before."""
        while len(self._ranked) <= rung:
            self._ranked.append([])
            self._waiting.append([])
        if trials and len(trials[0].scores) > 1:
            return self._promoted_by_fronts(rung, trials)
        ranked, waiting = self._ranked[rung], self._waiting[rung]
        for trial in trials:
            insort(ranked, (-trial.scores[0], trial.number))
            insort(waiting, (-trial.scores[0], trial.number))
        count, found = max(len(ranked) // self._eta, self.least), []
        while waiting and bisect_left(ranked, waiting[0]) < count:
            found.append(waiting.pop(0)[1])
        return found

    def _promoted_by_fronts(self, rung: int, trials: Sequence[Arrived]) -> list[int]:
        while len(self._fronts) <= rung:
            self._fronts.append(_Fronted(Fronts(len(trials[0].scores))))
        here = self._fronts[rung]
        here.fronts.add([trial.scores for trial in trials])
        here.numbers += [trial.number for trial in trials]
        here.waits = np.concatenate([here.waits, np.ones(len(trials), np.bool_)])
        best = here.fronts.members_of_best(max(len(here.fronts) // self._eta, self.least))
        found = best[here.waits[best]]
        here.waits[found] = False
        return [here.numbers[k] for k in found.tolist()]


class Halving(Asha):
    """Successive halving: all trials are trained for few epochs, the best 1/eta of them further, and so on.

    It is ASHA with all trials in one cohort, but that at least one goes on. Rungs are as there.

    Source: Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
    AISTATS 2016, algorithm 1.

    Args:
        space: what is searched.
        seed: of all that is drawn.
        trials: how many begin.
        eta: one in so many goes on.
        least_epochs: of the first rung.
    """

    label = "halving"
    least = 1

    def __init__(
        self,
        space: Space,
        seed: int,
        *,
        trials: int,
        eta: int = 3,
        least_epochs: int = 1,
    ) -> None:
        super().__init__(space, seed, eta=eta, least_epochs=least_epochs, cohort=trials)

    def settings(self) -> dict[str, Any]:
        """Its arguments."""
        return {"trials": self.cohort, "eta": self._eta, "least_epochs": self._least}


class MedianStop(_Rungs):
    """Ends a trial whose best score so far is below the median of the others' averages up to that epoch.

    The others are the trials of earlier cohorts; those that were ended count with the average of what they
    had. A trial of the first cohort is never ended. With several objectives a trial ends where it is below
    the median in all of them.

    Source: Golovin, Solnik, Moitra, Kochanski, Karro, Sculley, "Google Vizier: a service for black-box
    optimization", KDD 2017, section 3.2 (automated stopping).

    Args:
        space: what is searched.
        seed: of all that is drawn.
        interval: epochs between two decisions; a tenth of all where it is left out, at least one.
        cohort: new trials between two changes of the median.

    Raises:
        ArgumentError: if one is out of range.
    """

    label = "median"

    def __init__(
        self, space: Space, seed: int, *, interval: int | None = None, cohort: int = 8
    ) -> None:
        super().__init__(space, seed)
        if interval is not None:
            at_least("search: median: interval", interval, 1)
        at_least("search: median: cohort", cohort, 1)
        self._interval, self.cohort = interval, int(cohort)
        self._scores: dict[int, list[tuple[float, ...]]] = {}  # of each trial, by rung
        self._members: dict[int, list[int]] = {}  # of each cohort
        self._averages: dict[tuple[int, int], list[float]] = {}  # by rung and objective, in order

    def settings(self) -> dict[str, Any]:
        """Its arguments."""
        return {"interval": self._interval, "cohort": self.cohort}

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Every `interval` epochs, and the last."""
        interval = self._interval or max(1, epochs // 10)
        return (*range(interval, epochs, interval), epochs)

    def promoted(self, cohort: int, rung: int, trials: Sequence[Arrived]) -> list[int]:
        """Those that are not below the median of earlier cohorts."""
        for trial in trials:
            self._scores.setdefault(trial.number, []).append(trial.scores)
        if rung == 0:
            self._members[cohort] = [trial.number for trial in trials]
        found = [trial.number for trial in trials if self._is_good(trial.number, rung)]
        for number in self._members[cohort]:
            for axis, scores in enumerate(zip(*self._scores[number][: rung + 1], strict=True)):
                ordered = self._averages.setdefault((rung, axis), [])
                insort(ordered, sum(scores) / len(scores))
        return found

    def _is_good(self, number: int, rung: int) -> bool:
        for axis, scores in enumerate(zip(*self._scores[number], strict=True)):
            others = self._averages.get((rung, axis))
            if not others or max(scores) >= _median(others):
                return True
        return False


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
