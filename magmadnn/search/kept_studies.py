"""Reading a study from its folder, also while the search goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from magmadnn.calls import checked_call
from magmadnn.errors import CheckpointError, MagmaDNNError, shown
from magmadnn.storage.disk import as_path
from magmadnn.storage.event_log import without_collecting

from .spelling import Spelling
from .study import Study
from .study_folder import STUDY, read_study
from .study_plan import Ends, Plan, Replayed, check_keeps
from .trials.records import trials_of


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
        found: Study = self._guarded(lambda: self._study(by), ends is not None)
        return found

    def has_ended(self, ends: Ends) -> bool:
        """Whether a search with these ends has nothing left to train.

        Raises:
            CheckpointError: the log does not fit the plan.
            UnknownNameError: `ends` names a metric that there is not.
        """
        return bool(self._guarded(lambda: self._replayed(ends).has_ended(), True))

    def check_keeps(self, ends: Ends, spelled: Spelling) -> None:
        """Refuse ends by which results that count would do so no more.

        Args:
            ends: when the search is to end now.
            spelled: how messages spell arguments.

        Raises:
            ArgumentError: if they would.
            UnknownNameError: `ends` names a metric that there is not.
            CheckpointError: the log does not fit the plan.
        """
        self._guarded(
            lambda: check_keeps(self._plan, self._logged, ends, self._path, spelled), True
        )

    @without_collecting()
    def _replayed(self, ends: Ends) -> Replayed:
        return self._plan.replayed(self._logged, ends)

    def _study(self, ends: Ends) -> Study:
        """The study by these ends."""
        plan, found = self._plan, self._replayed(ends)
        return Study(
            plan.space,
            found.judge.names,
            found.judge.signs,
            trials_of(found.results, plan.rungs),
            self._path,
            plan.method,
            plan.defaults["epochs"],
            found.results,
        )

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
