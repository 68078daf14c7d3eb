"""Batches of which each rank reads its own rows only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from magmadnn.data import prefetch
from magmadnn.data.ring import Follower
from magmadnn.errors import ArgumentError, DataError
from magmadnn.memory.room import Room

from .pieces import Batch, BatchArrays, Chunk, ChunkIterator, batch_of, parts_of, rows_of, told
from .sources import ArraySource, Source

Order = NDArray[np.int64]


class OwnRows:
    """A source of which this rank gets its rows of each batch; the order is that of one rank.

    Of arrays other rows are not read. Batches of an iterable, and images that are augmented, are made whole
    on each rank.

    Args:
        source: of whole batches.
        own: which of so many rows of a batch belong to this rank.

    Attributes:
        digest: of all whole batches that this rank has made itself.
    """

    streams = True
    ring_bytes: int | None = None

    def __init__(self, source: Source, own: Callable[[int], slice]) -> None:
        self._source, self._own = source, own
        self.digest = 0
        self.sample, self.rows = source.sample, source.rows

    def count(self, batch_size: int) -> int | None:
        """Batches of an epoch, if known."""
        return self._source.count(batch_size)

    def look(self) -> None:
        """See `Source`."""
        self._source.look()

    def epoch(self, number: int, batch_size: int, start: int) -> Iterator[Batch]:
        """This rank's rows of the batches of an epoch from batch `start` on."""
        if type(self._source) is not ArraySource:
            return map(self._part, self._source.epoch(number, batch_size, start))
        source, order = self._source, self._source.order(number)
        cut = range(start * batch_size, len(order), batch_size)
        found = map(partial(self._read, source), (order[k : k + batch_size] for k in cut))
        return found if source.in_memory else iter(prefetch(told(found, number, start)))

    def one(self, number: int, batch_size: int, batch: int) -> Batch:
        """One whole batch of an epoch, where rows can be chosen.

        Raises:
            ArgumentError: where batches come one after the other.
        """
        if type(self._source) is not ArraySource:
            raise ArgumentError("fit: AsyncSGD needs x and y as arrays, without augment")
        rows = self._source.order(number)[batch * batch_size : (batch + 1) * batch_size]
        return batch_of(rows_of(self._source.arrays, rows))

    def _read(self, source: ArraySource, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Batch:
        own = batch_of(rows_of(source.arrays, rows[self._own(len(rows))]))
        weights = source.arrays[2]
        weight = float(weights[0][rows].sum()) if weights else float(len(rows))
        return replace(own, whole_rows=len(rows), whole_weight=weight)

    def _part(self, batch: Batch) -> Batch:
        """This rank's rows of a whole batch, which is noted: all ranks are to have made the same."""
        for array in (*batch.inputs, *batch.targets):
            self.digest = crc32(np.ascontiguousarray(array).tobytes(), self.digest)
        if batch.whole_rows is not None:
            raise DataError(
                "fit: the batches are parts of batches already; give whole ones to each rank"
            )
        part = self._own(batch.rows)
        inputs, targets, weights = parts_of(batch)
        parts: BatchArrays = (
            tuple(a[part] for a in inputs),
            tuple(a[part] for a in targets),
            tuple(a[part] for a in weights),
        )
        return replace(batch_of(parts), whole_rows=batch.rows, whole_weight=batch.weight)

    def data(self, batch_size: int, room: Room | None) -> tuple[BatchArrays, int] | None:
        """The arrays of whole batches, where they lie in memory."""
        source = self._source
        if type(source) is not ArraySource or not source.in_memory:
            return None
        found = source.data(batch_size, room)
        return None if source.streams or source.ring_bytes is not None else found

    def taking(self, number: int, batch_size: int, start: int = 0) -> ChunkIterator | None:
        """Whole batches of an epoch; one by one they are this rank's rows."""
        source = self._source
        if type(source) is not ArraySource or not source.in_memory:
            return None
        take = source.taking(number, batch_size, start)
        if take is None:
            return None
        rest = source.order(number)[start * batch_size :]
        return _OwnChunks(take, rest, batch_size, partial(self._read, source))

    @contextmanager
    def pieces(
        self, number: int, batch_size: int, start: int, follower: Follower | None
    ) -> Iterator[ChunkIterator]:
        """As `taking`, for arrays in memory."""
        take = self.taking(number, batch_size, start)
        assert take is not None
        yield take


class _OwnChunks:
    """Whole batches, whose rows one by one are those of a rank."""

    def __init__(
        self, take: ChunkIterator, order: Order, size: int, read: Callable[[Order], Batch]
    ) -> None:
        self._take, self._order, self._size, self._read = take, order, size, read

    def __call__(self, most: int) -> Chunk | None:
        """Up to `most` batches; None at the end."""
        found = self._take(most)
        if found is None:
            return None
        rows, self._order = np.split(self._order, [found.count * self._size])
        cut = range(0, len(rows), self._size)
        parts = [rows[k : k + self._size] for k in cut]
        return replace(found, each=lambda: map(self._read, parts))
