"""Handlers that the tests of dmath call on workers."""

from __future__ import annotations

import os
from typing import Any

from magmadnn.workers import Answer, Worker, handler


@handler("test.pid")
def pid(worker: Worker, arguments: Any, arrays: Any) -> Answer:
    return Answer(os.getpid())


@handler("test.arrays")
def arrays_of(worker: Worker, arguments: Any, arrays: Any) -> Answer:
    return Answer(len(worker.objects[f"dmath.{arguments}"].arrays))
