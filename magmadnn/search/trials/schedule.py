"""Which training comes next: the same for any number of workers.

Trainings have a logical order: by cohort, then rung, then trial. A stage, all trainings of one cohort at one
rung, is decided once the stages that it depends on are complete, and these come before it in the order.
Workers take the first training that is ready; while a stage is incomplete they go on with the next cohort,
unless the method learns from results. Where the search ends early, by `until` or a budget of epochs, it
ends at a place in the logical order: what workers did beyond it does not count.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from magmadnn.search.methods.method import Arrived, Method
from magmadnn.search.spaces.space import Point

from .records import Job, Key, Outcome

Scored = Callable[[Outcome], tuple[float, ...]]


@dataclass
class _Stage:
    jobs: list[int]  # trials
    missing: int
    epochs: list[int]  # [k]: of the first k jobs together, all of them last


@dataclass(frozen=True)
class Limits:
    """Where a search ends.

    Attributes:
        trials: most trials; None: as many as the method has.
        epochs: most epochs, of all trials together in the logical order.
        until: of an outcome, whether the search ends with it.
    """

    trials: int | None = None
    epochs: int | None = None
    until: Callable[[Outcome], bool] = field(default=lambda outcome: False)


class Schedule:
    """The trainings of a search.

    Args:
        method: decides on points, and on who goes on.
        rungs: of a point: after how many epochs it is decided who goes on.
        limits: where it ends.
        scored: scores of an outcome, higher is better; empty where it has none.
        first: points that come before the method's own.
        known: results that are there already, by trial and rung.
        asked: points of cohorts that the log holds.
    """

    def __init__(
        self,
        method: Method,
        rungs: Callable[[Point], tuple[int, ...]],
        limits: Limits,
        scored: Scored,
        first: Sequence[Point] = (),
        known: Mapping[tuple[int, int], tuple[Job, Outcome]] | None = None,
        asked: Mapping[int, Sequence[Point]] | None = None,
    ) -> None:
        self._method, self._rungs, self._limits, self._scored = method, rungs, limits, scored
        self._first, self._known, self._asked = list(first), dict(known or {}), dict(asked or {})
        self._known_points = {trial: job.point for (trial, _), (job, _) in self._known.items()}
        self._points: list[Point] = []
        self._stages: dict[tuple[int, int], _Stage] = {}
        self._order: list[tuple[int, int]] = []  # of the stages
        self._complete: list[int] = []  # for each rung, how many leading cohorts are complete there
        self._ready: list[Key] = []
        self._jobs: dict[Key, Job] = {}
        self._place: dict[Key, int] = {}  # in its stage
        self._results: dict[Key, Outcome] = {}
        self._cohorts, self._told, self._exhausted = 0, 0, False
        self._end: Key | None = None  # the last that counts
        self._planned = 0  # epochs of all jobs
        self.newly_asked: list[tuple[int, list[Point]]] = []

    # --- what there is to do -----------------------------------------------------------------------

    def next_job(self) -> Job | None:
        """The next training, or None where nothing can begin now."""
        while True:
            if not self._ready and not self._open_cohort():
                return None
            key = heapq.heappop(self._ready)
            if self._is_beyond(key):
                return None
            job = self._jobs[key]
            known = self._known.pop((job.trial, job.rung), None)
            if known is None:
                return job
            self.arrive(job, known[1])

    def next_group(self, most: Callable[[int], int]) -> list[Job]:
        """The next training with those of its stage that it is trained together with.

        A stage is cut into groups in the order of numbers, so that who is with whom does not depend on which
        worker is free.

        Args:
            most: of the number of a stage's trainings, how many a group has at most.
        """
        first = self.next_job()
        if first is None:
            return []
        found, size = [first], most(len(self._stages[first.key[:2]].jobs))
        while self._ready:
            key = self._ready[0]
            if key[:2] != first.key[:2] or self._is_beyond(key):
                break
            if self._place[key] // size != self._place[first.key] // size:
                break
            heapq.heappop(self._ready)
            job = self._jobs[key]
            known = self._known.pop((job.trial, job.rung), None)
            if known is None:
                found.append(job)
            else:
                self.arrive(job, known[1])
        return found

    def arrive(self, job: Job, outcome: Outcome) -> None:
        """A training has ended."""
        self._results[job.key] = outcome
        if self._limits.until(outcome) and (self._end is None or job.key < self._end):
            self._end = job.key
        stage = self._stages[job.cohort, job.rung]
        stage.missing -= 1
        if not stage.missing:
            self._close(job.rung)

    def results(self) -> Iterator[tuple[Job, Outcome]]:
        """The trainings that count and have ended, in the logical order."""
        left = self._limits.epochs
        for key in sorted(self._jobs):
            if self._end is not None and key > self._end:
                return
            if left is not None:
                if left <= 0:
                    return
                left -= self._jobs[key].new_epochs
            if key in self._results:
                yield self._jobs[key], self._results[key]

    @property
    def knows_more(self) -> bool:
        """Whether there are results that were known before and have not had their turn."""
        return bool(self._known)

    def leaves_out(self, key: Key) -> bool:
        """Whether a training with this key cannot count, whatever those that are missing bring."""
        if key in self._jobs:
            return self._is_beyond(key)
        if self._end is not None and key > self._end:
            return True
        return self._exhausted and key[0] >= self._cohorts

    @property
    def count(self) -> int:
        """How many trials have been decided on."""
        return len(self._points)

    @property
    def arrived_count(self) -> int:
        """How many trainings have ended."""
        return len(self._results)

    # --- cohorts and rungs -------------------------------------------------------------------------

    def _open_cohort(self) -> bool:
        """Decide on a further cohort, if that can be done now."""
        cohort, first = self._cohorts, len(self._points)
        if self._exhausted or (self._end is not None and (cohort, 0, first) > self._end):
            return False
        own = self._first if cohort == 0 else []
        if self._method.learns and self._told < cohort:
            return False
        count = self._method.cohort if self._limits.trials is None else self._limits.trials - first
        count = min(max(self._method.cohort, len(own)), count)
        if count <= 0 or self._spent():
            self._exhausted = True
            return False
        points = self._points_of(cohort, first, count, own)
        if len(points) < count:
            self._exhausted = True
        if not points:
            return False
        self._cohorts += 1
        self._points += points
        self._open(cohort, 0, list(range(first, first + len(points))))
        return True

    def _points_of(self, cohort: int, first: int, count: int, own: list[Point]) -> list[Point]:
        """The points of a cohort: from the log where it holds all of them, else from the method."""
        numbers = range(first, first + count)
        if cohort in self._asked:
            points = list(self._asked[cohort])
        elif all(number in self._known_points for number in numbers):
            points = [self._known_points[number] for number in numbers]
        else:
            own = own[:count]
            self._method.known(own)
            more = count - len(own)
            points = own + (self._method.points(first + len(own), more, cohort) if more else [])
            if self._method.keeps_points:
                self.newly_asked.append((cohort, points))
            return points
        self._method.known(points)
        return points

    def _open(self, cohort: int, rung: int, trials: list[int]) -> None:
        """Trials of a stage may begin."""
        if rung == len(self._complete):
            self._complete.append(0)
        stage = self._stages[cohort, rung] = _Stage(trials, len(trials), [0])
        insort(self._order, (cohort, rung))
        for place, trial in enumerate(trials):
            point = self._points[trial]
            job = Job(trial, cohort, rung, point, self._rungs(point)[: rung + 1])
            self._jobs[job.key], self._place[job.key] = job, place
            stage.epochs.append(stage.epochs[-1] + job.new_epochs)
            heapq.heappush(self._ready, job.key)
        self._planned += stage.epochs[-1]
        if not trials:
            self._close(rung)

    def _close(self, rung: int) -> None:
        """A stage at this rung is complete; decide on those that depend on it."""
        while True:
            cohort = self._complete[rung]
            stage = self._stages.get((cohort, rung))
            if stage is None or stage.missing:
                return
            self._complete[rung] += 1
            if rung + 1 < self._height():
                arrived = [self._arrived(cohort, rung, trial) for trial in stage.jobs]
                chosen = self._method.promoted(cohort, rung, [a for a in arrived if a.scores])
                self._open(cohort, rung + 1, sorted(chosen))
            else:
                self._tell(cohort)

    def _tell(self, cohort: int) -> None:
        """All of a cohort has arrived at the last rung; those before have too."""
        if self._method.learns:
            stage = self._stages[cohort, 0]
            self._method.arrived(cohort, [self._arrived(cohort, 0, t) for t in stage.jobs])
        self._told = cohort + 1

    def _height(self) -> int:
        """How many rungs there are."""
        return len(self._rungs(self._points[0]))

    def _arrived(self, cohort: int, rung: int, trial: int) -> Arrived:
        outcome = self._results[cohort, rung, trial]
        return Arrived(trial, self._points[trial], self._scored(outcome))

    # --- ends --------------------------------------------------------------------------------------

    def _is_beyond(self, key: Key) -> bool:
        """Whether what stands there in the logical order cannot count."""
        if self._end is not None and key > self._end:
            return True
        if self._limits.epochs is None or self._planned < self._limits.epochs:
            return False
        return self._epochs_before(key) >= self._limits.epochs

    def _epochs_before(self, key: Key) -> int:
        """Epochs of all jobs that stand before one; few stages stand behind it."""
        here = bisect_left(self._order, key[:2])
        behind = sum(self._stages[stage].epochs[-1] for stage in self._order[here:])
        return self._planned - behind + self._stages[key[:2]].epochs[self._place[key]]

    def _spent(self) -> bool:
        """Whether a further cohort is beyond the budget of epochs."""
        return self._limits.epochs is not None and self._planned >= self._limits.epochs
