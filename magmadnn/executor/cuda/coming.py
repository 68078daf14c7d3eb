"""Arrays of the host on their way to a device while steps run, rows in the order in which steps want them.

Threads gather rows into pinned memory, from where they are copied beside all else; the device puts them where
they belong before the steps that want them. So the first steps wait for the first rows only.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cuda import device_memory
from magmadnn.compiler.emit.cuda.put_rows import put_rows
from magmadnn.errors import OutOfMemoryError
from magmadnn.executor.row_copies import RowCopies
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.memory.room import Room

from .arrays import begin
from .data import Block
from .upload import give_back, pinned_for, threads

LEAST_BYTES = 8 << 20  # less is copied before steps begin
_MOST_BYTES = 4 << 30  # more would take too much room, as rows lie there twice meanwhile
_PIECE_BYTES = 16 << 20
_HALVES = 2  # of pinned memory, each with a thread: rows in one travel while others are gathered


class Coming:
    """Copies that are made while steps run; small ones are made first.

    To be held until all that was launched is done.

    Args:
        arrays: on the device; the copies of some may have to be made yet.
        order: of rows, as steps want them.
        place: address on the device where that order lies when it is needed.
    """

    def __init__(self, arrays: Sequence[OnDevice], order: NDArray[np.int64], place: int) -> None:
        self._order, self._place = order, place
        self._put = 0  # rows that are where they belong for what is launched now
        self._lots: list[_Rows] = []
        missing = [a for a in arrays if a.copy is not None and a.copy.missing is not None]
        self._large = [a for a in missing if _can_come(a, len(order))]
        try:
            if self._large:
                self._lots.append(_Rows(self._large, order))
        except OutOfMemoryError:
            self._large = []
        for array in missing:
            if array.copy is not None and array not in self._large:
                array.copy.make()

    def bring(self, rows: int) -> None:
        """Have the first `rows` of the order in their places before what is launched from now on."""
        rows = min(rows, len(self._order))
        if self._large and rows > self._put:
            self._lots[0].put(self._put, rows, self._place + 8 * self._put)
            self._put = rows

    def finish(self) -> None:
        """The same for all rows, also those that are not in the order: copies are made then."""
        if not self._large:
            return
        self.bring(len(self._order))
        left = np.ones(len(self._large[0]), bool)
        left[self._order] = False
        if left.any():
            others = np.flatnonzero(left)
            self._lots.append(_Rows(self._large, others))
            self._lots[-1].put_all()
        for array in self._large:
            if array.copy is not None:
                array.copy.brought()


def _can_come(array: OnDevice, wanted: int) -> bool:
    """Whether an array of which so many rows are wanted is to come row by row."""
    source = None if array.copy is None else array.copy.missing
    return (
        source is not None
        and LEAST_BYTES <= array.nbytes <= _MOST_BYTES
        and 2 * wanted >= len(array)
        and source.dtype == array.dtype
        and source[:1].flags.c_contiguous
    )


class _Rows:
    """Rows of arrays, in an order, on their way to memory of their own on a device."""

    def __init__(self, arrays: Sequence[OnDevice], order: NDArray[np.int64]) -> None:
        self._arrays, self._order = arrays, order
        self._device = arrays[0].device
        self._memory = device_memory(self._device)
        sources = [None if a.copy is None else a.copy.missing for a in arrays]
        self._sources = [source for source in sources if source is not None]
        self._bytes = [a[:1].nbytes for a in arrays]  # of a row
        self._blocks = [Block(n * len(order), self._device) for n in self._bytes]
        self._rows = max(_PIECE_BYTES // max(sum(self._bytes), 1), 1)  # of a piece
        self._next = self._there = 0  # rows that are taken by threads, and that have come
        self._ends: dict[int, int] = {}  # of pieces that came before others in front of them
        self._error: BaseException | None = None
        self._gathering, self._changed = threading.Lock(), threading.Condition()
        self._pinned = pinned_for(self._memory, _HALVES * self._rows * sum(self._bytes))
        self._goals, at = list[Array](), 0
        for array, nbytes in zip(arrays, self._bytes, strict=True):
            part = self._pinned[at : (at := at + _HALVES * self._rows * nbytes)]
            self._goals.append(part.view(array.dtype).reshape(-1, *array.shape[1:]))
        self._copies: RowCopies | None = None
        self._fetching = _HALVES
        self._memory.wait()  # for what may still use this memory
        for half in range(_HALVES):
            threads().submit(self._fetch, half)

    def put(self, first: int, last: int, order: int) -> None:
        """Begin to put rows in their places; their numbers are at an address of the device."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._there >= last)
            if self._error is not None:
                raise self._error
        for array, block, nbytes in zip(self._arrays, self._blocks, self._bytes, strict=True):
            source = block.address + first * nbytes
            begin(self._device, put_rows(last - first, nbytes, source, order, array.place))

    def put_all(self) -> None:
        """The same with all."""
        self._numbers = Block(8 * len(self._order), self._device)
        self._memory.copy_to_device(self._numbers.address, self._order.view(np.uint8))
        self.put(0, len(self._order), self._numbers.address)

    def _fetch(self, half: int) -> None:
        """Gather and copy pieces through one half of the pinned memory until none is left."""
        try:
            while (piece := self._gathered(half)) is not None:
                first, last = piece
                for block, goal, nbytes in zip(self._blocks, self._goals, self._bytes, strict=True):
                    rows = goal[half * self._rows :][: last - first].reshape(-1).view(np.uint8)
                    self._memory.copy_beside(block.address + first * nbytes, rows)
                self._memory.wait_beside()
                self._came(first, last)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._memory.wait_beside()
            with self._changed:
                self._fetching -= 1
                if not self._fetching:
                    give_back(self._memory, self._pinned)

    def _gathered(self, half: int) -> tuple[int, int] | None:
        """The next piece, whose rows were gathered; the first ones are short, as they are waited for."""
        with self._gathering:
            first = self._next
            last = min(first + min(self._rows, max(self._rows // 4, first, 1)), len(self._order))
            self._next = last
            if first == last:
                return None
            if self._copies is None:
                pairs = list(zip(self._sources, self._goals, strict=True))
                self._copies = RowCopies(pairs, self._rows, Room.threads)
            self._copies.run(self._order[first:last], half * self._rows, lambda first, last: None)
            return first, last

    def _came(self, first: int, last: int) -> None:
        with self._changed:
            self._ends[first] = last
            while self._there in self._ends:
                self._there = self._ends.pop(self._there)
            self._changed.notify_all()
