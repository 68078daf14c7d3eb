"""Arrays on the workers of `md.workers(n)`: what makes `w.array(...)` and the rest of `Session` work."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from magmadnn.comm.sites import told_site
from magmadnn.dmath.arrays.team import Array, Team
from magmadnn.dmath.client.engines import Answer
from magmadnn.dmath.client.session import Session
from magmadnn.dmath.worker import Record
from magmadnn.dmath.worker import Worker as ArrayWorker
from magmadnn.errors import CommunicationError
from magmadnn.workers import Answer as Reply
from magmadnn.workers import Pending, Worker, Workers, handler

_IN_FLIGHT: Final = 64  # messages whose answers have not been looked at
_TOGETHER: Final = 64  # records that travel in one message
_SECONDS: Final = 0.0005  # that a record waits for others


WEIGHTS: Final = "dmath.weights"  # among a worker's objects: what `Session.weights` gives


_SESSIONS: Final = count()


@handler("dmath.run")
def run(worker: Worker, arguments: Any, arrays: list[Any]) -> Reply:
    """Carry out records of a session on a worker, in order; the answer of the last."""
    number, records = arguments
    name = f"dmath.{number}"
    mine = worker.objects.get(name)
    if mine is None:
        weights = worker.objects.setdefault(WEIGHTS, {})
        mine = worker.objects[name] = ArrayWorker(Team(worker.communicator), weights=weights)
    answer, flat = None, None
    for record in records:
        with told_site(_site_of(record)):
            answer, flat = mine.run(record, arrays[0] if arrays else None)
    return Reply(answer, [] if flat is None else [flat])


def _site_of(record: Record) -> str:
    """The line of the user's code that made a record, as messages name it."""
    line: str = record.get("line", "")
    return line.rpartition("/")[2] or "magmadnn"


class Remote:
    """Records to the workers of `md.workers(n)`.

    Operations are handed over and answered later; those that come within half a millisecond travel in one
    message. Answers are looked at when many have come together, or when a value is asked for. Of workers
    that ended the client is told then.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._pending: deque[Pending] = deque()
        self._records: list[Record] = []
        self._lock = threading.Lock()  # of all above
        self._waiting = threading.Event()
        self._number = next(_SESSIONS)  # sessions of the same workers know nothing of each other
        self._together = (
            _TOGETHER if workers.count else 1
        )  # in this process there is nothing to save
        self._error: CommunicationError | None = None  # of what was sent in between
        self._closed = False
        self._sender: threading.Thread | None = None
        self.size = workers.size

    def check(self) -> None:
        """Refuse a process that was forked from that of the workers, and workers that have ended."""
        self._workers.check_process()
        self._workers.check_alive()

    def post(self, record: Record, flats: Sequence[Array] | None = None) -> None:
        """Hand a record, and an array for each worker, to all.

        Raises:
            MagmaDNNError: what went wrong in a record before, after this one has been handed over.
        """
        with self._lock:
            if flats is not None:
                self._hand_over()
                arrays = [[flat] for flat in flats]
                one = self._workers.start_scatter(
                    "dmath.run", [[self._number, [record]]] * self.size, arrays
                )
                self._pending.append(one)
                self._send()
                return
            self._records.append(record)
            if len(self._records) >= self._together:
                self._send()
                return
        if not self._waiting.is_set():
            if self._sender is None:
                self._sender = threading.Thread(target=self._send_later, daemon=True, name="dmath")
                self._sender.start()
            self._waiting.set()

    def _send(self) -> None:
        """Hand over what has come together, and look at old answers; the lock is held."""
        self._hand_over()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        while len(self._pending) > _IN_FLIGHT:
            self._pending.popleft().wait()

    def _send_later(self) -> None:
        pause = threading.Event()
        while not self._closed:
            self._waiting.wait()
            pause.wait(_SECONDS)
            self._waiting.clear()
            with self._lock:
                if not self._closed:
                    try:
                        self._hand_over()
                    except CommunicationError as error:  # told at the next use
                        self._error = error

    def _hand_over(self) -> None:
        if not self._records:
            return
        records, self._records = self._records, []
        with told_site(_site_of(records[0])):  # another thread may hand over
            self._pending.append(self._workers.start("dmath.run", [self._number, records]))

    def ask(self, record: Record) -> list[Answer]:
        """Hand a record to all and wait for their answers."""
        self._workers.check_process()
        with self._lock:
            self._send()
            asked = self._workers.start("dmath.run", [self._number, [record]])
            while self._pending:
                self._pending.popleft().wait()
            return [(one.value, one.arrays[0] if one.arrays else None) for one in asked.wait()]

    def close(self, wait: bool) -> None:
        """Let go of the workers, who go on without the arrays; workers that have ended need not be told."""
        if wait:
            with contextlib.suppress(CommunicationError):
                self.ask({"op": "forget"})
        with self._lock:
            self._closed = True
            self._records.clear()
            self._pending.clear()
        self._waiting.set()


def session(workers: Workers, device: str = "cpu", deterministic: str | None = None) -> Session:
    """The arrays of these workers; see `md.dmath.distributed`."""
    return Session(Remote(workers), device, deterministic)
