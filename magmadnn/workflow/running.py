"""Starting a workflow's job, and telling how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from magmadnn.comm.launching.launcher import Job
from magmadnn.comm.ledger import KILLED
from magmadnn.errors import WorkflowError

from .description.checking import check
from .description.dependencies import ranks_needed
from .description.history import History
from .ranks.job import clean
from .ranks.plan_folder import LOG, Folder
from .ranks.watching import last_seen

_START = Path(__file__).parent / "ranks" / "start.py"
_ERROR = "magmadnn: error: "
_NOISE = (
    "=   ",
    "====",
    "YOUR APPLICATION",
    "This typically refers",
    "Please see the FAQ",
    "Abort(",
    "[",
)
_LOOK = 0.02
_GRACE = 0.3
_AT_LEAST = 0.5
_TO_END = 5.0  # seconds that a job may take to end once the executive has written that all is done


def job_size(folder: Folder, ranks: int | None, spares: int = 0) -> int:
    """Ranks of the job: those that modules need, the tuple servers, and the executive.

    Raises:
        DataError: they are too few.
    """
    servers = folder.description.model.tuple_space.servers
    needed = 1 + servers + ranks_needed(folder.description) + spares
    size = ranks if ranks is not None else needed
    check(folder.description, max(0, size - 1 - servers))
    return size


def run_job(folder: Folder, ranks: int | None = None, spares: int | None = None) -> tuple[str, str]:
    """Run a workflow in a job of its own; how it ended, and why.

    Args:
        folder: of the run.
        ranks: of the job, all told; None: as many as it needs.
        spares: ranks beyond those that it needs, to take over from others that are killed, with Open MPI's
            ULFM; None: a killed rank ends the job.

    Raises:
        DataError: the ranks are too few.
        MissingExtraError: there is no MPI.
    """
    size = job_size(folder, ranks, spares or 0)
    workers = range(1 + folder.description.model.tuple_space.servers, size)
    may_lose = () if spares is None else workers
    program = [str(_START), str(folder.path.absolute())]
    job = Job(
        size,
        program,
        {"PYTHONUNBUFFERED": "1"},
        may_lose,
        cwd=folder.description.base,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    said: list[str] = []
    reader = threading.Thread(target=_pass_on, args=(job.process.stdout, said), daemon=True)
    reader.start()
    lost = None
    try:
        looked, finished = time.monotonic(), 0.0
        while job.process.poll() is None and job.trouble() is None:
            time.sleep(_LOOK)
            now = time.monotonic()
            if spares is not None and now - looked > _AT_LEAST:
                looked = now
                finished = finished or (now if _has_finished(folder) else 0.0)
                if finished and now - finished > _TO_END:
                    break  # all is in the log; with lost ranks the library may not come to its end
        killed = [e.rank for e in job.ledger.entries() if e and e.state == KILLED]
        lost = next((rank for rank in killed if rank not in may_lose), None)
        if job.process.poll() is None:
            time.sleep(_GRACE if lost is None else 0)  # what has failed may still say why
    finally:
        job.end()
    reader.join(timeout=2.0)
    history = History.of(folder.records())
    _clean_up(folder, history)
    if history.finish:
        return history.finish, history.text
    return "failed", said[-1] if said else _why(folder, history, lost, job.process.returncode)


def _has_finished(folder: Folder) -> bool:
    """Whether the last line of the log says that the workflow has ended."""
    try:
        with (folder.path / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65_536))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return False
    return bool(lines) and lines[-1].endswith(b"\n") and b'{"event":"finish"' in lines[-1]


def _pass_on(stream: Any, said: list[str]) -> None:
    """Print what ranks print, but what mpiexec says of an end, and keep our errors."""
    for line in stream:
        if line.startswith(_ERROR):
            said.append(line.strip().removeprefix(_ERROR))
        elif line.strip() and not line.startswith(_NOISE):
            print(line, end="", flush=True)


def _clean_up(folder: Folder, history: History) -> None:
    """End programs whose ranks are gone, and remove the memory that they shared."""
    for rank in range(history.ranks):
        _, group, _ = last_seen(folder.path, rank)
        if group:
            try:
                os.killpg(group, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
    for record in folder.records():
        if record["event"] == "job":
            clean(record["prefix"])


def _why(folder: Folder, history: History, lost: int | None, code: int | None) -> str:
    """Why a job ended without having finished."""
    way_out = f"go on with magmadnn workflow resume {folder.path}"
    if lost is None:
        return f"the job ended with exit code {code}; {way_out}"
    servers = folder.description.model.tuple_space.servers
    run, _, where = last_seen(folder.path, lost)
    role = "the executive" if lost == 0 else "a tuple server" if lost <= servers else run or "idle"
    at = f", at {where}" if where else ""
    process = history.processes[lost] if lost < len(history.processes) else "?"
    return f"rank {lost} ({role}{at}), process {process}, was killed; {way_out}"


def checked_end(state: str, text: str) -> None:
    """Raise if a workflow has not ended well.

    Raises:
        WorkflowError: it has not.
    """
    if state != "done":
        raise WorkflowError(f"workflow: {state}: {text}" if text else f"workflow: {state}")
