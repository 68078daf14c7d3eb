"""Reading a study from its folder, also while the search goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from magmadnn.calls import checked_call
from magmadnn.errors import CheckpointError, MagmaDNNError, shown
from magmadnn.storage.disk import as_path
from magmadnn.storage.event_log import without_collecting

from .judging import Judge
from .study import Study
from .study_folder import STUDY, read_study
from .study_plan import Ends, Plan
from .trials.records import trials_of
from .trials.schedule import Schedule


class KeptStudy:
    """A study's folder, read once; the search may be going on.

    Args:
        folder: of the study.

    Attributes:
        ends: when the search ends, as it was said last; None where that is not on the disk yet.

    Raises:
        CheckpointError: it is no study, or damaged.
        FileError: it cannot be read.
    """

    @without_collecting()
    def __init__(self, folder: str | Path) -> None:
        self._path = as_path("search: the folder", folder)
        identity, self._logged = read_study(self._path)
        self._plan = Plan.of_plain(identity, str(self._path / STUDY))
        said = self._logged.ends
        self.ends = self._guarded(lambda: Ends.of_plain(said)) if said else None

    def study(self, ends: Ends | None = None) -> Study:
        """The study with the trials that count if the search ends so; None: as it was said last.

        Raises:
            CheckpointError: the log does not fit the plan.
            UnknownNameError: `ends` names a metric that there is not.
        """
        by = ends or self.ends or Ends()
        found: Study = self._guarded(lambda: self._replayed(by)[0], ends is not None)
        return found

    def has_ended(self, ends: Ends) -> bool:
        """Whether a search with these ends has nothing left to train.

        Raises:
            CheckpointError: the log does not fit the plan.
            UnknownNameError: `ends` names a metric that there is not.
        """

        def ended() -> bool:
            _, schedule, waits = self._replayed(ends)
            return not waits and schedule.next_job() is None

        return bool(self._guarded(ended, True))

    @without_collecting()
    def _replayed(self, ends: Ends) -> tuple[Study, Schedule, bool]:
        """The study, its schedule after the last result, and whether one before that is missing."""
        plan, logged = self._plan, self._logged
        judge = Judge(plan.objectives, ends.until)
        judge.learn(outcome for _, outcome in logged.results.values())
        schedule, waits = plan.schedule(judge, ends, logged), False
        while schedule.knows_more and schedule.next_job() is not None:
            waits = True  # for it: the search has not ended
        results = list(schedule.results())
        study = Study(
            plan.space,
            judge.names,
            judge.signs,
            trials_of(results, plan.rungs),
            self._path,
            plan.method,
            plan.defaults["epochs"],
            results,
        )
        return study, schedule, waits

    def _guarded(self, read: Callable[[], Any], asked: bool = False) -> Any:
        """What `read` gives; errors of ours are the user's only where ends were `asked` for."""
        try:
            return read()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if asked and isinstance(error, MagmaDNNError):
                raise
            raise CheckpointError(
                f"{shown(self._path)}: plan and log of the study do not fit each other: {error!r:.80}"
            ) from error


@checked_call
def load(folder: str | Path) -> Study:
    """The study in a folder, with the trials that have ended so far.

    It has neither `build` nor data, so that it gives no `model()`; `run` with resume=True does.

    Raises:
        CheckpointError: it is no study, or damaged.
        FileError: it cannot be read.
    """
    return KeptStudy(folder).study()
