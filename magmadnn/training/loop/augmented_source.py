"""Batches of images that are changed at random: by threads meanwhile, or by the step itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data import prefetch
from magmadnn.data.augment.pipeline import Pipeline
from magmadnn.data.ring import Follower, Ring
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.memory.room import Room

from .pieces import (
    PARTS,
    Batch,
    BatchArrays,
    ChunkIterator,
    FromRing,
    fill,
    flat,
    part_of_ring,
    parts_like,
    parts_of,
    told,
)
from .sources import ArraySource, ahead


class AugmentedSource(ArraySource):
    """Batches of arrays whose images go through a pipeline; otherwise those of `ArraySource`.

    What a row becomes depends on seed, epoch and its number only. Threads make whole batches, which come out
    in order, into a ring.

    Args:
        images: [rows, height, width, channels].
        targets: of each.
        weights: of the samples.
        pipeline: what is done to them.
        workers: threads.
        seed: of the order; None: as they stand.
        chosen: the rows that are meant, ascending; None: all.
    """

    def __init__(
        self,
        images: Array,
        targets: Array,
        weights: Array | None,
        *,
        pipeline: Pipeline,
        workers: int,
        seed: int | None,
        chosen: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__([images], [targets], weights, seed=seed, chosen=chosen)
        self._pipeline, self._workers = pipeline, workers
        self._every = np.arange(len(images)) if chosen is None else chosen
        self._given = (images, targets, weights)
        self.sample = self._batch(0, self._every[:1])
        self._places: dict[int, Ring] = {}
        self.streams = True

    def epoch(self, number: int, batch_size: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch."""
        with prefetch(self._batches(number, batch_size, start)) as ready:
            yield from ready

    def data(self, batch_size: int, room: Room | None) -> tuple[BatchArrays, int] | None:
        """A ring that batches are made into."""
        if (self.rows or 0) < batch_size:
            return None
        parts = parts_of(self.sample)
        if batch_size not in self._places:
            count = part_of_ring(flat(parts), batch_size, (self.rows or 0) // batch_size, room)
            memory = None if room is None else room.pinned
            self._places[batch_size] = Ring(flat(parts), batch_size, PARTS * count, memory)
        return parts_like(parts, self._places[batch_size].arrays), batch_size

    def taking(self, number: int, batch_size: int, start: int = 0) -> None:
        """None: there is one ring."""

    @contextmanager
    def pieces(
        self, number: int, batch_size: int, start: int, follower: Follower | None
    ) -> Iterator[ChunkIterator]:
        """The batches of an epoch; they are in the ring meanwhile."""
        ring, found = self._places[batch_size], self._batches(number, batch_size, start)
        with ring.start(partial(fill, ring, found), follower):
            yield FromRing(ring, parts_of(self.sample), True)

    def _batches(self, number: int, batch_size: int, start: int) -> Generator[Batch]:
        rows = self.order(number)
        parts = [rows[k : k + batch_size] for k in range(start * batch_size, len(rows), batch_size)]
        make = partial(self._batch, number)
        made = map(make, parts) if self._workers == 1 else self._by_threads(make, parts)
        yield from told(iter(made), number, start)

    def _by_threads(
        self, make: partial[Batch], parts: Sequence[NDArray[np.int64]]
    ) -> Iterator[Batch]:
        """Batches in order; each thread makes one, and as many again wait to be taken."""
        from concurrent.futures import ThreadPoolExecutor  # rarely needed

        ahead: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(self._workers, "magmadnn-augment") as pool:
            try:
                for part in parts:
                    ahead.append(pool.submit(make, part))
                    if len(ahead) > 2 * self._workers:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for waiting in ahead:
                    waiting.cancel()

    def _batch(self, number: int, rows: NDArray[np.int64]) -> Batch:
        images, targets, weights = self._given
        x, y = self._pipeline.pairs(images, targets, rows, number, self._every)
        return Batch([x], [y], None if weights is None else weights[rows])


Table = NDArray[np.float32]


class DrawnSource(ArraySource):
    """Batches of arrays, with a row of a table for each image; otherwise those of `ArraySource`.

    Args:
        images: on a device, [rows, height, width, channels].
        targets: of each.
        weights: of the samples.
        draw: gives the table of an epoch, [rows, count].
        options: as for `ArraySource`.
    """

    def __init__(
        self,
        images: OnDevice,
        targets: Array,
        weights: Array | None,
        *,
        draw: Callable[[int], Table],
        **options: Any,
    ) -> None:
        from magmadnn.runtime.cuda.data.arrays import copied  # needs a GPU

        self._table, self._epoch = copied(draw(0), images.device), 0
        self._draw = draw
        self._coming: tuple[int, Future[Table]] | None = None
        inputs: list[Any] = [images, self._table]
        super().__init__(inputs, [targets], weights, **options)

    def epoch(self, number: int, batch_size: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch."""
        self._begin(number)
        return super().epoch(number, batch_size, start)

    def taking(self, number: int, batch_size: int, start: int = 0) -> None:
        """None: there is one table."""

    @contextmanager
    def pieces(
        self, number: int, batch_size: int, start: int, follower: Follower | None
    ) -> Iterator[ChunkIterator]:
        """The batches of an epoch."""
        self._begin(number)
        take = super().taking(number, batch_size, start)
        assert take is not None
        yield take

    def _begin(self, number: int) -> None:
        """Write the table of an epoch, when nobody reads the old one, and begin to draw that of the next."""
        if number != self._epoch:
            coming = self._coming
            if coming and coming[0] == number:
                self._coming = None  # if it has failed, the next who asks tries again
                table = coming[1].result()
            else:
                table = self._draw(number)
            self._table.fill_from(table)
            self._epoch = number
        if self._coming is None or self._coming[0] != number + 1:
            self._coming = (number + 1, ahead(self._draw, number + 1))
