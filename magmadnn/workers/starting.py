"""Processes that the client starts, and their connections."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from magmadnn.comm.launching.launcher import Job
from magmadnn.errors import CommunicationError

from .records import packed, receive, send
from .serving import ADDRESS

_START: Final = 60.0  # seconds until workers must have come


class Staff(Protocol):
    """Who carries out the calls.

    Attributes:
        connections: by number of the worker.
    """

    connections: list[socket.socket]

    def trouble(self) -> str | None:
        """Which worker has ended before its time, and how."""
        ...

    def gone(self, number: int | None) -> str:
        """The same once a connection has ended: that of worker `number`, where that is known."""
        ...

    def dismiss(self, idle: bool) -> None:
        """The client has done with them, and no call is under way if they are idle."""
        ...

    def end(self, error: Exception) -> None:
        """They cannot go on."""
        ...


class Processes:
    """Workers that this process starts, and that end with it.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        word = secrets.token_hex(16)
        self.connections: list[socket.socket] = []
        with listening("127.0.0.1", count) as server:
            port = server.getsockname()[1]
            environment = {ADDRESS: f"127.0.0.1 {port} {word}"}
            module = ["-m", "magmadnn.workers"]
            self._job: Job | None = Job(count, module, environment, stdin=subprocess.DEVNULL)
            try:
                self.connections = accepted(server, word, count, self._not_started)
                self._wait_for_groups()
            except BaseException:
                self._end()
                raise

    def _not_started(self) -> str | None:
        if (found := self.trouble()) is not None:
            return found
        ended = self._job is None or self._job.process.poll() is not None
        return "mpiexec did not start them" if ended else None

    def _wait_for_groups(self) -> None:
        for connection in self.connections:
            try:
                receive(connection)
            except (EOFError, OSError):
                raise CommunicationError(f"workers: {self.gone(None)}") from None

    def trouble(self) -> str | None:
        """Which worker has ended before its time, and how."""
        found = None if self._job is None else self._job.trouble()
        return found and found.replace("rank ", "worker ", 1)

    def gone(self, number: int | None) -> str:
        """The same once a connection has ended."""
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            if found := self.trouble():
                return found
            time.sleep(0.01)
        return "a worker has ended" if number is None else f"worker {number} has ended"

    def dismiss(self, idle: bool) -> None:
        """End them, politely if they wait for calls."""
        if idle and self._job is not None:
            try:
                for connection in self.connections:
                    send(connection, packed({"close": True}))
                self._job._wait_for_end(2.0)
            except OSError:  # they have ended already
                print("magmadnn: workers had ended before they were closed", file=sys.stderr)
        self._end()

    def end(self, error: Exception) -> None:
        """End them, whatever they do."""
        self._end()

    def _end(self) -> None:
        for connection in self.connections:
            connection.close()
        self.connections = []
        if self._job is not None:
            job, self._job = self._job, None
            job.end()


def listening(host: str, count: int) -> socket.socket:
    """A socket that waits for `count` connections, on a port that the system chooses among the free ones.

    Args:
        host: address; "" for all of this machine.
        count: of connections.

    Raises:
        CommunicationError: if there is no free port, or no such address.
    """
    try:
        return socket.create_server((host, 0), backlog=count)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommunicationError(
            f"workers: the client cannot listen at {host or 'any address'} for {count} workers: {reason}; "
            "end programs that hold many connections (ss -t lists them), or let the system have more ports "
            "(net.ipv4.ip_local_port_range)"
        ) from error


def accepted(
    server: socket.socket, word: str, count: int, trouble: Callable[[], str | None]
) -> list[socket.socket]:
    """Wait until `count` workers that know the word have come; their connections, by number.

    Raises:
        CommunicationError: if they do not come.
    """
    found: dict[int, socket.socket] = {}
    until = time.monotonic() + _START
    server.settimeout(0.1)
    while len(found) < count:
        try:
            connection, _ = server.accept()
        except TimeoutError:
            reason = trouble()
            if reason is None and time.monotonic() > until:
                reason = f"{count - len(found)} of {count} did not come in {_START:.0f} s"
            if reason is not None:
                raise CommunicationError(f"workers: {reason}; see the lines above") from None
            continue
        connection.settimeout(10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            record: dict[str, Any] = receive(connection)[0]
        except (EOFError, OSError, ValueError):
            connection.close()
            continue
        if record.get("word") != word:
            connection.close()
            continue
        connection.settimeout(None)
        found[record["rank"]] = connection
    return [found[rank] for rank in range(count)]
