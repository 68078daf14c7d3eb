"""Rows of arrays of the host to their places on a device, in any order, while the device computes.

Native threads gather rows into a part of pinned memory, as records with their numbers. From there a lane of
the device copies them and puts them where they belong, while the next ones are gathered into another part.
Who sends waits for threads only.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.backends.cuda.engine import KernelNode, Mark
from magmadnn.compiler.emit.cuda.put_rows import put_rows, record_of
from magmadnn.executor.row_copies import RowCopies
from magmadnn.graph.op import Array
from magmadnn.memory.room import Room

from .arrays import node_of
from .data import Block

_PART_BYTES = 20 << 20
_PARTS = 3
_MOST_SPARE = 2
_spare: list[Relay] = []  # that nobody uses
_lock = threading.Lock()


class Relay:
    """Sends rows of arrays that look alike; tables for threads, pinned memory and all else is made once.

    Args:
        like: an array like each of those whose rows are sent.
        device: number of the device.

    Attributes:
        key: equal where one can send rows of what another was made for.
        rows: that are sent at once at most.

    Raises:
        OutOfMemoryError: if there is no room for rows on their way.
    """

    def __init__(self, like: Sequence[Array], device: int) -> None:
        self.key = _key(like, device)
        self._device, self._engine = device, device_engine(device)
        self._bytes = [a[:1].nbytes for a in like]
        self._record, starts = record_of(self._bytes)
        self.rows = _rows_of_part(self._record)
        count = _PARTS * self.rows
        self._pinned = device_memory(device).pinned(count * self._record)
        self._block = Block(count * self._record, device)
        self._numbers = np.arange(len(like[0]))  # of rows, which are the same in every record
        sources = [self._numbers, *like]
        goals = [
            self._field(start, array) for start, array in zip((0, *starts), sources, strict=True)
        ]
        self._copies = RowCopies(list(zip(sources, goals, strict=True)), self.rows, Room.threads)
        self._lane = self._engine.lane()
        self._marks: list[Mark | None] = [None] * _PARTS  # behind what is copied from each
        self._next = 0  # part
        self._put: KernelNode | None = None

    def _field(self, start: int, like: Array) -> Array:
        """The part of all records that holds rows of an array."""
        inner = np.empty((1, *like.shape[1:]), like.dtype).strides[1:]
        shape = (_PARTS * self.rows, *like.shape[1:])
        return np.ndarray(shape, like.dtype, self._pinned, start, (self._record, *inner))

    def bind(self, sources: Sequence[Array], places: Sequence[int]) -> None:
        """Send rows of these arrays to these addresses from now on, after all that was launched before."""
        self._copies.bind([self._numbers, *sources])
        fields = list(zip(self._bytes, places, strict=True))
        self._put = node_of(self._engine, put_rows(self.rows, self._block.address, fields))
        self._lane.follow(self._engine.mark())

    def send(self, numbers: NDArray[np.int64]) -> None:
        """Begin to send rows, at most `rows`; returns once they were gathered."""
        assert self._put is not None
        part, count = self._next, len(numbers)
        self._next = (part + 1) % _PARTS
        if (mark := self._marks[part]) is not None:
            mark.wait()
        first = part * self.rows
        self._copies.run(numbers, first, lambda first, last: None)
        at = first * self._record
        there = self._block.address + at
        self._lane.copy(there, self._pinned.ctypes.data + at, count * self._record)
        self._marks[part] = self._lane.mark()
        _, record, _, *fields = self._put.arguments
        self._lane.launch(replace(self._put, arguments=(count, record, there, *fields)))

    def arrive(self) -> None:
        """All that was sent is in its place for what is launched from now on."""
        self._engine.follow(self._lane.mark())

    def wait(self) -> None:
        """Return once all that was sent is in its place."""
        self._lane.mark().wait()

    def give_back(self) -> None:
        """Let others have it."""
        self._copies.bind([])
        with _lock:
            _spare.append(self)
            del _spare[:-_MOST_SPARE]


def relay_for(arrays: Sequence[Array], device: int) -> Relay:
    """One that sends rows of arrays like these, to be given back.

    Raises:
        OutOfMemoryError: if there is no room for rows on their way.
    """
    key = _key(arrays, device)
    with _lock:
        for number, known in enumerate(_spare):
            if known.key == key:
                return _spare.pop(number)
    return Relay(arrays, device)


def _key(arrays: Sequence[Array], device: int) -> tuple[object, ...]:
    """Equal where one relay can send rows of either."""
    record, _ = record_of([a[:1].nbytes for a in arrays])
    looks = [(a.shape, a.dtype) for a in arrays]
    return (device_memory(device), _rows_of_part(record), *looks)


def _rows_of_part(record: int) -> int:
    """Rows of a part, by the bytes of a record."""
    return max(_PART_BYTES // record, 1)
