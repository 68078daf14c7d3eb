"""Arrays on the workers of `md.workers(n)`: what makes `w.array(...)` and the rest of `Session` work."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from magmadnn.dmath.client.engines import Answer
from magmadnn.dmath.client.session import Session
from magmadnn.dmath.team import Array, Team
from magmadnn.dmath.worker import Record
from magmadnn.dmath.worker import Worker as ArrayWorker
from magmadnn.workers import Answer as Reply
from magmadnn.workers import Pending, Worker, Workers, handler

_IN_FLIGHT: Final = 512  # operations whose answers have not been looked at


@handler("dmath.run")
def run(worker: Worker, arguments: Any, arrays: list[Any]) -> Reply:
    """Carry out one record on a worker."""
    mine = worker.objects.get("dmath")
    if mine is None:
        mine = worker.objects["dmath"] = ArrayWorker(Team(worker.communicator))
    answer, flat = mine.run(arguments, arrays[0] if arrays else None)
    return Reply(answer, [] if flat is None else [flat])


class Remote:
    """Records to the workers of `md.workers(n)`.

    Operations are handed over at once and answered later: their answers are looked at when many have come
    together, or when a value is asked for. Workers that ended are told of then, by the workers' own error.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._pending: deque[Pending] = deque()
        self.size = workers.size

    def post(self, record: Record, flats: Sequence[Array] | None = None) -> None:
        """Hand a record, and an array for each worker, to all."""
        if flats is None:
            self._pending.append(self._workers.start("dmath.run", record))
        else:
            arrays = [[flat] for flat in flats]
            self._pending.append(
                self._workers.start_scatter("dmath.run", [record] * self.size, arrays)
            )
        while len(self._pending) > _IN_FLIGHT:
            self._pending.popleft().wait()

    def ask(self, record: Record) -> list[Answer]:
        """Hand a record to all and wait for their answers."""
        asked = self._workers.start("dmath.run", record)
        while self._pending:
            self._pending.popleft().wait()
        return [(one.value, one.arrays[0] if one.arrays else None) for one in asked.wait()]

    def close(self) -> None:
        """Let go of the workers, who go on."""
        self._pending.clear()


def session(workers: Workers) -> Session:
    """The arrays of these workers."""
    return Session(Remote(workers))
