"""Reading a study from its folder, also while the search goes on."""

from __future__ import annotations

from pathlib import Path

from magmadnn.calls import checked_call
from magmadnn.errors import CheckpointError, shown
from magmadnn.storage.disk import as_path
from magmadnn.storage.event_log import without_collecting

from .judging import Judge
from .study import Study
from .study_folder import STUDY, read_study
from .study_plan import Ends, Plan
from .trials.records import trials_of


@checked_call
@without_collecting()
def load(folder: str | Path) -> Study:
    """The study in a folder, with the trials that have ended so far.

    It has neither `build` nor data, so that it gives no `model()`; `run` with resume=True does.

    Raises:
        CheckpointError: it is no study, or damaged.
        FileError: it cannot be read.
    """
    path = as_path("search: the folder", folder)
    identity, logged = read_study(path)
    plan = Plan.of_plain(identity, str(path / STUDY))
    try:
        ends = Ends.of_plain(logged.ends)
        judge = Judge(plan.objectives, ends.until)
        judge.learn(outcome for _, outcome in logged.results.values())
        schedule = plan.schedule(judge, ends, logged)
        while schedule.knows_more and schedule.next_job() is not None:
            pass  # of one that has not ended
        results = list(schedule.results())
        trials = trials_of(results, plan.rungs)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"{shown(path)}: plan and log of the study do not fit each other: {error!r:.80}"
        ) from error
    return Study(
        plan.space,
        judge.names,
        judge.signs,
        trials,
        path,
        plan.method,
        plan.defaults["epochs"],
        results,
    )
