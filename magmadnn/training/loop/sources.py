"""Where batches come from: arrays in memory or mapped from files, or an iterable of batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from magmadnn.data import batch_count, batches, order, prefetch
from magmadnn.data._structure import is_mapped
from magmadnn.data.batching import orders
from magmadnn.data.ring import Follower, Ring
from magmadnn.errors import DataError, OutOfMemoryError
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice, as_array
from magmadnn.memory.on_demand import OnDemand
from magmadnn.memory.room import Room
from magmadnn.ops.philox import shuffled
from magmadnn.runtime.cpu.row_copies import RowCopies
from magmadnn.tensor import Operation

from .given import as_batch
from .pieces import (
    PARTS,
    Batch,
    BatchArrays,
    ChunkIterator,
    FromRing,
    InMemory,
    Reader,
    batch_of,
    fill,
    flat,
    numbered,
    part_of_ring,
    parts_like,
    parts_of,
    rows_of,
    told,
)
from .resident import settle_all

_MOST_KEPT = 1 << 20  # rows of an order that is kept
_LEAST_AHEAD = (
    4096  # rows whose order a thread draws ahead: to start it costs as much as to draw for less
)
_ORDERS = 8  # that are kept
_AHEAD = 64  # batches of an iterable that are prepared ahead at most


_orders: dict[tuple[int, int, int], NDArray[np.int64]] = {}
_keeping = threading.Lock()  # orders are kept by threads that draw ahead, too


class Source(Protocol):
    """Gives the batches of an epoch."""

    sample: Batch  # for shapes and dtypes of targets
    rows: int | None  # samples of an epoch, if known
    ring_bytes: int | None  # of a ring on the device that rows of `data` pass through

    @property
    def streams(self) -> bool:
        """Whether rows of `data` hold something only once that was told."""
        ...

    def count(self, batch_size: int) -> int | None:
        """Batches of an epoch, if known."""
        ...

    def look(self) -> None:
        """Look at values that nobody has looked at yet.

        Raises:
            DataError: if one cannot be trained on, naming where.
        """
        ...

    def epoch(self, number: int, batch_size: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch from batch `start` on."""
        ...

    def data(self, batch_size: int, room: Room | None) -> tuple[BatchArrays, int] | None:
        """What slices gather batches from, and rows of a batch; None if there is no whole batch.

        Args:
            batch_size: samples of a batch, if the source does not decide.
            room: that a device has for data; None where slices read the host's memory.
        """
        ...

    def taking(self, number: int, batch_size: int, start: int = 0) -> ChunkIterator | None:
        """What `pieces` gives, where several epochs may be open; None where each has to end first."""
        ...

    def pieces(
        self, number: int, batch_size: int, start: int, follower: Follower | None
    ) -> AbstractContextManager[ChunkIterator]:
        """The batches of an epoch from batch `start` on, for slices over `data`.

        `follower` is told, by another thread, of rows of `data` that have changed before they are given out.
        """
        ...


