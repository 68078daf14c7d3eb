"""Arrays of the host that do not fit on a device: their rows pass through a ring there while steps run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cuda import device_engine
from magmadnn.backends.cuda.engine import Graph
from magmadnn.graph.op import Array
from magmadnn.runtime.cuda.schedule.cuts import STEPS

from .block import Block
from .gathering_upload import GatheringUploader, WaitPoint

_LEAST_SLOTS = 2


class DeviceRing:
    """Slots on a device, each for the rows of one graph of steps; rows use one after the other.

    Args:
        like: an array like each of those whose rows pass.
        batch: rows of a step.
        most: bytes of all slots, unless two batches need more; rows on their way take up to a quarter more.
        device: its number.

    Attributes:
        addresses: where the slots begin, for each array.
        nbytes: of all slots, and of rows on their way.

    Raises:
        OutOfMemoryError: if there is no room for it.
    """

    def __init__(
        self,
        like: Sequence[Array],
        batch: int,
        most: int,
        device: int,
        most_steps: int = STEPS[-1],
    ) -> None:
        sizes = [batch * a[:1].nbytes for a in like]  # of a step
        self.relay, engine = GatheringUploader(like, device, most // 4), device_engine(device)
        room = most // max(_LEAST_SLOTS * sum(sizes), 1)
        longest = min(self.relay.rows // batch, room, most_steps)
        self._steps = max((steps for steps in STEPS if steps <= longest), default=1)
        slots = max(most // max(self._steps * sum(sizes), 1), _LEAST_SLOTS)
        self.slot_rows = self._steps * batch
        self._places = slots * self.slot_rows
        self._blocks = [Block(slots * self._steps * size, device) for size in sizes]
        self.addresses = [block.address for block in self._blocks]
        self.nbytes = self.relay.nbytes + sum(block.nbytes for block in self._blocks)
        self.relay.places = self.addresses
        self.relay.lane.follow(engine.mark())  # their memory may have been another's
        free = [engine.fence() for _ in range(slots)]  # behind the steps that used a slot last
        self.waits = [self.relay.lane.calls.follow(fence) for fence in free]
        self.marks = [engine.calls.mark(fence) for fence in free]
        self._goals = np.empty(0, np.int64)
        self._stops: tuple[object, list[WaitPoint]] = (None, [])  # the last ones, and for what

    def goals(self, rows: int) -> NDArray[np.int64]:
        """Where rows that follow each other come to lie."""
        if len(self._goals) < rows:
            self._goals = np.arange(rows) % self._places
        return self._goals[:rows]

    def cut(self, count: int, is_one_kernel: bool) -> list[int]:
        """Graphs of so many steps each that make a slice; one kernel for many ends with the slice."""
        whole, rest = divmod(count, self._steps)
        return [self._steps] * whole + ([self._steps] * (rest > 0) if is_one_kernel else [1] * rest)

    def stops(self, graphs: Sequence[Graph], rows: Sequence[int]) -> list[WaitPoint]:
        """Graphs behind their rows, which come when the steps are done that had their places."""
        if self._stops[0] != (key := (graphs, rows)):
            starts = np.cumsum(rows) - rows
            made = [self._stop(*one) for one in zip(graphs, rows, starts.tolist(), strict=True)]
            self._stops = key, made
        return self._stops[1]

    def _stop(self, graph: Graph, rows: int, start: int) -> WaitPoint:
        number, inside = divmod(start, self.slot_rows)
        slot = number % len(self.marks)
        return WaitPoint(
            rows, () if inside else (self.waits[slot],), (graph.call, self.marks[slot])
        )


class StreamedUpload:
    """Rows of a slice that pass through a ring.

    Args:
        ring: where.
        sources: the arrays.
        order: of rows, as steps want them.

    Attributes:
        numbers: of rows that the device has to be told: none, it is the same for all slices.
    """

    def __init__(
        self, ring: DeviceRing, sources: Sequence[Array], order: NDArray[np.int64]
    ) -> None:
        self._ring, self._sources, self._order = ring, sources, order
        self.numbers = np.empty(0, np.int64)
        self.is_needed = True

    def cut(self, count: int, is_one_kernel: bool, most: int) -> list[int]:
        """Graphs of so many steps each that make the slice; `most` is the ring's already."""
        return self._ring.cut(count, is_one_kernel)

    def launch(self, graphs: Sequence[Graph], rows: Sequence[int]) -> None:
        """Launch graphs, each behind so many rows of the order; returns once the last were gathered."""
        ring, order = self._ring, self._order
        stops = ring.stops(graphs, rows)
        try:
            ring.relay.run(stops, self._sources, order, ring.goals(len(order)))
        except BaseException:
            ring.relay.wait()
            raise
        finally:
            self._sources = ()
