"""Runs that the editor starts, and what it shows of the latest."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from magmadnn.errors import MagmaDNNError, WorkflowError, shown
from magmadnn.storage.disk import is_there
from magmadnn.storage.durable import write_file
from magmadnn.workflow.description.history import History
from magmadnn.workflow.description.reading import read_workflow
from magmadnn.workflow.ranks.plan_folder import DOCUMENT, STOP, latest_run, open_folder
from magmadnn.workflow.reporting.page import page

_SAID = 4000  # bytes of what a run has printed


class Runs:
    """The runs of one workflow's file; they go on when the editor ends.

    Args:
        file: the workflow.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None
        self._printed: IO[bytes] | None = None
        self._folder: Path | None = None

    @property
    def are_going(self) -> bool:
        """Whether one that was started here has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Run the file as it is on the disk, as `magmadnn workflow run FILE` does.

        Raises:
            DataError: it is no workflow.
            WorkflowError: one is running.
        """
        if self.are_going:
            raise WorkflowError("workflow edit: a run that was started here goes on; stop it first")
        found = read_workflow(self._file)
        name = f"{found.model.name}-{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        self._folder = found.base / "runs" / name
        self.close()
        self._printed = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "magmadnn", "workflow", "run", str(self._file)),
                *("--out", str(self._folder)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def latest(self) -> Path | None:
        """The folder of the run that was started here, else of the latest beside the file."""
        if self._folder is not None:
            return self._folder if is_there(self._folder / DOCUMENT) else None
        with suppress(MagmaDNNError):  # the file may hold no workflow just now
            return latest_run(read_workflow(self._file))
        return None

    def state(self) -> dict[str, Any]:
        """Of the latest run, as plain data.

        Returns:
            "going": whether one started here runs; "said": what it printed last; "folder" (from that of the
            file on), "finish", "text" and "seconds" of the whole; "runs": of modules, each with "key",
            "state", "begun", "seconds", "waited" and "reason".
        """
        going, said = self.are_going, self._said()
        state: dict[str, Any] = {"going": going, "said": said, "folder": "", "runs": []}
        folder = self.latest()
        if folder is None:
            return state
        history = History.of(open_folder(folder).records())
        rows = [_row(run, history) for run in history.runs.values()]
        about = {"finish": history.finish, "text": history.text, "seconds": history.seconds}
        beside = self._file.absolute().parent
        place = folder.relative_to(beside) if folder.is_relative_to(beside) else folder
        return {**state, "folder": shown(place), "runs": rows, **about}

    def _said(self) -> str:
        if self._printed is None:
            return ""
        file = self._printed.fileno()  # its position is the run's too, so it is not moved
        begin = max(0, os.fstat(file).st_size - _SAID)
        return os.pread(file, _SAID, begin).decode(errors="replace")

    def stop(self, now: bool) -> None:
        """Begin nothing more of the latest run; `now`: end what runs.

        Raises:
            WorkflowError: there is none, or it has ended.
        """
        folder = self.latest()
        if folder is None or History.of(open_folder(folder).records()).finish:
            raise WorkflowError("workflow edit: no run to stop: none was begun, or it has ended")
        write_file(folder / STOP, b"now\n" if now else b"then\n")

    def report(self) -> str:
        """The page of the latest run.

        Raises:
            WorkflowError: there is none.
        """
        folder = self.latest()
        if folder is None:
            raise WorkflowError("workflow edit: no run to report on; run the workflow first")
        opened = open_folder(folder)
        return page(opened.description, History.of(opened.records()))

    def close(self) -> None:
        """Give up what this holds; a run goes on."""
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0  # nobody waits for it: it is in a session of its own
        if self._printed is not None:
            self._printed.close()
            self._printed = None


def _row(run: Any, history: History) -> dict[str, Any]:
    state = "running" if run.ended is None else "done" if run.good else "failed"
    if history.finish and run.ended is None:
        state = "ended"
    end = history.seconds if run.ended is None else run.ended
    return {
        "key": run.key,
        "state": state,
        "begun": run.begun,
        "seconds": end - run.begun,
        "waited": run.waited,
        "reason": run.reason,
    }
