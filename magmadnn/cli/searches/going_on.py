"""Going on with a search: which ends hold, what must not be lost, and whether anything is left to do."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from magmadnn.cli.runs.outputs import MODEL
from magmadnn.search import Study
from magmadnn.search.kept_studies import KeptStudy
from magmadnn.search.study_folder import STUDY
from magmadnn.storage.disk import is_folder, is_there
from magmadnn.storage.durable import read_file
from magmadnn.storage.run_folder import read_run

from .option_spelling import OptionSpelling
from .search_arguments import SearchArguments

RESULT, TABLE = "result.json", "trials.csv"


def taken_up(folder: Path, arguments: Namespace) -> tuple[SearchArguments, Study | None]:
    """What holds where the search in a folder goes on, and the study if it has ended and all is written.

    Ends are those that were said last, in whichever call; the other options are those of the first call.
    Nothing is written.

    Raises:
        ArgumentError: an argument cannot be changed, or leaves out trials that are done.
        UnknownNameError: `--until` names a metric that there is not.
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
        kept.check_keeps(made.ends, OptionSpelling())
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


def _is_written(folder: Path, study: Study) -> bool:
    """Whether the folder holds all that a search leaves; the table, which is written last, tells of which."""
    if not is_there(folder / TABLE) or not is_there(folder / RESULT):
        return False
    if read_file(folder / TABLE) != study.table().to_csv().encode():
        return False
    return len(study.objectives) > 1 or is_folder(folder / MODEL)
