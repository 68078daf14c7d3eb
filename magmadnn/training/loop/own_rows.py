"""Batches of which each rank reads its own rows only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import numpy as np

from magmadnn.data import prefetch
from magmadnn.data.ring import Follower
from magmadnn.errors import ArgumentError, DataError
from magmadnn.memory.room import Room

from .pieces import Batch, BatchArrays, ChunkIterator, batch_of, parts_of, rows_of, told
from .sources import ArraySource, Source


class OwnRows:
    """A source of which this rank gets its rows of each batch; the order is that of one rank.

    Of arrays other rows are not read. Batches of an iterable, and images that are augmented, are made whole
    on each rank.

    Args:
        source: of whole batches.
        own: which of so many rows of a batch belong to this rank.
    """

    streams = True
    ring_bytes: int | None = None

    def __init__(self, source: Source, own: Callable[[int], slice]) -> None:
        self._source, self._own = source, own
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
        """None: batches come one by one."""
        return None

    def taking(self, number: int, batch_size: int, start: int = 0) -> ChunkIterator | None:
        """None, as `data`."""
        return None

    def pieces(
        self, number: int, batch_size: int, start: int, follower: Follower | None
    ) -> AbstractContextManager[ChunkIterator]:
        """Of the whole batches; nobody asks for them where `data` gives None."""
        return self._source.pieces(number, batch_size, start, follower)
