"""A worker: it answers records until its client closes.

`Job` starts it as the module magmadnn.workers; the client's address and a secret stand in the environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import traceback
from typing import Any, Final

from magmadnn.comm import Communicator, world
from magmadnn.comm.job import rank_in_job
from magmadnn.comm.sites import line_of, told_site
from magmadnn.errors import text_of

from .handlers import Answer, Worker, find_handler
from .records import packed, receive, send

ADDRESS: Final = "MAGMADNN_CLIENT"
_KEPT: Final = {-1: 1 << 30, -3: 32 << 20}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of glibc's malloc.h


def serve() -> None:
    """Answer the records of the client whose address stands in the environment, one after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client decides what Ctrl-C means
    keep_memory()
    host, port, word = os.environ.pop(ADDRESS).split(" ")
    connection = connected(host, int(port), {"rank": rank_in_job(), "word": word})
    communicator = world()
    send(connection, packed({"ready": communicator.rank}))
    with contextlib.suppress(EOFError, ConnectionError):
        carry_out(connection, communicator)
    connection.close()


def keep_memory() -> None:
    """Let this process keep up to 1 GiB of freed memory for arrays to come, of up to 32 MiB each.

    The C library of Linux gives memory of arrays back to the system, which hands out zeroed pages for the
    next ones: that takes about as long as to compute a sum of them. Elsewhere nothing is changed.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        change = ctypes.CDLL(None).mallopt
        for name, value in _KEPT.items():
            change(name, value)


def connected(host: str, port: int, introduction: dict[str, Any]) -> socket.socket:
    """A connection to the client."""
    connection = socket.create_connection((host, port), timeout=30)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    send(connection, packed(introduction))
    return connection


def carry_out(connection: socket.socket, communicator: Communicator) -> None:
    """Answer records until one says that there are no more, or the client is gone.

    Raises:
        EOFError, ConnectionError: if it is gone.
    """
    worker = Worker(communicator)
    while True:
        record, arrays = receive(connection)
        if record.get("close"):
            return
        if record.get("forget"):
            worker = Worker(communicator)
            continue
        send(connection, answer(worker, record, arrays))


def answer(worker: Worker, record: dict[str, Any], arrays: list[Any]) -> list[Any]:
    """Carry out a record; what to send back."""
    try:
        with told_site(record["site"]):
            found = find_handler(record["call"], record["module"])
            result = found(worker, record["arguments"], arrays) or Answer()
        return packed({"value": result.value}, result.arrays)
    except Exception as error:  # raised again at the client
        return packed(described(error, worker.communicator.rank))


def described(error: Exception, rank: int) -> dict[str, Any]:
    """An error as a record."""
    lines = traceback.format_exception(error)
    return {
        "error": type(error).__name__,
        "text": text_of(error),
        "line": line_of(error),
        "rank": rank,
        "trace": "".join(lines),
    }
