"""The plan of a study: all that its table depends on but data and `build`, as plain data and back; and what a
log holds of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError, CheckpointError, shown

from .judging import Judge
from .methods.choosing import method_of
from .methods.method import Method
from .objectives import Objective, Reaches
from .spaces.dimensions import as_tuples
from .spaces.space import Point, Space, space_of_plain
from .spelling import RUN, Spelling
from .study_folder import Logged
from .trials.records import Job, Outcome
from .trials.schedule import Limits, Schedule


@dataclass(frozen=True)
class Ends:
    """When a search ends.

    Attributes:
        trials: most trials; None for no such end.
        total_epochs: a budget of epochs.
        until: a metric that is good enough.
    """

    trials: int | None = None
    total_epochs: int | None = None
    until: Reaches | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        until = None if self.until is None else [self.until.metric, self.until.value]
        return {"trials": self.trials, "total_epochs": self.total_epochs, "until": until}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Ends:
        """The other way round."""
        until = plain.get("until")
        return cls(
            plain.get("trials"),
            plain.get("total_epochs"),
            None if until is None else Reaches(*until),
        )


@dataclass(frozen=True)
class Replayed:
    """A search as its log tells of it.

    Attributes:
        judge: of its trials.
        schedule: after the last result.
        results: of trainings that count.
        waits: whether a training before one of these is missing.
    """

    judge: Judge
    schedule: Schedule
    results: list[tuple[Job, Outcome]]
    waits: bool

    def has_ended(self) -> bool:
        """Whether nothing is left to train."""
        return not self.waits and self.schedule.next_job() is None


@dataclass(frozen=True)
class Plan:
    """What a study is.

    Attributes:
        space: what is searched.
        method: its name.
        options: of the method, all of them.
        seed: of all that is drawn.
        objectives: what is searched for.
        defaults: `epochs` and `batch_size` of points that do not have them.
        first: points that come before the method's own.
        data_sha256: of the rows.
        folds: how many, where trials are cross validated; else 0.
    """

    space: Space
    method: str
    options: Mapping[str, Any]
    seed: int
    objectives: tuple[Objective, ...]
    defaults: Mapping[str, int]
    first: list[Point] = field(default_factory=list)
    data_sha256: str = ""
    folds: int = 0

    def plain(self) -> dict[str, Any]:
        """As JSON data; of objectives that are functions only the names."""
        return {
            "space": self.space.plain(),
            "method": self.method,
            "method_options": dict(self.options),
            "seed": self.seed,
            "objectives": [[one.name, one.sign] for one in self.objectives],
            "defaults": dict(self.defaults),
            "first": self.first,
            "data_sha256": self.data_sha256,
            "folds": self.folds,
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any], where: str) -> Plan:
        """The other way round.

        Raises:
            CheckpointError: it is no plan.
        """
        try:
            return cls(
                space_of_plain(plain["space"]),
                plain["method"],
                plain["method_options"],
                plain["seed"],
                tuple(Objective(name, None, sign, True) for name, sign in plain["objectives"]),
                plain["defaults"],
                [{n: as_tuples(v) for n, v in point.items()} for point in plain["first"]],
                plain["data_sha256"],
                plain["folds"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{where}: is no plan of a study: {error!r:.80}") from error

    def made_method(self) -> Method:
        """The method, which has decided nothing yet."""
        return method_of(self.method, self.space, self.seed, None, dict(self.options))

    def schedule(self, judge: Judge, ends: Ends, logged: Logged | None) -> Schedule:
        """The order of trainings, with those that are done already."""
        method, epochs = self.made_method(), self.defaults["epochs"]
        return Schedule(
            method,
            lambda point: method.rungs(point.get("epochs", epochs)),
            Limits(ends.trials, ends.total_epochs, judge.is_reached),
            judge.scores,
            self.first,
            None if logged is None else logged.results,
            None if logged is None else logged.asked,
        )

    def replayed(self, logged: Logged, ends: Ends, spelled: Spelling = RUN) -> Replayed:
        """What a log holds of a search that ends so.

        Args:
            logged: the log.
            ends: when the search ends.
            spelled: how messages spell arguments.

        Raises:
            UnknownNameError: `ends` names a metric that there is not.
            ArgumentError: one that does not say which values are good.
        """
        judge = Judge(self.objectives, ends.until, spelled)
        judge.learn(outcome for _, outcome in logged.results.values())
        schedule, waits = self.schedule(judge, ends, logged), False
        while schedule.knows_more and schedule.next_job() is not None:
            waits = True  # for it: the search has not ended
        return Replayed(judge, schedule, list(schedule.results()), waits)

    @property
    def rungs(self) -> int:
        """How many stages of training a trial has that is never ended."""
        return len(self.made_method().rungs(self.defaults["epochs"]))


def check_keeps(
    plan: Plan, logged: Logged, ends: Ends, folder: Path, spelled: Spelling = RUN
) -> None:
    """Refuse ends by which results that count would do so no more.

    Results beyond the place where the search ended, as workers leave them, do not count.

    Args:
        plan: of the study.
        logged: what its log holds.
        ends: when the search is to end now.
        folder: of the study.
        spelled: how messages spell arguments.

    Raises:
        ArgumentError: if they would.
        UnknownNameError: `ends` names a metric that there is not.
    """
    before = Ends.of_plain(logged.ends) if logged.ends else ends
    if before == ends:
        return
    done = plan.replayed(logged, before).results
    count = max((job.trial + 1 for job, _ in done), default=0)
    if ends.trials is not None and ends.trials < count:
        raise ArgumentError(
            f"{spelled.begin}{spelled.told('trials', ends.trials)}: {shown(folder)} holds {count} trials, "
            f"and what is done stays; give {spelled.told('trials', count)} or more, or leave it out"
        )
    now = plan.replayed(logged, ends, spelled)
    kept, ended = {job.key for job, _ in now.results}, now.has_ended()
    lost = [job for job, _ in done if job.key not in kept]
    if any(ended or now.schedule.leaves_out(job.key) for job in lost):
        new = [
            one.name for one in fields(ends) if getattr(ends, one.name) != getattr(before, one.name)
        ]
        told = [spelled.told(n, getattr(ends, n)) for n in new if getattr(ends, n) is not None]
        raise ArgumentError(
            f"{spelled.begin}{' and '.join(told)}: the search would end before trainings that "
            f"{shown(folder)} holds, and what is done stays; give a later end, or leave it out"
        )
