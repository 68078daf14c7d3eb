"""Messages between processes, without waiting inside MPI: who waits sleeps more and more."""

from __future__ import annotations

import json
import os
import time
from typing import Any

_SPINS = 200
KEEN = 800
"""Looks, about 0.3 ms of them, before somebody sleeps who expects an answer or a request at once."""
_FIRST = 2e-5
_PATIENT = 200  # sleeps after which a process has long had nothing to do


class Pause:
    """Waits between two looks: first it only lets others run, then it sleeps, longer each time.

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

    def __call__(self) -> None:
        """Wait a little."""
        self._count += 1
        if self._count <= self._spins:
            os.sched_yield()
            return
        time.sleep(self._sleep)
        most = self._most if self._count < self._spins + _PATIENT else 4 * self._most
        self._sleep = min(most, self._sleep * 1.3)


class Mail:
    """Sends and receives whole messages through a communicator of MPI.

    Args:
        comm: of mpi4py; nobody else uses it.
    """

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self.comm = comm
        self._mpi, self._byte, self._status = MPI, MPI.BYTE, MPI.Status()
        self._sent: list[tuple[Any, Any]] = []

    def send(self, data: bytes, to: int) -> None:
        """Send; returns at once. `data` may not be changed."""
        request = self.comm.Isend([data, self._byte], to, 0)
        if self._sent:
            self._sent = [one for one in self._sent if not one[0].Test()]
        if not request.Test():
            self._sent.append((request, data))

    def receive(self) -> tuple[int, bytearray] | None:
        """The rank that sent a message, and the message; None where none has come."""
        status = self._status
        message = self.comm.Improbe(self._mpi.ANY_SOURCE, 0, status)
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
        for request, _ in self._sent:
            request.Wait()
        self._sent = []
