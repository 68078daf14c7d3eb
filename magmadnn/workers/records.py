"""Records on a socket: a line of JSON and raw arrays, never pickled objects.

A record is 12 bytes (the length of the JSON, 4 bytes, and of all arrays, 8 bytes, big-endian), the JSON,
which holds dtype and shape of each array under "arrays", and the arrays' bytes one after the other.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from magmadnn.comm.arrays import as_bytes, dtype_of, sendable
from magmadnn.errors import DataError
from magmadnn.memory.dtypes import in_own_order, refuse_masked

_HEAD: Final = struct.Struct("!IQ")
Record = dict[str, Any]


def packed(record: Record, arrays: Sequence[Any] = ()) -> list[Any]:
    """The buffers of a record.

    Raises:
        DataError: if a value cannot be written as JSON, or elements are masked.
        DTypeError: if an array holds objects.
    """
    arrays = [np.ascontiguousarray(sendable_array(array)) for array in arrays]
    described = [[array.dtype.name, *array.shape] for array in arrays]
    try:
        text = json.dumps({**record, "arrays": described}).encode()
    except (TypeError, ValueError) as error:
        raise DataError(
            f"a record for workers holds what cannot be written as JSON: {error}"
        ) from None
    total = sum(array.nbytes for array in arrays)
    return [_HEAD.pack(len(text), total) + text, *[as_bytes(a) for a in arrays if a.nbytes]]


def sendable_array(value: Any) -> Any:
    """An array as workers read it by the name of its dtype, in this machine's order of bytes.

    Raises:
        DTypeError: if it holds objects.
        DataError: if elements are masked.
    """
    refuse_masked("workers", value)
    return sendable(in_own_order(np.asarray(value, order="C")), "workers")


def send(connection: socket.socket, buffers: Sequence[Any]) -> None:
    """Send what `packed` made."""
    for buffer in buffers:
        connection.sendall(buffer)


def receive(connection: socket.socket) -> tuple[Record, list[Any]]:
    """The next record.

    Raises:
        EOFError: if the other side has closed.
    """
    length, total = _HEAD.unpack(_exactly(connection, _HEAD.size))
    record: Record = json.loads(bytes(_exactly(connection, length)))
    arrays = []
    for name, *shape in record.pop("arrays"):
        array = np.empty(shape, dtype_of(name))
        if array.nbytes:
            _fill(connection, memoryview(as_bytes(array)))
        total -= array.nbytes
        arrays.append(array)
    if total:
        raise DataError("a record's arrays are not as long as it says")
    return record, arrays


def _exactly(connection: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    _fill(connection, memoryview(buffer))
    return buffer


def _fill(connection: socket.socket, view: memoryview) -> None:
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError("the other side has closed")
        view = view[count:]
