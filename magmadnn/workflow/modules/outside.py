"""The tuple space for programs that a module starts: `connect` in Python, `magmadnn-tuple` in a shell."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError, MagmaDNNError, WorkflowError
from magmadnn.workflow.tuples.payload import array_of, pack, unpack

from .commands import SOCKET, receive, send


class Outside:
    """The tuple space of the workflow that has started this program.

    Raises:
        WorkflowError: no workflow has.
    """

    def __init__(self) -> None:
        path = os.environ.get(SOCKET)
        if path is None:
            raise WorkflowError(
                f"connect: this program was not started by a workflow: {SOCKET} is not set"
            )
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(path)
        except OSError as error:
            raise WorkflowError(f"connect: the workflow has ended: {error}") from error

    def put(self, tag: str, value: Any) -> None:
        """Put an array, bytes or JSON value under a tag."""
        words, data = pack(value)
        self._call({"op": "put", "tag": tag, "words": words.decode()}, data)

    def get(self, tag: str, *, dtype: Any = None) -> Any:
        """Take the oldest value of a tag; waits until there is one."""
        return array_of(tag, self._get(tag, True, True), dtype)

    def read(self, tag: str, *, dtype: Any = None) -> Any:
        """As `get`, and it stays for others."""
        return array_of(tag, self._get(tag, True, False), dtype)

    def try_get(self, tag: str, *, dtype: Any = None) -> Any:
        """As `get`; None where there is none yet."""
        found = self._get(tag, False, True)
        return None if found is None else array_of(tag, found, dtype)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _get(self, tag: str, wait: bool, take: bool) -> Any:
        record, data = self._call({"op": "get", "tag": tag, "wait": wait, "take": take})
        return unpack(record["words"].encode(), data) if record["there"] else None

    def _call(self, record: dict[str, Any], data: Any = b"") -> tuple[dict[str, Any], bytearray]:
        send(self._socket, record, data)
        found = receive(self._socket)
        if found is None:
            raise WorkflowError("connect: the workflow has ended")
        if "error" in found[0]:
            raise WorkflowError(found[0]["error"])
        return found


def connect() -> Outside:
    """The tuple space, for a Python program that is a module's command.

    Raises:
        WorkflowError: it was not started by a workflow.
    """
    return Outside()


def main() -> int:
    """`magmadnn-tuple put|get|read TAG`; returns the exit code."""
    about = "Put a value into, or get one from, the tuple space of the workflow that started this program."
    parser = argparse.ArgumentParser(prog="magmadnn-tuple", description=about, allow_abbrev=False)
    parser.add_argument("action", choices=("put", "get", "read"))
    parser.add_argument("tag")
    parser.add_argument(
        "file", nargs="?", default="-", help="of the value (default: - for the standard streams)"
    )
    parser.add_argument("--as", dest="kind", choices=("json", "bytes", "npy"), default="json")
    found = parser.parse_args()
    try:
        outside = connect()
        if found.action == "put":
            outside.put(found.tag, _read(found.file, found.kind))
        else:
            get = outside.get if found.action == "get" else outside.read
            _write(found.file, found.kind, get(found.tag))
    except (MagmaDNNError, OSError) as error:
        print(f"magmadnn-tuple: error: {error}", file=sys.stderr)
        return 2
    return 0


def _read(name: str, kind: str) -> Any:
    import io

    import numpy as np

    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    if kind == "bytes":
        return data
    if kind == "npy":
        return np.load(io.BytesIO(data), allow_pickle=False)
    try:
        return json.loads(data)
    except ValueError as error:
        raise ArgumentError(
            f"put: {name} is no JSON: {error}; --as bytes takes anything"
        ) from error


def _write(name: str, kind: str, value: Any) -> None:
    import io

    import numpy as np

    if kind == "npy":
        buffer = io.BytesIO()
        np.save(buffer, value, allow_pickle=False)
        data = buffer.getvalue()
    elif kind == "bytes":
        data = value if isinstance(value, bytes) else np.asarray(value).tobytes()
    else:
        data = (json.dumps(value.tolist() if hasattr(value, "tolist") else value) + "\n").encode()
    if name == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        Path(name).write_bytes(data)
