"""Arrays of the host on their way to a device while steps run, rows in the order in which steps want them.

So the first steps wait for the first rows only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import OutOfMemoryError
from magmadnn.executor.row_copies import RowCopies
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice

from .relay import Relay, relay_for

LEAST_BYTES = 8 << 20  # of the largest array: less is copied before steps begin


class Coming:
    """Copies that are made while steps run, all of them if one is large; others are made first.

    Args:
        arrays: on the device; the copies of some may have to be made yet.
        order: of rows, as steps want them.
    """

    def __init__(self, arrays: Sequence[OnDevice], order: NDArray[np.int64]) -> None:
        self._order, self._sent = order, 0
        self._relay: Relay | None = None
        self._arrays: list[OnDevice] = []
        missing = [a for a in arrays if a.copy is not None and a.copy.missing is not None]
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
        self._arrays = arrays
        self._relay.bind(sources, [a.place for a in arrays])

    @property
    def is_needed(self) -> bool:
        """Whether rows come."""
        return self._relay is not None

    def bring(self, rows: int) -> None:
        """Have the first `rows` of the order in their places before what is launched from now on."""
        if self._relay is not None and rows > self._sent:
            self._send(self._relay, self._order[self._sent : rows])
            self._sent = rows

    def finish(self) -> None:
        """The same for all rows, also those that are not in the order: copies are made then."""
        if self._relay is None:
            return
        self.bring(len(self._order))
        left = np.ones(len(self._arrays[0]), bool)
        left[self._order] = False
        self._send(self._relay, np.flatnonzero(left))
        self._relay.give_back()
        self._relay = None
        for array in self._arrays:
            if array.copy is not None:
                array.copy.brought()

    @staticmethod
    def _send(relay: Relay, numbers: NDArray[np.int64]) -> None:
        try:
            for first in range(0, len(numbers), relay.rows):
                relay.send(numbers[first : first + relay.rows])
            relay.arrive()
        except BaseException:
            relay.wait()  # before anybody else has the memory
            raise


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
        and RowCopies.can(source, source)
    )
