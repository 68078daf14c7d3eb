"""Messages between processes, without waiting inside MPI: who waits sleeps more and more.

Messages arrive in one buffer that MPI knows from the beginning. One that is larger than it is announced by an
empty one. Where ranks may be lost each is asked for anew: a receive that waits for all ranks fails with one.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

LOOKS = 32
"""Looks, about 15 us of them, before others may run: they might for a whole slice of the scheduler's."""

_SPINS = 200
KEEN = 800
"""Looks, about 0.3 ms of them, before somebody sleeps who expects an answer or a request at once."""
_FIRST = 2e-5
_PATIENT = 200  # sleeps after which a process has long had nothing to do

_ROOM = 80 << 10  # bytes of the buffer; tuples up to `messages.SMALL` fit
_SMALL, _LARGE = 0, 1  # tags of MPI
_MANY = (
    16  # messages on their way before it is looked which have arrived, whatever else there is to do
)


class Pause:
    """Waits between two looks: first not at all, then it lets others run, then it sleeps, longer each time.

    Args:
        most: seconds; of a process that has had nothing to do for long four times that.
        spins: looks before it sleeps, between which others may run.
    """

    def __init__(self, most: float = 0.001, spins: int = _SPINS) -> None:
        self._most, self._spins = most, spins
        self._count, self._sleep = 0, _FIRST

    def reset(self) -> None:
        """Something has come."""
        self._count, self._sleep = 0, _FIRST

    def __call__(self) -> bool:
        """Wait a little; whether it slept."""
        self._count += 1
        if self._count <= self._spins:
            if self._count > LOOKS:
                os.sched_yield()
            return False
        time.sleep(self._sleep)
        most = self._most if self._count < self._spins + _PATIENT else 4 * self._most
        self._sleep = min(most, self._sleep * 1.3)
        return True


class Mail:
    """Sends and receives whole messages through a communicator of MPI.

    Args:
        comm: of mpi4py; nobody else uses it.
        ulfm: whether ranks may be lost, and this goes on without them.

    Attributes:
        lost: the ranks that were.
    """

    def __init__(self, comm: Any, ulfm: bool = False) -> None:
        from mpi4py import MPI

        self.comm, self.lost, self._ulfm = comm, set[int](), ulfm
        self._mpi, self._byte, self._status = MPI, MPI.BYTE, MPI.Status()
        self._sent: list[tuple[Any, Any]] = []
        self._room = bytearray(_ROOM)
        if not ulfm:
            self._posted = comm.Recv_init([self._room, MPI.BYTE], MPI.ANY_SOURCE, _SMALL)
            self._test, self._start = self._posted.Test, self._posted.Start
            self._start()

    def send(self, data: bytes | bytearray, to: int) -> None:
        """Send; returns at once. `data` may not be changed. What goes to a lost rank is gone."""
        if self._ulfm:
            self._send_or_lose(data, to)
            return
        tag = _SMALL
        if len(data) > _ROOM:
            self._sent.append((self.comm.Isend(b"", to, _SMALL), b""))
            tag = _LARGE
        self._sent.append((self.comm.Isend(data, to, tag), data))
        if tag or len(self._sent) > _MANY:
            self._forget_sent()

    def receive(self, looks: int = 1) -> tuple[int, bytearray] | None:
        """The rank that sent a message, and the message; None where none has come in so many looks."""
        if not self._ulfm:
            test, status = self._test, self._status
            if test(status):
                return self._received()
            if self._sent:
                self._forget_sent()  # there is time for it
            for _ in range(looks - 1):
                if test(status):
                    return self._received()
            return None
        try:
            return self._ask_for_one()
        except self._mpi.Exception as error:
            if not self._is_loss(error):
                raise
            self.comm.Ack_failed(self.comm.Get_size())
            failed, all_ranks = self.comm.Get_failed(), self.comm.Get_group()
            places = failed.Translate_ranks(list(range(failed.Get_size())), all_ranks)
            self.lost |= set(places)
            return None

    def _forget_sent(self) -> None:
        self._sent = [one for one in self._sent if not one[0].Test()]

    def _received(self) -> tuple[int, bytearray] | None:
        status = self._status
        source, size = status.Get_source(), status.Get_count(self._byte)
        data = self._room[:size]
        self._start()
        if size:
            return source, data
        if source < 0:  # a signal came between a message and `Start`: nothing was asked for
            return None
        message = self.comm.Mprobe(source, _LARGE, status)
        data = bytearray(status.Get_count(self._byte))
        message.Recv([data, self._byte])
        return source, data

    def _ask_for_one(self) -> tuple[int, bytearray] | None:
        status = self._status
        message = self.comm.Improbe(self._mpi.ANY_SOURCE, _SMALL, status)
        if message is None:
            return None
        data = bytearray(status.Get_count(self._byte))
        source = status.Get_source()
        message.Recv([data, self._byte])
        return source, data

    def send_json(self, record: dict[str, Any], to: int) -> None:
        """Send a small record."""
        self.send(json.dumps(record, separators=(",", ":")).encode(), to)

    def receive_json(self) -> tuple[int, dict[str, Any]] | None:
        """The next record, and who sent it."""
        found = self.receive()
        return None if found is None else (found[0], json.loads(found[1]))

    def finish(self) -> None:
        """Wait until all that was sent has gone."""
        while self._sent:
            self._sent = [one for one in self._sent if not self._has_gone(one[0])]

    def close(self) -> None:
        """Give MPI's buffer back, once nobody sends any more."""
        self.finish()
        if not self._ulfm:
            self._posted.Cancel()
            self._posted.Wait()
            self._posted.Free()

    # --- where ranks may be lost ---------------------------------------------------------------------

    def _send_or_lose(self, data: bytes | bytearray, to: int) -> None:
        if to in self.lost:
            return
        try:
            request = self.comm.Isend(data, to, _SMALL)
        except self._mpi.Exception as error:
            if not self._is_loss(error):
                raise
            return
        self._sent = [one for one in self._sent if not self._has_gone(one[0])]
        if not self._has_gone(request):
            self._sent.append((request, data))

    def _has_gone(self, request: Any) -> bool:
        try:
            return bool(request.Test())
        except self._mpi.Exception as error:
            if not self._ulfm or not self._is_loss(error):
                raise
            return True

    def _is_loss(self, error: Any) -> bool:
        kinds = (self._mpi.ERR_PROC_FAILED, self._mpi.ERR_PROC_FAILED_PENDING)
        return error.Get_error_class() in kinds
