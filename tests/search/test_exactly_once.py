"""Exactly once, with workers that join, leave and lose their trainings and a search that ends at any place.

Workers are simulated: a training is a number that follows from its job, so that hundreds of histories of a
search with its real schedule, log and folder take seconds. `test_workers.py` kills real processes.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from magmadnn.search.study_folder import read_study
from magmadnn.search.trials.records import DONE, FAILED, Job, Outcome
from magmadnn.search.trials.training import Task
from magmadnn.search.workers.places import trained_elsewhere
from tests.search.problems import SPACE, S, build, table, untimed

X, Y = table()


class Broken(BaseException):
    """The search is ended, as by a kill: nothing of it goes on."""


def outcome_of(job: Job) -> Outcome:
    """What a job gives, whoever does it; every eleventh trial fails."""
    if job.trial % 11 == 7:
        return Outcome(FAILED, reason="as it should")
    drawn = random.Random(f"{sorted(job.point.items())} {job.epochs[-1]}")
    accuracy = drawn.random()
    return Outcome(
        DONE,
        {"accuracy": accuracy, "loss": 1 - accuracy, "epochs": float(job.epochs[-1])},
        rises={"accuracy": True, "loss": False},
    )


@dataclass
class Workers:
    """Workers that come and go, and give what they have done in any order; it is a place and makes itself.

    Attributes:
        drawn: decides who joins, leaves and is done.
        handed: trainings whose outcomes the search has got, counted.
        breaks: the share of waits at which the search is ended.
        count: how many workers there are now.
        together: how many trainings one call takes; None: the search decides.
    """

    drawn: random.Random
    handed: Counter[tuple[int, int]]
    breaks: float = 0.0
    count: int = 1
    together: int | None = None
    running: list[tuple[Job, ...]] = field(default_factory=list)

    def known(self, task: Task) -> None:
        """It need not be."""

    def place(self, task: Task) -> Workers:
        return self

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.count

    @property
    def is_busy(self) -> bool:
        return bool(self.running)

    def start(self, jobs: Sequence[Job]) -> None:
        assert self.has_room
        self.running.append(tuple(jobs))

    def wait(self, seconds: float | None = None) -> list[tuple[Job, Outcome]]:
        self.count = max(1, min(8, self.count + self.drawn.choice([-2, -1, 0, 1, 2])))
        if self.drawn.random() < self.breaks:
            raise Broken
        while self.drawn.random() < 0.3:  # one leaves amid its work; another does it again
            lost = self.running.pop(self.drawn.randrange(len(self.running)))
            self.running.insert(self.drawn.randint(0, len(self.running)), lost)
        done = self.running.pop(self.drawn.randrange(len(self.running)))
        self.handed.update((job.trial, job.rung) for job in done)
        return [(job, outcome_of(job)) for job in done]

    def close(self) -> None:
        self.running.clear()


def searched(method: str, workers: Workers, out: Path | None = None, resume: bool = False) -> Any:
    """A search by these workers."""
    with trained_elsewhere(workers):
        return S.run(
            build, SPACE, X, Y, method=method, trials=40, epochs=9, objective="accuracy", seed=8,
            out=out, resume=resume,
        )  # fmt: skip


@pytest.mark.usefixtures("quick_sync")
@pytest.mark.parametrize("method", ["random", "cem", "halving", "asha", "median"])
def test_every_history_gives_the_same_table_and_each_training_once(
    method: str, tmp_path: Path
) -> None:
    expected = untimed(searched(method, Workers(random.Random(0), Counter())))
    broken, histories = 0, 3 if method == "median" else 10  # it has nine trainings for each trial
    for seed in range(histories):
        drawn, handed, folder = (
            random.Random(seed),
            Counter[tuple[int, int]](),
            tmp_path / f"{seed}",
        )
        while True:
            workers = Workers(drawn, handed, breaks=0.3, count=drawn.randint(1, 8))
            try:
                study = searched(method, workers, folder, folder.exists())
                break
            except Broken:
                broken += 1
        assert untimed(study) == expected, seed
        assert set(handed.values()) == {1}, seed  # nothing that was done is done again
        assert set(read_study(folder)[1].results) == set(handed), seed  # and nothing is lost
    assert broken >= histories


def test_a_process_that_ends_at_any_write_is_gone_on_from(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.search.killed_at_each_write", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    calls = [int(number) for number in done.stdout.split()]
    assert calls[0] >= 16 and calls[1] >= 8  # of a search, and of the making of a run's folder
    assert "holds no study.json yet; the study begins there" in done.stderr
    assert "holds no workflow.json yet; the run begins there" in done.stderr
