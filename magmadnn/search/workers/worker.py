"""What a worker process does: take jobs, train, give outcomes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from magmadnn.runtime.threads import set_threads
from magmadnn.search.trials.training import Task
from magmadnn.storage.processes.lifetimes import die_with, mark_alive


@dataclass(frozen=True)
class Share:
    """What of the machine a worker has.

    Attributes:
        threads: that its programs run on.
        device: the number of the GPU that it sees, as CUDA_VISIBLE_DEVICES has it; None for all.
    """

    threads: int
    device: str | None


def serve(
    task: Task,
    connection: Connection,
    others: Sequence[Connection],
    share: Share,
    parent: int,
    folder: Path | None,
) -> None:
    """Train what comes through the connection until it is closed; never returns.

    Args:
        task: what a trial is.
        connection: to the search.
        others: connections that this process has got from its parent and must not keep open.
        share: of the machine.
        parent: process that this one dies with.
        folder: of the study, in which it is to be seen that this process is alive.
    """
    code = 1
    try:
        die_with(parent)
        for other in others:
            other.close()
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C goes to all; the search ends its workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if share.device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = share.device
        set_threads(share.threads)
        if folder is not None:
            mark_alive(folder)
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while True:
                outcomes = task.outcomes(connection.recv())
                sys.stdout.flush()
                sys.stderr.flush()
                connection.send(outcomes)
        code = 0
    finally:
        os._exit(code)


def shares(count: int) -> list[Share]:
    """The machine, divided among `count` workers."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    devices = _devices()
    return [
        Share(max(1, (cores or 1) // count), devices[k % len(devices)] if devices else None)
        for k in range(count)
    ]


def _devices() -> list[str]:
    """The GPUs that this process may use, where there are several."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        found = [one.strip() for one in given.split(",") if one.strip()]
    else:
        found = [str(k) for k, _ in enumerate(sorted(Path("/dev").glob("nvidia[0-9]*"), key=str))]
    return found if len(found) > 1 else []
