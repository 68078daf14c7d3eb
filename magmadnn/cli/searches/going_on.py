"""Going on with a search: which ends hold, what must not be lost, and whether anything is left to do."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from magmadnn.cli.runs.outputs import MODEL
from magmadnn.errors import ArgumentError
from magmadnn.search import Study
from magmadnn.search.kept_studies import KeptStudy
from magmadnn.search.study_folder import STUDY
from magmadnn.storage.disk import is_folder, is_there
from magmadnn.storage.durable import read_file
from magmadnn.storage.run_folder import read_run

from .search_arguments import SearchArguments
from .search_checks import check_metrics

RESULT, TABLE = "result.json", "trials.csv"
_ENDS = ("trials", "until", "total_epochs")


def taken_up(folder: Path, arguments: Namespace) -> tuple[SearchArguments, Study | None]:
    """What holds where the search in a folder goes on, and the study if it has ended and all is written.

    Ends are those that were said last, in whichever call; the other options are those of the first call.
    Nothing is written.

    Raises:
        ArgumentError: an argument cannot be changed, or leaves out trials that are done.
        CheckpointError: there is no such search, or it is damaged.
    """
    made = SearchArguments.from_record(read_run(folder), arguments.resume)
    if not is_there(folder / STUDY):
        return made.changed(arguments), None
    kept = KeptStudy(folder)
    if kept.ends is not None:
        made = made.ending(kept.ends)
    before, made = made, made.changed(arguments)
    if made.ends != before.ends:
        done = kept.study(before.ends)
        if made.until is not None and (metrics := _metrics_of(done)):
            check_metrics(made, metrics)
        _check_keeps(kept, done, made, arguments)
    if not kept.has_ended(made.ends):
        return made, None
    study = kept.study(made.ends)
    return made, study if _is_written(folder, study) else None


def said_of(study: Study, made: SearchArguments, folder: Path) -> str:
    """The line for a search that has ended."""
    count = len(study.trials)
    ended = f"the search in {folder} has ended: {count} trials"
    if len(study.objectives) == 1:
        ended += f", the best is trial {study.best.number}"
    longer = made.own["trials"] == count and made.own["method"] != "halving"
    more = f"; --trials {2 * count} would make it longer" if longer else ""
    return f"{ended}; nothing is left to do, and nothing was written{more}"


def _check_keeps(kept: KeptStudy, done: Study, made: SearchArguments, arguments: Namespace) -> None:
    """Refuse ends by which results that count would do so no more."""
    count = max((trial.number + 1 for trial in done.trials), default=0)
    folder = arguments.resume
    if made.own["trials"] is not None and made.own["trials"] < count:
        raise ArgumentError(
            f"--trials {made.own['trials']}: {folder} holds {count} trials, and what is done stays; give "
            f"--trials {count} or more, or leave it out"
        )
    if _trainings(kept.study(made.ends)) < _trainings(done):
        said = [name for name in _ENDS if getattr(arguments, name) is not None]
        options = " and ".join(f"--{n.replace('_', '-')} {getattr(arguments, n)}" for n in said)
        raise ArgumentError(
            f"{options}: the search would end before trainings that {folder} holds, and what is done stays; "
            "give a later end, or leave it out"
        )


def _metrics_of(study: Study) -> list[str]:
    """The metrics of validation rows that its trials have, beside the loss."""
    found = {name for trial in study.trials for name in trial.metrics}
    own = ("loss", "epochs", "seconds", "sharing_seconds")
    return sorted(n for n in found if n not in own and not n.startswith("train_"))


def _trainings(study: Study) -> int:
    return sum(trial.rungs for trial in study.trials)


def _is_written(folder: Path, study: Study) -> bool:
    """Whether the folder holds all that a search leaves; the table, which is written last, tells of which."""
    if not is_there(folder / TABLE) or not is_there(folder / RESULT):
        return False
    if read_file(folder / TABLE) != study.table().to_csv().encode():
        return False
    return len(study.objectives) > 1 or is_folder(folder / MODEL)
