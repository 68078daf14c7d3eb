"""Batches of which each rank reads its own rows only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from magmadnn.compiler.kernels.formula import KEPT
from magmadnn.data import prefetch
from magmadnn.data._structure import take_rows
from magmadnn.data.ring import Follower
from magmadnn.errors import ArgumentError, DataError
from magmadnn.memory.foreign import OnDevice
from magmadnn.memory.room import Room

from .pieces import (
    Batch,
    BatchArrays,
    Chunk,
    ChunkIterator,
    batch_of,
    flat,
    mass_of,
    parts_like,
    parts_of,
    rows_of,
    told,
)
from .sources import ArraySource, Source

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.data.rows import GatheredRows

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

    ring_bytes: int | None = None

    def __init__(self, source: Source, own: Callable[[int], slice]) -> None:
        self._source, self._own = source, own
        self.digest = 0
        self._order: tuple[int, Order] | None = None  # of the epoch that `one` was asked for last
        self._gathered: GatheredRows | None = None
        self._nothing: Batch | None = None
        self.sample, self.rows = source.sample, source.rows

    @property
    def _in_memory(self) -> ArraySource | None:
        """The source, where its arrays lie in memory as a whole."""
        source = self._source
        return source if type(source) is ArraySource and source.in_memory else None

    @property
    def streams(self) -> bool:
        """See `Source`."""
        source = self._in_memory
        return source is None or source.streams

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
        """One whole batch of an epoch, where rows can be chosen; on a GPU until the next one is asked for.

        Raises:
            ArgumentError: where batches come one after the other.
        """
        source = self._source
        if type(source) is not ArraySource:
            raise ArgumentError("fit: AsyncSGD needs x and y as arrays, without augment")
        if self._order is None or self._order[0] != number:
            self._order = number, source.order(number)
        rows = self._order[1][batch * batch_size : (batch + 1) * batch_size]
        arrays = flat(source.arrays)
        there: list[Any] = [a for a in arrays if isinstance(a, OnDevice) and a.dtype.name in KEPT]
        if not there:
            return batch_of(rows_of(source.arrays, rows))
        known = self._gathered
        if known is None or known.most < len(rows) or known.arrays != tuple(there):
            from magmadnn.runtime.cuda.data.rows import GatheredRows

            self._gathered = known = GatheredRows(there, batch_size)
        made = dict(zip(map(id, there), known.take(rows), strict=True))
        taken: list[Any] = [made[id(a)] if id(a) in made else take_rows(a, rows) for a in arrays]
        return batch_of(parts_like(source.arrays, taken))

    def _read(self, source: ArraySource, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Batch:
        chosen = rows[self._own(len(rows))]
        if len(chosen):
            own = batch_of(rows_of(source.arrays, chosen))
        else:  # the server's of an asynchronous training
            if self._nothing is None:
                none = [a[:0] for a in flat(source.arrays)]
                self._nothing = batch_of(parts_like(source.arrays, none))
            own = self._nothing
        weights = source.arrays[2]
        weight = mass_of(weights[0][rows]) if weights else float(len(rows))
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
        source = self._in_memory
        if source is None:
            return None
        found = source.data(batch_size, room)
        return None if source.streams or source.ring_bytes is not None else found

    def taking(self, number: int, batch_size: int, start: int = 0) -> ChunkIterator | None:
        """Whole batches of an epoch; one by one they are this rank's rows."""
        source = self._in_memory
        if source is None:
            return None
        take = source.taking(number, batch_size, start)
        if take is None:
            return None
        rest = take.order[start * batch_size :]
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
