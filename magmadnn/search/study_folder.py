"""The folder of a study: what the study is (`study.json`), its log, and the lock of who writes to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError, CheckpointError, FileError, quoted, shown
from magmadnn.storage.disk import as_path, is_there, worded
from magmadnn.storage.durable import read_file, write_file
from magmadnn.storage.event_log import EventLog, read_log, without_collecting
from magmadnn.storage.formats.plain_json import JSON_BYTES, seal, unseal
from magmadnn.storage.formats.plain_schema import Anything, Fields, Table
from magmadnn.storage.formats.plain_schema import check as check_plain
from magmadnn.storage.holding import Holding
from magmadnn.storage.printing import note
from magmadnn.storage.processes.lifetimes import wait_for_dead
from magmadnn.storage.run_folder import RUN

from .spaces.dimensions import as_tuples
from .spaces.space import Point
from .trials.records import Job, Outcome, plain_result, result_of_plain

STUDY, LOG = "study.json", "trials.log"
_FORMAT, _VERSION = "magmadnn-study", 1
_DOCUMENT = Fields({"identity": Table(Anything())})

Results = dict[tuple[int, int], tuple[Job, Outcome]]


@dataclass
class Logged:
    """What a log holds.

    Attributes:
        results: of trainings, by trial and rung.
        asked: points of cohorts, where the method keeps them.
        ends: when the search ends, as it was said last.
    """

    results: Results
    asked: dict[int, list[Point]]
    ends: dict[str, Any]


class StudyFolder:
    """A study's folder that this process writes to, until `close`.

    Args:
        path: a new or empty folder, or that of the same study with `resume`.
        identity: what makes it another study if it differs, as JSON data.
        ends: when the search ends this time, as JSON data.
        resume: whether it may go on with a study that is there. In a folder that holds nothing yet, as one
            that was killed at once leaves it, the study begins.
        check: raises if what was done before does not fit; then nothing is written.

    Attributes:
        logged: what was done before.

    Raises:
        ArgumentError: the study there is another one, or there is one and `resume` is not given.
        CheckpointError: it is damaged.
        FileError: another process writes to it, it holds something else, or it cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        identity: Mapping[str, Any],
        ends: Mapping[str, Any],
        resume: bool,
        check: Callable[[Logged], None] = lambda logged: None,
    ) -> None:
        self.path = as_path("search: out", path)
        _check_free(self.path, resume)
        self._holding = Holding(self.path, "search")
        try:
            self._begin(identity, ends, resume, check)
        except BaseException:
            self._holding.release()
            raise

    @without_collecting()
    def _begin(
        self,
        identity: Mapping[str, Any],
        ends: Mapping[str, Any],
        resume: bool,
        check: Callable[[Logged], None],
    ) -> None:
        wait_for_dead(self.path)
        document = self.path / STUDY
        if not is_there(document):
            if resume:  # it was killed before anything of it was on the disk, so nothing is lost
                note(f"{shown(self.path)}: holds no {STUDY} yet; the study begins there")
            head = {"format": _FORMAT, "version": _VERSION}
            data = seal({**head, "identity": dict(identity)})
            write_file(document, data)
        else:
            data = _same(self.path, identity, resume)
        self._log = EventLog(self.path / LOG, log_begin(data))
        self.logged = _logged(self._log.records, self.path / LOG)
        self._log.records = []
        check(self.logged)
        if dict(ends) != self.logged.ends:
            self._log.add([{"ends": dict(ends)}])

    def add_results(self, results: Iterable[tuple[Job, Outcome]]) -> None:
        """Results are on the disk when this returns."""
        self._log.add(plain_result(*result) for result in results)

    def add_points(self, cohort: int, points: Iterable[Point]) -> None:
        """The points that a cohort was given."""
        self._log.add([{"asked": cohort, "points": list(points)}])

    def close(self) -> None:
        """Let others write to it."""
        self._log.close()
        self._holding.release()


def read_study(path: str | Path) -> tuple[dict[str, Any], Logged]:
    """Identity and results of a study that may be going on.

    Raises:
        CheckpointError: it is no study, or damaged.
        FileError: it cannot be read.
    """
    folder = as_path("search: the folder", path)
    if not is_there(folder / STUDY):
        raise CheckpointError(
            f"{shown(folder)}: expected a study's folder, got none with a {STUDY}; check the path"
        )
    data = read_file(folder / STUDY, JSON_BYTES)
    document = _document(data, folder)
    records = read_log(folder / LOG, log_begin(data))
    return document["identity"], _logged(records, folder / LOG)


def log_begin(document: bytes) -> str:
    """What the first line of a log depends on: which study it is of."""
    return hashlib.sha256(document).hexdigest()[:16]


def _document(data: bytes, folder: Path) -> dict[str, Any]:
    where = shown(folder / STUDY)
    document = unseal(data, where, _FORMAT, _VERSION)
    check_plain(_DOCUMENT, document, where)
    return document


def _same(folder: Path, identity: Mapping[str, Any], resume: bool) -> bytes:
    """The bytes of the study that is there, which is this one.

    Raises:
        ArgumentError: it is not, or going on was not asked for.
    """
    data = read_file(folder / STUDY, JSON_BYTES)
    there = _document(data, folder)["identity"]
    for name in {**there, **identity}:
        if there.get(name) != identity.get(name):
            if name == "data_sha256":
                raise ArgumentError(
                    f"search: {shown(folder)} holds another study, of other rows: x, y, weights "
                    "or what is held back differ (validation_split, validation_data, folds); give these "
                    "rows, or another out"
                )
            raise ArgumentError(
                f"search: {shown(folder)} holds another study: its {name.replace('_', ' ')} is "
                f"{quoted(there.get(name))}, this one's {quoted(identity.get(name))}; give another out"
            )
    if not resume:
        raise ArgumentError(
            f"search: {shown(folder)} holds this study already; give resume=True to go on with it, or "
            f"another "
            "out"
        )
    return data


def _check_free(folder: Path, resume: bool) -> None:
    """Refuse a folder that holds something else, or is not there to go on, before a lock is put into it."""
    with worded("cannot read", folder):
        if folder.exists() and not folder.is_dir():
            raise FileError(f"search: out: {shown(folder)} is a file; give a folder")
        held = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
        if resume and not folder.exists():
            raise CheckpointError(
                f"{shown(folder)}: is not there, so it holds no {STUDY} to go on with; leave resume out to "
                "begin a study"
            )
    held = [n for n in held if n != RUN and not n.startswith(".")]
    if held and STUDY not in held:
        raise FileError(
            f"search: out: {shown(folder)}: expected a new or empty folder, or a study, got one that holds "
            f"{held[0]!r}"
        )


def _logged(records: Iterable[Mapping[str, Any]], path: Path) -> Logged:
    found = Logged({}, {}, {})
    for number, record in enumerate(records, 1):
        try:
            if "asked" in record:
                found.asked[record["asked"]] = [
                    {name: as_tuples(value) for name, value in point.items()}
                    for point in record["points"]
                ]
                continue
            if "ends" in record:
                found.ends = dict(record["ends"])
                continue
            job, outcome = result_of_plain(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{shown(path)}: line {number} is no record of a study"
            ) from error
        if (job.trial, job.rung) in found.results:
            raise CheckpointError(
                f"{shown(path)}: line {number} tells of trial {job.trial}, rung {job.rung}, which was there "
                "before: two searches have written to this log"
            )
        found.results[job.trial, job.rung] = (job, outcome)
    return found
