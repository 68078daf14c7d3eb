"""Workers that are the other ranks of the job: under mpiexec, Slurm or `magmadnn launch`.

Rank 0 is the client and runs the script; the others carry out its calls from `md.workers()` on, until rank 0
ends, and then end themselves. Calls travel by sockets here too, so that the client stays out of the workers'
messages.
"""

from __future__ import annotations

import atexit
import contextlib
import secrets
import signal
import socket
import sys
from typing import Any, Final, NoReturn

from magmadnn.comm import world
from magmadnn.comm.job import end_job, stand_in
from magmadnn.comm.simulated import SerialCommunicator
from magmadnn.errors import CommunicationError

from .records import packed, send
from .serving import carry_out, connected
from .starting import accepted, listening

_HERE: Final = "127.0.0.1"
_joined: list[Ranks] = []


class Ranks:
    """Ranks 1, 2 ... of the job, as workers 0, 1 ...; made on rank 0.

    Args:
        comm: of all ranks.
    """

    def __init__(self, comm: Any) -> None:
        name, word = socket.gethostname(), secrets.token_hex(16)
        names = comm.exchange(name)
        host, bound = (_HERE, _HERE) if len(set(names)) == 1 else (name, "")
        count = comm.size - 1
        with listening(bound, count) as server:
            comm.exchange([host, server.getsockname()[1], word])
            comm.split(None)
            self.connections = accepted(server, word, count, lambda: None)
        self._broken = ""
        atexit.register(self._close)  # before MPI ends, which waits for all ranks
        stand_in(SerialCommunicator())

    def _close(self) -> None:
        for connection in self.connections:
            connection.close()

    def trouble(self) -> str | None:
        """Nothing is known of them but what their sockets tell."""
        return None

    def gone(self, number: int | None) -> str:
        """Which has ended."""
        if number is None:
            return "a worker has ended"
        return f"worker {number}, rank {number + 1} of the job, has ended"

    def dismiss(self, idle: bool) -> None:
        """They forget what they kept, and wait for the next call."""
        if not idle:
            self._broken = "they were given up while a call was under way"
            return
        with contextlib.suppress(OSError):  # then the next call says so
            for connection in self.connections:
                send(connection, packed({"forget": True}))

    def end(self, error: Exception) -> None:
        """End the job, which has no other ranks to go on with."""
        end_job(str(error))

    def check(self) -> None:
        """Raises if they cannot be called any more."""
        if self._broken:
            raise CommunicationError(
                f"workers: {self._broken}: the ranks of a job cannot be started again, so end the job"
            )


def join() -> Ranks:
    """On rank 0 the other ranks as workers; on these it does not return: they carry out calls until rank 0
    ends, and exit.
    """
    if not _joined:
        comm = world()
        if comm.rank:
            _serve(comm)
        _joined.append(Ranks(comm))
    _joined[0].check()
    return _joined[0]


def _serve(comm: Any) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides what Ctrl-C means
    comm.exchange(socket.gethostname())
    host, port, word = comm.exchange(None)[0]
    team = comm.split(0)
    connection = connected(host, port, {"rank": team.rank, "word": word})
    stand_in(team)
    with contextlib.suppress(EOFError, ConnectionError):
        carry_out(connection, team)
    connection.close()
    sys.exit(0)
