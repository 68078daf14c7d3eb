"""What is known of trials: results of single trainings, and the trials that they add up to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from magmadnn.search.spaces.dimensions import as_tuples, listed
from magmadnn.search.spaces.space import Point

DONE, STOPPED, FAILED, TIMED_OUT, NO_MEMORY = (
    "done",
    "stopped",
    "failed",
    "time limit",
    "out of memory",
)
STATES = (DONE, STOPPED, FAILED, TIMED_OUT, NO_MEMORY)

_MOST = 10**9  # of numbers in a log

Key = tuple[int, int, int]  # cohort, rung, trial: the logical order of trainings


@dataclass(frozen=True)
class Job:
    """A training that is to be done: a trial from the end of its last rung to that of another.

    Attributes:
        trial: its number.
        cohort: of the stage that it belongs to: that in which it was decided.
        rung: how often the trial was promoted.
        point: its parameters.
        epochs: passes over the data, counted from the trial's beginning, after each of its rungs so far.
    """

    trial: int
    cohort: int
    rung: int
    point: Point
    epochs: tuple[int, ...]

    @property
    def key(self) -> Key:
        """Its place in the logical order."""
        return (self.cohort, self.rung, self.trial)

    @property
    def new_epochs(self) -> int:
        """Passes that this rung adds."""
        return self.epochs[-1] - (self.epochs[-2] if len(self.epochs) > 1 else 0)


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        state: DONE, or why there are no metrics.
        metrics: of the validation rows after the last epoch, of the training rows as `train_...`, `seconds`
            that training took since the trial's beginning, `sharing_seconds`: how many trials, itself
            included, the call trained of whose time these are a share, `epochs`.
        values: of the objectives; empty where there are none.
        reason: why it failed.
        parameters_sha256: of the trained parameters.
        rises: for each metric whether higher is better.
        folds: validation metrics of each fold, where metrics are their means.
        retried: how often it was trained again among fewer trials, since there was no memory for more.
        built: of trial 0 a digest of the network as `build` made it; else empty.
        ends: whether the search cannot go on, for this reason; such an outcome is not logged.
    """

    state: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    values: tuple[float, ...] = ()
    reason: str = ""
    parameters_sha256: str = ""
    rises: Mapping[str, bool | None] = field(default_factory=dict)
    folds: tuple[Mapping[str, float], ...] = ()
    retried: int = field(default=0, compare=False)
    built: str = field(default="", compare=False)
    ends: bool = False


@dataclass(frozen=True)
class Trial:
    """A point and what came of it.

    Attributes:
        number: from 0, in the order in which the method asked for it.
        point: its parameters.
        state: "done"; "stopped" by the method before its last epoch; "failed", "time limit", "out of memory".
        values: of the objectives, after its last rung; empty where there are none.
        metrics: likewise: validation metrics, `train_...`, `seconds`, `sharing_seconds`, `epochs`.
        reason: why it failed.
        rungs: how many stages of training it has had.
        parameters_sha256: of the trained parameters.
        folds: validation metrics of each fold, where metrics are their means.
        retried: how often it was trained again among fewer trials, since there was no memory for more; says
            something of the machine and is no part of the table.
    """

    number: int
    point: Point
    state: str
    values: tuple[float, ...]
    metrics: Mapping[str, float]
    reason: str = ""
    rungs: int = 1
    parameters_sha256: str = ""
    folds: tuple[Mapping[str, float], ...] = ()
    retried: int = field(default=0, compare=False)

    @property
    def value(self) -> float | None:
        """Of the first objective; None where the trial has none."""
        return self.values[0] if self.values else None


def trials_of(results: Iterable[tuple[Job, Outcome]], full: int) -> list[Trial]:
    """The trials that results add up to, by number.

    Args:
        results: of all jobs that count, in any order.
        full: rungs that a trial has which was never stopped.
    """
    last: dict[int, tuple[Job, Outcome]] = {}
    for job, outcome in results:
        if job.trial not in last or last[job.trial][0].rung < job.rung:
            last[job.trial] = (job, outcome)
    return [_trial(*last[number], full) for number in sorted(last)]


def _trial(job: Job, outcome: Outcome, full: int) -> Trial:
    state = outcome.state
    if state == DONE and job.rung + 1 < full:
        state = STOPPED
    return Trial(
        job.trial,
        job.point,
        state,
        outcome.values,
        outcome.metrics,
        outcome.reason,
        job.rung + 1,
        outcome.parameters_sha256,
        outcome.folds,
        outcome.retried,
    )


def plain_result(job: Job, outcome: Outcome) -> dict[str, Any]:
    """A result as the log holds it."""
    return {
        "trial": job.trial,
        "cohort": job.cohort,
        "rung": job.rung,
        "point": {name: listed(value) for name, value in job.point.items()},
        "epochs": list(job.epochs),
        "state": outcome.state,
        "metrics": _plain_metrics(outcome.metrics),
        "values": list(outcome.values),
        "reason": outcome.reason,
        "parameters_sha256": outcome.parameters_sha256,
        "rises": dict(outcome.rises),
        **({"folds": [_plain_metrics(fold) for fold in outcome.folds]} if outcome.folds else {}),
        **({"retried": outcome.retried} if outcome.retried else {}),
        **({"built": outcome.built} if outcome.built else {}),
    }


def _plain_metrics(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """Metrics as JSON can hold them."""
    return {name: v if math.isfinite(v) else str(v) for name, v in metrics.items()}


def result_of_plain(record: Mapping[str, Any]) -> tuple[Job, Outcome]:
    """The result that `plain_result` gave.

    Raises:
        KeyError, TypeError, ValueError: if it is something else.
    """
    point = {name: as_tuples(value) for name, value in record["point"].items()}
    job = Job(record["trial"], record["cohort"], record["rung"], point, tuple(record["epochs"]))
    for number in (job.cohort, job.rung, job.trial, *job.epochs):
        if type(number) is not int or not 0 <= number < _MOST:
            raise ValueError("numbers of a job")
    if len(job.epochs) != job.rung + 1 or record["state"] not in STATES:
        raise ValueError("numbers of a job, and its state")
    for value in record["values"]:
        if type(value) is not float and type(value) is not int:
            raise ValueError("values")
    if type(record["reason"]) is not str or type(record["rises"]) is not dict:
        raise ValueError("reason and rises")
    retried = record.get("retried", 0)
    if type(retried) is not int or not 0 <= retried < _MOST:
        raise ValueError("retried")
    built = record.get("built", "")
    if type(built) is not str:
        raise ValueError("built")
    outcome = Outcome(
        record["state"],
        {name: float(value) for name, value in record["metrics"].items()},
        tuple(record["values"]),
        record["reason"],
        record["parameters_sha256"],
        record["rises"],
        tuple({n: float(v) for n, v in fold.items()} for fold in record.get("folds", ())),
        retried,
        built,
    )
    return job, outcome
