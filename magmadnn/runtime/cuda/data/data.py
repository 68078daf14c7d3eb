"""Data that slices take rows from: where it lies on a device, and how it comes there."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.backends.cuda import device_memory
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.cuda.schedule.hazards import Span

from .block import Block
from .streamed_upload import DeviceRing
from .upload import upload

_WIDEST = 16  # bytes of a load


class Data:
    """An array for each placeholder of data.

    Arrays of the host are copied; those on the device stay where they are, and are to be held by whoever runs
    the slices. Kernels find the addresses in a table, so that other arrays take their place and no graph
    changes.

    Args:
        nodes: the placeholders.
        device: number of the device.
        ring: that rows of all arrays pass through, which are on the host then.
    """

    def __init__(self, nodes: Sequence[Node], device: int, ring: DeviceRing | None = None) -> None:
        self._ring, self._passing = ring, list[weakref.ref[Array]]()
        self._device, self._memory = device, device_memory(device)
        self._nodes = list(nodes)
        self._table = Block(8 * len(self._nodes), device)
        self._blocks: dict[Node, Block] = {}
        self._addresses: list[int] = []
        self._there: list[weakref.ref[OnDevice]] = []

    def entry(self, node: Node) -> int:
        """Where the address of a placeholder's array stands."""
        return self._table.address + 8 * self._nodes.index(node)

    @property
    def is_aligned(self) -> bool:
        """Whether all arrays begin where the widest loads and copies may."""
        return not any(address % _WIDEST for address in self._addresses)

    @property
    def span(self) -> Span:
        """The memory of the table."""
        return self._table.span

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        ring = 0 if self._ring is None else self._ring.nbytes
        return ring + sum(block.nbytes for block in self._blocks.values())

    def take(self, arrays: Mapping[Node, Array | OnDevice], streams: bool = False) -> None:
        """Take rows from these arrays from now on.

        Args:
            arrays: one for each placeholder.
            streams: whether `renew` brings what is used of those on the host.

        Raises:
            OutOfMemoryError: if there is no room for a copy.
        """
        found: list[object] = [arrays[n] for n in self._nodes]
        self._there = [weakref.ref(a) for a in found if isinstance(a, OnDevice)]
        if self._ring is None:
            addresses = [self._placed(n, arrays[n], streams) for n in self._nodes]
        else:
            addresses = list(self._ring.addresses)
            hosted: list[Any] = [arrays[n] for n in self._nodes]
            self._passing = [weakref.ref(array) for array in hosted]
        if addresses != self._addresses:
            numbers = np.array(addresses, np.int64)
            self._memory.copy_to_device(self._table.address, numbers.view(np.uint8))
            self._addresses = addresses

    @property
    def there(self) -> list[OnDevice]:
        """The arrays that lie on the device."""
        return [array for known in self._there if (array := known()) is not None]

    @property
    def passing(self) -> list[Array]:
        """The arrays whose rows pass through the ring."""
        return [array for known in self._passing if (array := known()) is not None]

    def settle(self) -> bool:
        """See to it that copies are what their arrays are; whether they were."""
        changed = [a for a in self.there if a.copy is not None and not a.copy.settle()]
        return not changed

    def _placed(self, node: Node, array: Array | OnDevice, streams: bool) -> int:
        """The address of an array, or of a copy."""
        if isinstance(array, OnDevice):
            self._blocks.pop(node, None)
            return array.place
        if node not in self._blocks or self._blocks[node].nbytes != array.nbytes:
            self._blocks.pop(node, None)
            self._blocks[node] = Block(array.nbytes, self._device)
        if not streams:
            upload(self._memory, self._blocks[node].address, array)
        return self._blocks[node].address

    def renew(self, arrays: Mapping[Node, Array], first: int, last: int) -> None:
        """Begin to copy rows `first` to `last` of arrays anew, beside all that runs.

        None of them may be in use, nor be written before this thread has called `renewed`.
        """
        for node, block in self._blocks.items():
            rows = arrays[node][first:last]
            at = block.address + first * arrays[node][:1].nbytes
            self._memory.copy_beside(at, rows.reshape(-1).view(np.uint8))

    def renewed(self) -> None:
        """Return once all that this thread has begun to copy is there."""
        self._memory.wait_beside()
