"""Handlers that workers of the tests import."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

from magmadnn.workers import Answer, Worker, handler


@handler("tests.total")
def total(worker: Worker, arguments: Any, arrays: list[Any]) -> Answer:
    rank = worker.communicator.rank
    x = worker.communicator.all_reduce(arrays[0] * (rank + arguments))
    worker.objects["calls"] = worker.objects.get("calls", 0) + 1
    return Answer({"rank": rank, "calls": worker.objects["calls"]}, [x, np.float16([rank])])


@handler("tests.fail")
def fail(worker: Worker, arguments: Any, arrays: list[Any]) -> None:
    if worker.communicator.rank == worker.communicator.size - 1:
        raise KeyError("no such thing")
    if arguments == "others wait":
        worker.communicator.barrier()


@handler("tests.mismatch")
def mismatch(worker: Worker, arguments: Any, arrays: list[Any]) -> None:
    worker.communicator.all_reduce(np.ones(3 + worker.communicator.rank))


@handler("tests.die")
def die(worker: Worker, arguments: Any, arrays: list[Any]) -> None:
    if worker.communicator.rank == arguments:
        os.kill(os.getpid(), signal.SIGKILL)
    worker.communicator.barrier()


@handler("tests.sleep")
def sleep(worker: Worker, arguments: Any, arrays: list[Any]) -> Answer:
    time.sleep(arguments)
    return Answer(os.getpid())
