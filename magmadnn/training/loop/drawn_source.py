"""Batches of images that the step changes at random, on a device, and a table of what was drawn for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.ring import Follower
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice

from .pieces import Batch, ChunkIterator
from .sources import ArraySource, ahead

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
        self._draw, self._coming = draw, (0, Future[Table]())
        inputs: list[Any] = [images, self._table]
        super().__init__(inputs, [targets], weights, **options)

    def epoch(self, number: int, batch_size: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch."""
        self._begin(number)
        return super().epoch(number, batch_size, start)

    def taking(self, number: int, batch_size: int, start: int = 0) -> ChunkIterator | None:
        """None: there is one table."""
        return None

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
            epoch, coming = self._coming
            table = coming.result() if epoch == number else self._draw(number)
            self._table.fill_from(table)
            self._epoch = number
        if self._coming[0] != number + 1:
            self._coming = (number + 1, ahead(self._draw, number + 1))
