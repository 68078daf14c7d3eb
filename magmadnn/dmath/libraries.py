"""One interface on three kinds of place: this processor, one GPU, many workers.

The abstract factory of dMath (section III-B): each makes arrays by the same names, and functions take the
arrays of each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from magmadnn.comm import SerialCommunicator
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.client.engines import InProcess
from magmadnn.dmath.client.session import Session
from magmadnn.dmath.worker import Worker


@lru_cache(maxsize=2)
def in_this_process(device: str) -> Session:
    """The session of one worker that computes in this process."""
    return Session(InProcess(Worker(Team(SerialCommunicator()))), device)


def distributed(workers: Any, *, device: str = "cpu", deterministic: str | None = None) -> Session:
    """Arrays on workers, as `w.array` makes them, with settings of their own.

    Args:
        workers: what `md.workers(n)` gave.
        device: "cpu", or "cuda" for a GPU on each worker, with NCCL among them.
        deterministic: "layout": products, sums and means have the same bits for all layouts and numbers of
            workers, on the same kind of machine. Products cut no sum and work in tiles of one shape.

    Raises:
        ArgumentError: for a setting that is not known.
        DeviceError: if there is no GPU; says what is missing.
    """
    from magmadnn.dmath.client.processes import session

    return session(workers, device, deterministic)
