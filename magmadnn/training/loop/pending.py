"""A piece of an epoch whose batches run in one go; on a GPU it may begin before those in front have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from magmadnn.graph.op import Array
from magmadnn.optim import StepSlices

from .pieces import Chunk

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.data.pending import PendingSlice


class PendingChunk:
    """Batches that follow each other, from when they are taken until they are done.

    Attributes:
        piece: the batches.
        started: when they were taken, in seconds.
    """

    def __init__(self, slices: StepSlices, piece: Chunk) -> None:
        self.piece, self.started = piece, time.perf_counter()
        self._slices = slices
        self._flight: PendingSlice | None = None

    def launch(self) -> bool:
        """Begin, where what is in front need not be done for that; whether it has begun."""
        if self.piece.rows is not None and not self._is_on_its_way:
            self._flight = self._slices.launch(self.piece.rows, self.piece.count)
        return self._is_on_its_way

    @property
    def _is_on_its_way(self) -> bool:
        return self._flight is not None and not self._flight.is_dropped

    def found(self, follows: bool) -> list[Array] | None:
        """Loss and outputs of each batch; None where they have to run one by one, and nothing was changed.

        `follows`: nobody else has written anything since the slice before.
        """
        if self.piece.rows is None:
            return None
        if self._flight is not None and not self._flight.is_dropped:
            return self._slices.finish(self._flight)
        return self._slices.run(self.piece.rows, self.piece.count, follows)
