"""Rows of arrays of the host to their places on a device, in any order, while the device computes.

Native threads gather rows into a part of pinned memory, as records with the number of the row that each is
to become. From there a lane of the device copies them and puts them where they belong, while the next
ones are gathered into another part. One of the threads also tells the device what to do with them, and to
launch graphs of steps: from the first row to the last no interpreter takes part.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.backends.cuda.engine import NativeCall
from magmadnn.compiler.cuda.fused.put_rows import put_rows, record_of
from magmadnn.compiler.llvm.driver.calls import CALL_WORDS, Calls
from magmadnn.compiler.llvm.driver.driver import Task
from magmadnn.compiler.llvm.kernel import Loaded, block, load
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.graph.op import Array
from magmadnn.memory.room import Room
from magmadnn.runtime.cpu.row_copies import RowCopies, pieces_of

from .arrays import node_of
from .block import Block

_PART_BYTES = 20 << 20
_LEAST_BYTES = 1 << 20  # of a part, where a device has little memory
_PARTS = 4  # all of them stay in the processor's cache, from where they are copied
_ROUTES = 2  # that are kept
_MOST_SPARE = 2
_spare: list[GatheringUploader] = []  # that nobody uses
_lock = threading.Lock()


class WaitPoint(NamedTuple):
    """Rows that are waited for together.

    Attributes:
        rows: how many.
        before: what is called before they are sent.
        after: and once they are on their way, and what is launched from now on waits for them.
    """

    rows: int
    before: tuple[NativeCall, ...] = ()
    after: tuple[NativeCall, ...] = ()


class CommandTable(NamedTuple):
    """Stops as tables for native code.

    Attributes:
        stops: what it was made for.
        pieces: of rows; behind the last, one that has none.
        calls: in order.
        table, firsts: those as words, and which are made while each piece is gathered.
        arguments: of the kernel that puts rows, for each piece.
    """

    stops: Sequence[WaitPoint]
    pieces: NDArray[np.int64]
    calls: Sequence[NativeCall]
    table: NDArray[np.int64]
    firsts: NDArray[np.int64]
    arguments: NDArray[np.int64]


class GatheringUploader:
    """Sends rows of arrays that look alike; tables for threads, pinned memory and all else is made once.

    Args:
        like: an array like each of those whose rows are sent.
        device: number of the device.
        most: bytes of memory there, unless that is very little; None: what is fastest.

    Attributes:
        key: equal where one can send rows of what another was made for.
        rows: that are sent at once at most.
        nbytes: of memory on the device.
        lane: that copies them.
        behind: what is called before rows that come after all that was launched before.
        places: addresses that they are sent to.

    Raises:
        OutOfMemoryError: if there is no room for rows on their way.
    """

    def __init__(self, like: Sequence[Array], device: int, most: int | None = None) -> None:
        self.key = _key(like, device, most)
        self._engine = device_engine(device)
        nbytes = [a[:1].nbytes for a in like]
        self._record, starts = record_of(nbytes)
        self.rows = _rows_of_part(self._record, most)
        count = _PARTS * self.rows
        self.nbytes = count * self._record
        self._pinned = device_memory(device).pinned(self.nbytes)
        self._block = Block(self.nbytes, device)
        number = np.empty(1, np.int64)
        pairs = [
            (source, self._field(start, source))
            for start, source in zip((0, *starts), (number, *like), strict=True)
        ]
        self._failed = np.zeros(2, np.int64)
        self._calls = block(Calls(), calls=0, firsts=0, failed=self._failed)
        calling = Task(_kernel(), self._calls, (self._failed,))
        self._copies = RowCopies(pairs, self.rows, Room.threads, [calling])
        self._copies.bind([])
        self.lane = self._engine.lane()
        before = self._engine.fence()
        self.behind = (self._engine.calls.mark(before), self.lane.calls.follow(before))
        self._sent = [self._engine.fence() for _ in range(_PARTS)]  # behind the copy from each part
        fields = [(size, 0) for size in nbytes]
        put = put_rows(self.rows, self._block.address, fields)
        self._put, self._slots = node_of(self._engine, put), put.variant.slots
        self._routes: list[CommandTable] = []  # that were used last
        self.places: Sequence[int] = ()
        self._ascending = np.empty(0, np.int64)

    def _field(self, start: int, like: Array) -> Array:
        """The part of all records that holds rows of an array."""
        inner = np.empty((1, *like.shape[1:]), like.dtype).strides[1:]
        shape = (_PARTS * self.rows, *like.shape[1:])
        return np.ndarray(shape, like.dtype, self._pinned, start, (self._record, *inner))

    def run(
        self,
        stops: Sequence[WaitPoint],
        sources: Sequence[Array],
        order: NDArray[np.int64],
        goals: NDArray[np.int64],
    ) -> None:
        """Send rows from stop to stop; returns once all were gathered.

        Args:
            stops: for as many rows as there are in `order`; for those of the last times tables are there.
            sources: arrays,
            order: and numbers of their rows.
            goals: numbers of the rows that they become.
        """
        known = [route for route in self._routes if route.stops == stops]
        route = known[0] if known else self._routed(stops)
        self._routes = [route, *(r for r in self._routes if r is not route)][:_ROUTES]
        for number, place in enumerate(self.places):
            route.arguments[:, self._slots.index(f"result{number}")] = place
        for slot, words in (("calls", route.table), ("firsts", route.firsts)):
            self._calls[Calls.slots.index(slot)] = words.ctypes.data
        self._sent[0].wait()  # of a run before; for other parts the table waits
        self._copies.bind([goals, *sources])
        if len(self._ascending) < len(order):
            self._ascending = np.arange(len(order))
        orders = [self._ascending, *[order] * len(sources)]
        try:
            self._copies.run_pieces(orders, route.pieces)
        finally:
            self._copies.bind([])
        status, number = self._failed.tolist()
        if status:
            self._failed[:] = 0
            self._engine.fail(route.calls[number], status)

    def _routed(self, stops: Sequence[WaitPoint]) -> CommandTable:
        """The tables for some stops: a piece is sent while the one behind it is gathered."""
        pieces = [piece for stop in stops for piece in self._pieces(stop)]
        arguments = np.tile(np.array(self._put.arguments, np.int64), (len(pieces), 1))
        calls, firsts = list[NativeCall](), [0]
        for number in range(len(pieces) + 1):
            calls.append(self._engine.enter)
            if number:
                calls += self._sending(number - 1, pieces[number - 1], arguments[number - 1])
            calls.append(self._sent[(number + 1) % _PARTS].call)
            firsts.append(len(calls))
        table = np.zeros((len(calls), CALL_WORDS), np.int64)
        for row, call in zip(table, calls, strict=True):
            row[: len(call.words)] = call.words
        parts = np.arange(len(pieces) + 1) % _PARTS
        rows = pieces_of([*(piece.rows for piece in pieces), 0], parts * self.rows)
        return CommandTable(stops, rows, calls, table, np.array(firsts, np.int64), arguments)

    def _pieces(self, stop: WaitPoint) -> list[WaitPoint]:
        """The same as stops for which a part has room."""
        counts = [min(self.rows, stop.rows - k) for k in range(0, max(stop.rows, 1), self.rows)]
        found = [WaitPoint(count) for count in counts]
        found[0] = found[0]._replace(before=stop.before)
        found[-1] = found[-1]._replace(after=stop.after)
        return found

    def _sending(
        self, number: int, piece: WaitPoint, arguments: NDArray[np.int64]
    ) -> Iterable[NativeCall]:
        """What sends a piece that was gathered; what is launched from then on waits for it."""
        part = number % _PARTS
        at = part * self.rows * self._record
        there, lane = self._block.address + at, self.lane.calls
        for slot, value in (("records", piece.rows), ("source", there)):
            arguments[self._slots.index(slot)] = value
        return (
            *piece.before,
            lane.copy(there, self._pinned.ctypes.data + at, piece.rows * self._record),
            lane.launch(self._put, arguments),
            lane.mark(self._sent[part]),
            self._engine.calls.follow(self._sent[part]),
            *piece.after,
        )

    def wait(self) -> None:
        """Return once all that was sent is in its place."""
        self.lane.mark().wait()

    def give_back(self) -> None:
        """Let others have it."""
        with _lock:
            _spare.append(self)
            del _spare[:-_MOST_SPARE]


def relay_for(arrays: Sequence[Array], device: int) -> GatheringUploader:
    """One that sends rows of arrays like these, to be given back.

    Raises:
        OutOfMemoryError: if there is no room for rows on their way.
    """
    key = _key(arrays, device)
    with _lock:
        for number, known in enumerate(_spare):
            if known.key == key:
                return _spare.pop(number)
    return GatheringUploader(arrays, device)


def _key(arrays: Sequence[Array], device: int, most: int | None = None) -> tuple[object, ...]:
    """Equal where one relay can send rows of either."""
    record, _ = record_of([a[:1].nbytes for a in arrays])
    looks = [(a.shape[1:], a.dtype) for a in arrays]
    return (device_memory(device), _rows_of_part(record, most), *looks)


def _rows_of_part(record: int, most: int | None = None) -> int:
    """Rows of a part, by the bytes of a record and those of all parts."""
    part = _PART_BYTES if most is None else min(_PART_BYTES, max(most // _PARTS, _LEAST_BYTES))
    return max(part // record, 1)


@cache
def _kernel() -> Loaded:
    return load([Calls()], cache=kernel_cache())[0]
