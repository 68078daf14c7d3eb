"""What equal tables for any number of workers cost: the time that workers of a search wait.

python -m benchmarks.cpu.search_idle [--trials 200] [--epochs 27] [--draws 20] [--spread 0.5]

The order of trainings is that of `md.search` itself (`magmadnn.search.trials.schedule`), its clock is
simulated: an epoch of trial k takes exp(spread * z_k) seconds, z_k normal, each trial has a score by chance,
and handing out costs nothing. "grouped" cuts trials into the groups that `md.search.run` trains in one call
on small data, which take as long as their trials together; "single" hands out one at a time, as with `until=`
or large data. "any" is a scheduler that gives a free worker whatever may begin: the next trial, which
`random`, `cem` and `tpe` would draw from what has arrived by then; for ASHA a trial that is among the best
third of its rung at that moment, else a new one; `halving` waits at its rungs as here, since it compares all
of them. Its table depends on who was faster. Shown is the share of
all workers' time that passes waiting, the mean over draws, and how many times longer the search takes than
with "any".
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

import magmadnn as md
from magmadnn.search.methods.choosing import method_of
from magmadnn.search.methods.parzen import Parzen
from magmadnn.search.methods.plain_methods import RandomSearch
from magmadnn.search.methods.stopping import Asha
from magmadnn.search.searching import _in_a_call
from magmadnn.search.spaces.space import Space
from magmadnn.search.trials.records import DONE, Job, Outcome
from magmadnn.search.trials.schedule import Limits, Schedule

METHODS = ("random", "cem", "tpe", "halving", "asha")
SPACE = {"a": md.search.uniform(0.0, 1.0), "b": md.search.integer(1, 1000)}


class Waiting(RandomSearch):
    """Asks when `tpe` does, for points at random: which points these are changes no time here."""

    learns = True
    cohort = Parzen(Space.of(SPACE), 1).cohort


@dataclass(frozen=True)
class Trials:
    """How long trials take, and what they are worth."""

    seconds: np.ndarray  # of an epoch, by trial
    scores: np.ndarray

    @classmethod
    def drawn(cls, count: int, spread: float, seed: int) -> Trials:
        """At random, by seed."""
        draw = np.random.default_rng(seed)
        return cls(np.exp(spread * draw.normal(size=count)), draw.uniform(size=count))


@dataclass
class Clock:
    """Workers that are busy until some time."""

    workers: int
    now: float = 0.0
    busy: float = 0.0
    ends: list[tuple[float, int, tuple[Job, ...]]] = field(default_factory=list)
    started: int = 0

    @property
    def has_room(self) -> bool:
        """Whether a worker is free."""
        return len(self.ends) < self.workers

    def start(self, jobs: Sequence[Job], seconds: float) -> None:
        """A free worker begins."""
        self.started += 1
        self.busy += seconds
        heapq.heappush(self.ends, (self.now + seconds, self.started, tuple(jobs)))

    def wait(self) -> tuple[Job, ...]:
        """The next that ends."""
        self.now, _, jobs = heapq.heappop(self.ends)
        return jobs

    @property
    def idle(self) -> float:
        """Share of the workers' time."""
        return 1 - self.busy / (self.workers * self.now)


def ours(name: str, trials: Trials, epochs: int, workers: int, grouped: bool) -> Clock:
    """The search as it is."""
    count = len(trials.scores)
    space = Space.of(SPACE)
    method = Waiting(space, 1) if name == "tpe" else method_of(name, space, 1, count, {})
    schedule = Schedule(
        method, lambda point: method.rungs(epochs), Limits(count), lambda outcome: outcome.values
    )
    clock = Clock(workers)

    def together(stage: int) -> int:
        return _in_a_call(stage, None, workers) if grouped else 1

    while True:
        while clock.has_room and (jobs := schedule.next_group(together)):
            clock.start(jobs, sum(job.new_epochs * trials.seconds[job.trial] for job in jobs))
        if not clock.ends:
            return clock
        for job in clock.wait():
            schedule.arrive(job, Outcome(DONE, values=(float(trials.scores[job.trial]),)))


def any_free(name: str, trials: Trials, epochs: int, workers: int) -> Clock:
    """A scheduler that hands out whatever may begin."""
    if name == "halving":
        return ours(name, trials, epochs, workers, False)
    rungs = Asha(Space.of(SPACE), 1).rungs(epochs) if name == "asha" else (epochs,)
    arrived: list[list[int]] = [[] for _ in rungs]
    gone: list[set[int]] = [set() for _ in rungs]
    clock, begun = Clock(workers), 0

    def promotable() -> tuple[int, int] | None:
        for rung in range(len(rungs) - 2, -1, -1):
            ranked = sorted(arrived[rung], key=lambda k: -trials.scores[k])
            for trial in ranked[: len(ranked) // 3]:
                if trial not in gone[rung]:
                    gone[rung].add(trial)
                    return trial, rung + 1
        return None

    while True:
        while clock.has_room:
            found = promotable()
            if found is None:
                if begun == len(trials.scores):
                    break
                found, begun = (begun, 0), begun + 1
            trial, rung = found
            job = Job(trial, 0, rung, {}, rungs[: rung + 1])
            clock.start((job,), job.new_epochs * trials.seconds[trial])
        if not clock.ends:
            return clock
        for job in clock.wait():
            arrived[job.rung].append(job.trial)


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--spread", type=float, default=0.5)
    parser.add_argument("--methods", default=",".join(METHODS))
    given = parser.parse_args()
    print("| method | workers | idle: grouped | single | any | time over any: grouped | single |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in given.methods.split(","):
        for workers in (1, 2, 4, 8):
            found = []
            for seed in range(given.draws):
                trials = Trials.drawn(given.trials, given.spread, seed)
                given_all = (name, trials, given.epochs, workers)
                found.append(
                    [ours(*given_all, True), ours(*given_all, False), any_free(*given_all)]
                )
            idle = [100 * np.mean([one[k].idle for one in found]) for k in range(3)]
            longer = [np.mean([one[k].now / one[2].now for one in found]) for k in range(2)]
            cells = [f"{value:.1f} %" for value in idle] + [f"{value:.2f}" for value in longer]
            print(f"| {name} | {workers} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