class ArraySource:
    """Batches of arrays, in an order that depends on seed and epoch only.

    Arrays in memory are gathered from where they are. Those that are mapped from files are read by a thread
    into half of a ring, in their own order, while batches of the other half run; so are those that are larger
    than the room on a device where rows are no bytes that follow each other.

    Args:
        inputs: one array for each input.
        targets: one for each output.
        weights: of the samples.
        seed: of the order; None: as they stand.
        chosen: the rows that are meant, ascending; None: all.
        device: number of a GPU that draws orders.
        look: looks at values of inputs and targets that lie on a device.
        in_memory: whether no array is mapped from a file, where that is known.
    """

    def __init__(
        self,
        inputs: Sequence[Array],
        targets: Sequence[Array],
        weights: Array | None,
        *,
        seed: int | None,
        chosen: NDArray[np.int64] | None = None,
        device: int | None = None,
        look: Callable[[], object] = lambda: None,
        in_memory: bool | None = None,
    ) -> None:
        self._look, self._in_memory = look, in_memory
        self.arrays: BatchArrays = (
            tuple(inputs),
            tuple(targets),
            () if weights is None else (weights,),
        )
        self.seed = seed
        self.chosen, self._device = chosen, device
        self.rows: int | None = len(inputs[0]) if chosen is None else len(chosen)
        self.sample = batch_of(self.arrays)
        self._rings: dict[int, tuple[Ring, Reader]] = {}
        self.streams = False
        self.ring_bytes: int | None = None
        self._next: tuple[int, Future[NDArray[np.int64]]] | None = None

    @property
    def in_memory(self) -> bool:
        """Whether no array is mapped from a file."""
        if self._in_memory is None:
            self._in_memory = not any(is_mapped(a) for part in self.arrays for a in part)
        return self._in_memory

    def order(self, number: int) -> NDArray[np.int64]:
        """The order of the rows in an epoch. A thread begins with the next one's meanwhile, if it is long."""
        found, begin_next = self._order_and_next(number)
        begin_next()
        return found

    def _order_and_next(self, number: int) -> tuple[NDArray[np.int64], Callable[[], None]]:
        """The order of the rows in an epoch, and what begins with the next one's."""
        return self._order_of(number), partial(self._begin_order, number + 1)

    def _order_of(self, number: int) -> NDArray[np.int64]:
        """The order of the rows in an epoch; what a thread has begun is waited for."""
        rows, seed = self.rows or 0, self.seed
        if seed is None:
            return self._chosen_of(np.arange(rows))
        begun = self._next
        if begun and begun[0] == number:
            self._next = None  # if it has failed, the next who asks tries again
            return self._chosen_of(begun[1].result())
        return self._chosen_of(order_of(rows, seed, number, device=self._device))

    def _begin_order(self, number: int) -> None:
        """Let a thread begin with the order of an epoch, if it is long and not known."""
        rows, seed = self.rows or 0, self.seed
        if seed is None or rows < _LEAST_AHEAD or (rows, seed, number) in _orders:
            return
        if self._next is None or self._next[0] != number:
            self._next = (number, ahead(partial(order_of, device=self._device), rows, seed, number))

    def orders(self, first: int, epochs: int) -> NDArray[np.int64]:
        """The orders of some epochs that follow each other, [epochs, rows], for the processor."""
        rows, seed = self.rows or 0, self.seed
        if seed is None:
            return np.stack([self._chosen_of(np.arange(rows))] * epochs)
        if epochs == 1 or rows >= _LEAST_AHEAD:
            return np.stack([self.order(first + number) for number in range(epochs)])
        return self._chosen_of(orders(rows, seed, first, epochs))

    def _chosen_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return numbers if self.chosen is None else self.chosen[numbers]

    def look(self) -> None:
        """Look at what lies on a device and was not looked at.

        Raises:
            DataError: naming where.
        """
        arrays: list[object] = list(flat(self.arrays))
        settle_all(arrays)
        if any(isinstance(a, OnDevice) and a.looks.wanted for a in arrays):
            self._look()

    def count(self, batch_size: int) -> int | None:
        """Batches of an epoch."""
        return batch_count(self.rows or 0, batch_size)

    def epoch(self, number: int, batch_size: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch; mapped files are read ahead by a thread.

        Raises:
            DataError: if a file cannot be read, naming the batch.
        """
        if self.chosen is None:
            found = batches(self.arrays, batch_size, seed=self.seed, epoch=number, start=start)
        else:
            rows = self.order(number)
            steps = range(start * batch_size, len(rows), batch_size)
            found = (rows_of(self.arrays, rows[k : k + batch_size]) for k in steps)
        if self.in_memory:
            return map(batch_of, found)
        return map(batch_of, prefetch(told(found, number, start)))

    def data(self, batch_size: int, room: Room | None) -> tuple[BatchArrays, int] | None:
        """The arrays, or the ring that they are read into."""
        if (self.rows or 0) < batch_size:
            return None
        self.ring_bytes = None
        arrays = flat(self.arrays)
        host = _host_bytes(arrays)
        if self.in_memory and (room is None or not host or host <= room.nbytes):
            return self.arrays, batch_size
        arrays = [a if isinstance(a, OnDemand) else as_array(a) for a in arrays]
        self.arrays, self._in_memory = parts_like(self.arrays, arrays), None
        if room is not None and self.in_memory and all(map(RowCopies.can_send, arrays)):
            self.ring_bytes = room.ring_bytes
            return self.arrays, batch_size
        if batch_size not in self._rings:
            count = part_of_ring(arrays, batch_size, (self.rows or 0) // batch_size, room)
            memory = None if room is None else room.pinned
            ring = Ring(arrays, batch_size, PARTS * count, memory)
            reader = Reader(self.arrays, ring, count, 1 if room is None else room.threads)
            self._rings[batch_size], self.streams = (ring, reader), True
        return parts_like(self.arrays, self._rings[batch_size][0].arrays), batch_size

    def taking(self, number: int, batch_size: int, start: int = 0) -> InMemory | None:
        """The batches of an epoch; None where they go through a ring."""
        if batch_size in self._rings:
            return None
        found, begin_next = self._order_and_next(number)
        if self._device is None:
            begin_next()
            return InMemory(self.arrays, found, batch_size, start)
        # the thread would take time from the one that sends a GPU its first steps
        return InMemory(self.arrays, found, batch_size, start, begin_next)

    @contextmanager
    def pieces(
        self, number: int, batch_size: int, start: int, follower: Follower | None
    ) -> Iterator[ChunkIterator]:
        """The batches of an epoch; those of a ring are in it meanwhile."""
        take = self.taking(number, batch_size, start)
        if take is not None:
            yield take
            return
        ring, reader = self._rings[batch_size]
        with ring.start(partial(reader.fill, self.order(number), number, start), follower):
            yield FromRing(ring, self.arrays, True)


class IterableSource:
    """Batches from an iterable, or from a function that makes one for each epoch.

    A thread prepares the next batches, in a ring if they are all alike. Those that lie on the device stay
    there.

    Args:
        source: the iterable, or the function.
        device: number of the GPU that they are for.
        inputs: names of the inputs, for dicts.
        outputs: which have names too.
        look: looks at the targets of each batch.
    """

    rows: int | None = None
    streams = True
    ring_bytes: int | None = None

    def __init__(
        self,
        source: Iterable[Any] | Callable[[], Iterable[Any]],
        device: int | None = None,
        inputs: Sequence[str] = (),
        outputs: Sequence[Operation] = (),
        look: Callable[[list[Array]], None] = lambda targets: None,
    ) -> None:
        self.source = source
        self._as_batch = partial(as_batch, device=device, inputs=inputs, outputs=outputs)
        self._look_at = look
        self._first: Iterator[Any] | None = iter(self._fresh())
        with numbered(0, 0):
            head = next(self._first, self)
            if head is self:
                raise DataError(
                    "the iterable of batches is empty; a generator can be gone through once: make a new one"
                )
            self.sample = self._batch(head)
        self._first = _chain(head, self._first)
        self._ring: Ring | None = None

    def _batch(self, item: Any) -> Batch:
        batch = self._as_batch(item)
        self._look_at(batch.targets)
        return batch

    def _fresh(self) -> Iterable[Any]:
        return self.source() if callable(self.source) else self.source

    def look(self) -> None:
        """Nothing: batches are looked at by what they give."""

    def count(self, batch_size: int) -> int | None:
        """Batches of an epoch, if the iterable has a length."""
        return len(self.source) if isinstance(self.source, Sized) else None

    def epoch(self, number: int, batch_size: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch.

        Raises:
            DataError: if an iterator is used up; only a list, a dataset or a function starts again.
        """
        with prefetch(self._batches(number, start)) as ahead:
            yield from ahead

    def _batches(self, number: int, start: int) -> Generator[Batch]:
        items = self._first if self._first is not None else iter(self._fresh())
        self._first = None
        found = False
        read = map(self._batch, islice(items, start, None))
        for batch in told(read, number, start):
            found = True
            yield batch
        if not found and not start:
            raise DataError(
                f"the iterator of batches is used up in epoch {number + 1}; hand over a function "
                "that makes one for each epoch"
            )

    def data(self, batch_size: int, room: Room | None) -> tuple[BatchArrays, int] | None:
        """A ring for batches like the first; the iterable decides how large they are."""
        parts, size = parts_of(self.sample), self.sample.rows
        if self._ring is None:
            places = PARTS * part_of_ring(flat(parts), size, _AHEAD // PARTS, room)
            memory = None if room is None else room.pinned
            try:
                self._ring = Ring(flat(parts), size, places, memory)
            except OutOfMemoryError:  # of the device
                self._ring = Ring([np.asarray(a) for a in flat(parts)], size, places, memory)
        return parts_like(parts, self._ring.arrays), size

    def taking(self, number: int, batch_size: int, start: int = 0) -> ChunkIterator | None:
        """None: there is one ring."""
        return None

    @contextmanager
    def pieces(
        self, number: int, batch_size: int, start: int, follower: Follower | None
    ) -> Iterator[ChunkIterator]:
        """The batches of an epoch; those that are like the first are in the ring meanwhile."""
        assert self._ring is not None
        ring, found = self._ring, self._batches(number, start)
        with ring.start(partial(fill, ring, found), follower):
            yield FromRing(ring, parts_of(self.sample), False)


def _host_bytes(arrays: Sequence[Array]) -> int:
    """Bytes of all that does not lie on a device already."""
    return sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))


def order_of(rows: int, seed: int, number: int, device: int | None = None) -> NDArray[np.int64]:
    """The order of the rows in an epoch, by a GPU if one is given: the same.

    The last ones are kept, where they are not large.
    """
    if rows > _MOST_KEPT:
        return order(rows, seed, number, device)
    key = (rows, seed, number)
    with _keeping:
        known = _orders.get(key)
    if known is not None:
        return known
    on_host = device is None
    found = shuffled(rows, seed, number) if on_host else order(rows, seed, number, device)
    found.flags.writeable = False
    with _keeping:
        while len(_orders) >= _ORDERS:
            del _orders[next(iter(_orders))]
        _orders[key] = found
    return found


def ahead(compute: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """What a function gives, computed by a thread of its own that ends with it."""
    made: Future[Any] = Future()

    def run() -> None:
        try:
            made.set_result(compute(*arguments))
        except Exception as error:
            made.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return made


def _chain(head: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield head
    yield from rest
