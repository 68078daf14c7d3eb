"""What a worker process does: take jobs, train, give outcomes."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from magmadnn.backends.cpu.blas_threads import limit_blas
from magmadnn.runtime.threads import set_threads
from magmadnn.search.trials.training import Task
from magmadnn.storage.processes.lifetimes import die_with, mark_alive
from magmadnn.training.many.running.room import share_memory

from .sending import SentTask


@dataclass(frozen=True)
class Share:
    """What of the machine a worker has.

    Attributes:
        threads: that its programs, and calls of NumPy's BLAS, run on.
        device: the number of the GPU that it sees, as CUDA_VISIBLE_DEVICES has it; None for all.
        on_host: how many workers share this machine's memory.
        on_device: how many share the memory of its GPU.
    """

    threads: int
    device: str | None
    on_host: int
    on_device: int


def serve(
    task: Task | SentTask,
    connection: Connection,
    others: Sequence[Connection],
    share: Share,
    parent: int,
    folder: Path | None,
) -> None:
    """Train what comes through the connection until it is closed; never returns.

    Args:
        task: what a trial is; one that was sent is read here, once it is settled which GPU is to be seen.
        connection: to the search.
        others: connections that this process has got from its parent and must not keep open.
        share: of the machine.
        parent: process that this one dies with.
        folder: of the study, in which it is to be seen that this process is alive.
    """
    code = 1
    try:
        die_with(parent)
        gc.freeze()  # to look for garbage among what the parent has made would copy its pages
        for other in others:
            other.close()
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C goes to all; the search ends its workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if share.device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = share.device
        set_threads(share.threads)
        limit_blas(share.threads)
        share_memory(share.on_host, share.on_device)
        task = task.read() if isinstance(task, SentTask) else task
        if folder is not None:
            mark_alive(folder)
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while True:
                outcomes = task.outcomes(connection.recv())
                sys.stdout.flush()
                sys.stderr.flush()
                connection.send(outcomes)
        code = 0
    except BaseException:  # a task that cannot be read, say; nobody else tells of it
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def shares(count: int) -> list[Share]:
    """The machine, divided among `count` workers."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    devices = _devices()
    found = []
    for k in range(count):
        device = k % len(devices) if devices else None
        beside = count if device is None else len(range(device, count, len(devices)))
        threads = max(1, (cores or 1) // count)
        found.append(Share(threads, None if device is None else devices[device], count, beside))
    return found


def _devices() -> list[str]:
    """The GPUs that this process may use, where there are several."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        found = [one.strip() for one in given.split(",") if one.strip()]
    else:
        found = [str(k) for k, _ in enumerate(sorted(Path("/dev").glob("nvidia[0-9]*"), key=str))]
    return found if len(found) > 1 else []
