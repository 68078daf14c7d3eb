"""Devices made of host memory: they count every copy and refuse what a real device refuses.

Addresses of device blocks are no addresses of this process, so that nothing can read one by
mistake. Copies in the background happen when `wait` is called, so that forgetting to wait shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from magmadnn.backends.cpu.host import Bytes
from magmadnn.errors import DeviceError

from . import Provider, install
from .protocol import fill_by_doubling

_FIRST_ADDRESS = 1 << 60  # beyond what any processor maps today


@dataclass
class Counts:
    """What a device has been asked for."""

    to_device: int = 0
    to_host: int = 0
    on_device: int = 0
    fills: int = 0
    prefetches: int = 0
    waits: int = 0
    bytes_to_device: int = 0
    bytes_to_host: int = 0


@dataclass
class _Space:
    """All blocks of all devices by address: devices copy between each other."""

    blocks: dict[int, Bytes] = field(default_factory=dict)
    next_address: int = _FIRST_ADDRESS

    def find(self, address: int, nbytes: int) -> Bytes:
        """The bytes at an address."""
        for start, block in self.blocks.items():
            if start <= address and address + nbytes <= start + block.size:
                return block[address - start : address - start + nbytes]
        raise DeviceError(f"no block of a device has the {nbytes} bytes at address {address:#x}")


class SimulatedDevice:
    """`DeviceMemory` over host memory, of `capacity` bytes."""

    def __init__(self, number: int, space: _Space, capacity: int) -> None:
        self.name = f"device {number} (simulated)"
        self.counts = Counts()
        self.managed: set[int] = set()
        self._mine: dict[int, int] = {}
        self._space, self.total = space, capacity
        self._waiting: list[tuple[Callable[[], None], object]] = []

    @property
    def in_use(self) -> int:
        """Bytes that were allocated and not freed."""
        return sum(self._mine.values())

    def _check_room(self, nbytes: int) -> None:
        if self.in_use + nbytes > self.total:
            raise MemoryError

    def allocate(self, nbytes: int) -> int:
        """A block of 0xCB bytes: new memory of a device holds anything."""
        self._check_room(nbytes)
        address = self._space.next_address
        self._space.next_address += -(-nbytes // 256) * 256 + 256
        self._space.blocks[address] = np.full(nbytes, 0xCB, np.uint8)
        self._mine[address] = nbytes
        return address

    def allocate_managed(self, nbytes: int) -> int:
        """A block at a real address, which the host can read."""
        self._check_room(nbytes)
        block = np.full(nbytes, 0xCB, np.uint8)
        address = int(block.ctypes.data)
        self._space.blocks[address] = block
        self._mine[address] = nbytes
        self.managed.add(address)
        return address

    def free(self, address: int) -> None:
        """Give a block back; freeing one twice is an error."""
        if address not in self._mine:
            raise DeviceError(f"{self.name} has no block at address {address:#x}")
        del self._mine[address], self._space.blocks[address]
        self.managed.discard(address)

    def _do(self, copy: Callable[[], None], hold: object) -> None:
        if hold is None:
            copy()
        else:
            self._waiting.append((copy, hold))

    def copy_to_device(self, to: int, source: Bytes, hold: object = None) -> None:
        """Copy from the host, and count it."""
        target = self._space.find(to, source.size)
        self.counts.to_device += 1
        self.counts.bytes_to_device += source.size
        self._do(lambda: np.copyto(target, source), hold)

    def copy_beside(self, to: int, source: Bytes) -> None:
        """Copy from the host, and count it."""
        self.copy_to_device(to, source)

    def wait_beside(self) -> None:
        """It is done at once."""

    def pinned(self, nbytes: int) -> Bytes:
        """Memory as any other."""
        return np.full(nbytes, 0xCB, np.uint8)

    def copy_to_host(self, to: Bytes, source: int, hold: object = None) -> None:
        """Copy to the host, and count it."""
        block = self._space.find(source, to.size)
        self.counts.to_host += 1
        self.counts.bytes_to_host += to.size
        self._do(lambda: np.copyto(to, block), hold)

    def copy_on_device(self, to: int, source: int, nbytes: int) -> None:
        """Copy between blocks; overlapping ranges are refused, as their result is not defined."""
        if abs(to - source) < nbytes:
            raise DeviceError(f"{self.name}: copy of {nbytes} bytes between ranges that overlap")
        self.counts.on_device += 1
        self._space.find(to, nbytes)[:] = self._space.find(source, nbytes)

    def fill(self, to: int, pattern: bytes, count: int) -> None:
        """Write a pattern again and again."""
        self.counts.fills += 1
        if count:
            self._space.find(to, len(pattern))[:] = np.frombuffer(pattern, np.uint8)
            before = self.counts.on_device
            fill_by_doubling(self, to, pattern, len(pattern) * count)
            self.counts.on_device = before

    def prefetch_managed(self, address: int, nbytes: int, to_device: bool) -> None:
        """Counted; nothing moves."""
        if address not in self.managed:
            raise DeviceError(f"{self.name}: the block at address {address:#x} is not managed")
        self.counts.prefetches += 1

    def wait(self) -> None:
        """Do the copies that were left for the background."""
        self.counts.waits += 1
        waiting, self._waiting = self._waiting, []
        for copy, _ in waiting:
            copy()

    def trim(self) -> None:
        """Nobody keeps any that is not used."""

    def free_and_total(self) -> tuple[int | None, int]:
        """Free bytes and capacity."""
        return self.total - self.in_use, self.total


@contextmanager
def simulated_devices(count: int = 1, capacity: int = 1 << 28) -> Iterator[list[SimulatedDevice]]:
    """`count` simulated devices in place of the machine's own, each of `capacity` bytes."""
    space = _Space()
    devices = [SimulatedDevice(n, space, capacity) for n in range(count)]
    before = install(Provider(lambda: (count, "simulated"), devices.__getitem__))
    try:
        yield devices
    finally:
        install(before)
