"""Arrays of the host on their way to a device while steps run, rows in the order in which steps want them.

So the first steps wait for the first rows only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cuda.engine import Graph
from magmadnn.errors import OutOfMemoryError
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.cpu.row_copies import RowCopies
from magmadnn.runtime.cuda.schedule.cuts import cut, short_first

from .gathering_upload import GatheringUploader, WaitPoint, relay_for

LEAST_BYTES = 8 << 20  # of the largest array: less is copied before steps begin


class OverlappedUpload:
    """Copies that are made while steps run, all of them if one is large; others are made first.

    Args:
        arrays: on the device; the copies of some may have to be made yet.
        order: of rows, as steps want them; of one that lies on the device all rows are brought first.

    Attributes:
        numbers: of rows that the device has to be told.
    """

    def __init__(self, arrays: Sequence[OnDevice], order: NDArray[np.int64] | OnDevice) -> None:
        self._relay: GatheringUploader | None = None
        self._arrays: list[OnDevice] = []
        self._sources: list[Array] = []
        missing = [a for a in arrays if a.copy is not None and a.copy.missing is not None]
        able: list[OnDevice] = []
        if not isinstance(order, OnDevice):
            self.numbers = order
            able = [a for a in missing if _can_come(a, len(order))]
        if any(a.nbytes >= LEAST_BYTES for a in able):
            self._begin(able)
        for array in missing:
            if array.copy is not None and array not in self._arrays:
                array.copy.make()

    def _begin(self, arrays: list[OnDevice]) -> None:
        """Have the rows of these arrays come, if there is room for those that are on their way."""
        sources = [source for a in arrays if (source := _source(a)) is not None]
        try:
            self._relay = relay_for(sources, arrays[0].device)
        except OutOfMemoryError:
            return
        self._arrays, self._sources = arrays, sources
        self._relay.places = [a.place for a in arrays]

    @property
    def is_needed(self) -> bool:
        """Whether rows come."""
        return self._relay is not None

    def cut(self, count: int, is_one_kernel: bool, most: int) -> list[int]:
        """Graphs of so many steps each, at most `most`, that make a slice."""
        graphs = cut(count, is_one_kernel, most)
        return short_first(graphs) if self.is_needed and not is_one_kernel else graphs

    def launch(self, graphs: Sequence[Graph], rows: Sequence[int]) -> None:
        """Launch graphs, each behind so many rows of the order; all other rows come behind the last."""
        relay, self._relay, order = self._relay, None, self.numbers
        assert relay is not None
        left = np.ones(len(self._arrays[0]), bool)
        stops = [WaitPoint(n, (), (graph.call,)) for n, graph in zip(rows, graphs, strict=True)]
        stops[0] = stops[0]._replace(before=relay.behind)
        try:
            relay.run(stops, self._sources, order, order)
            left[order] = False
            if len(others := np.flatnonzero(left)):
                relay.run([WaitPoint(len(others))], self._sources, others, others)
        except BaseException:
            relay.wait()  # before anybody else has the memory
            raise
        relay.give_back()
        self._sources = []
        for array in self._arrays:
            if array.copy is not None:
                array.copy.brought()


def _source(array: OnDevice) -> Array | None:
    """What has to be copied yet."""
    return None if array.copy is None else array.copy.missing


def _can_come(array: OnDevice, wanted: int) -> bool:
    """Whether an array of which so many rows are wanted can come row by row."""
    source = _source(array)
    return (
        source is not None
        and 2 * wanted >= len(array)
        and source.dtype == array.dtype
        and RowCopies.can_send(source)
    )
