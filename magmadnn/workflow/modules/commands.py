"""Executables as modules: started, watched, served with the tuple space, ended with all that they started."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from magmadnn.errors import MagmaDNNError, WorkflowError
from magmadnn.storage.processes.lifetimes import die_with
from magmadnn.workflow.tuples.client import TupleClient

SOCKET = "MAGMADNN_TUPLE"
_LOOK = 0.02
_GRACE = 1.0
HEAD = struct.Struct("<IQ")  # bytes of the JSON, bytes of the data


def run_command(
    argv: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Any,
    tuples: TupleClient,
    note_group: Callable[[int], None],
) -> None:
    """Run a program to its end.

    Args:
        argv: program and arguments.
        folder: that it runs in.
        environment: variables beside those of this process.
        log: open file for what it prints.
        tuples: the tuple space, for `magmadnn-tuple`.
        note_group: is told the number of its process group, and 0 after its end.

    Raises:
        WorkflowError: it ended with another exit code than 0, by a signal, or cannot be started.
    """
    with (
        tempfile.TemporaryDirectory(prefix="magmadnn-") as place,
        Service(place, tuples) as service,
    ):
        parent = os.getpid()
        variables = {**os.environ, **environment, SOCKET: service.path}
        for name in [n for n in variables if n.startswith(("PMI_", "PMIX_", "HYDI_", "MPI_LOCAL"))]:
            del variables[name]  # or an MPI program would take itself for this rank
        try:
            child = subprocess.Popen(
                argv,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with(parent),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise WorkflowError(f"command {argv[0]!r} cannot be started: {error}") from error
        note_group(child.pid)
        try:
            while child.poll() is None:
                service.serve(_LOOK)
        finally:
            end_group(child)
            note_group(0)
        if child.returncode:
            raise WorkflowError(f"command {argv[0]!r} {ending(child.returncode)}")


def ending(code: int) -> str:
    """How a program ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by signal {-code} ({signal.strsignal(-code)})"
    except ValueError:
        return f"was ended by signal {-code}"


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a program and all that it has started: first asked, then killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        end = time.monotonic() + _GRACE
        while time.monotonic() < end and child.poll() is None:
            time.sleep(0.005)
        if number == signal.SIGTERM and child.poll() is not None:
            time.sleep(0.01)
    child.wait()


class Service:
    """Answers `magmadnn-tuple` and `connect` of one program, through a socket in a folder of its own."""

    def __init__(self, folder: str, tuples: TupleClient) -> None:
        self.path, self._tuples = f"{folder}/s", tuples
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._pending: dict[int, socket.socket] = {}

    def __enter__(self) -> Service:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # sockets only
        self._selector.close()

    def serve(self, seconds: float) -> None:
        """Answer what comes within some seconds."""
        patience = min(seconds, 0.001) if self._pending else seconds
        for key, _ in self._selector.select(patience):
            if key.fileobj is self._socket:
                connection, _ = self._socket.accept()
                self._selector.register(connection, selectors.EVENT_READ)
            else:
                self._request(key.fileobj)  # type: ignore[arg-type]  # sockets only
        for request, connection in list(self._pending.items()):
            try:
                found = self._tuples.answer(request)
            except MagmaDNNError as error:
                del self._pending[request]
                _reply(connection, {"error": str(error)})
                continue
            if found is not None:
                del self._pending[request]
                words, data = found
                _reply(connection, {"words": words.decode(), "there": bool(words)}, data)

    def _request(self, connection: socket.socket) -> None:
        found = receive(connection)
        if found is None:
            self._selector.unregister(connection)
            connection.close()
            return
        record, data = found
        try:
            if record["op"] == "put":
                self._tuples.put_raw(record["tag"], record["words"].encode(), data)
                _reply(connection, {"there": True})
            else:
                asked = self._tuples.ask(
                    record["tag"], wait=record["wait"], take=record["take"], where="magmadnn-tuple"
                )
                self._pending[asked] = connection
        except (MagmaDNNError, KeyError) as error:
            _reply(connection, {"error": str(error)})


def _reply(connection: socket.socket, record: dict[str, Any], data: bytes = b"") -> None:
    try:
        send(connection, record, data)
    except OSError:
        return  # the program has not waited for it


def send(connection: socket.socket, record: dict[str, Any], data: Any = b"") -> None:
    """Send a record and data."""
    text = json.dumps(record).encode()
    connection.sendall(HEAD.pack(len(text), len(data)) + text)
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytearray] | None:
    """The next record and its data; None at the end."""
    head = _exactly(connection, HEAD.size)
    if head is None:
        return None
    of_text, of_data = HEAD.unpack(head)
    text, data = _exactly(connection, of_text), _exactly(connection, of_data)
    return None if text is None or data is None else (json.loads(text), data)


def _exactly(connection: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = connection.recv_into(view[got:])
        if not count:
            return None
        got += count
    return data
