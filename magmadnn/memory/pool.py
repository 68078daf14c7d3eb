"""Blocks of memory, kept when they are freed and lent again.

A block is lent as a `Lease` and comes back when the lease is garbage: when the last array, view or
manager on it has gone, which may be at any moment and in any thread (`Returns`).
"""

from __future__ import annotations

import atexit
import gc
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from magmadnn.backends.cpu.forks import Returns
from magmadnn.backends.cpu.host import Bytes, HostMemory
from magmadnn.backends.cuda import DeviceMemory
from magmadnn.errors import ArgumentError, OutOfMemoryError

from .kinds import Kind
from .usage import KindReport, Report, in_units

_SMALLEST = 64  # bytes
_LARGEST_STEP = 1 << 26
# called where memory is short, and by `trim`: what others keep without using it goes
WHEN_SHORT: list[Callable[[], object]] = []
DEFAULT_LIMIT = 1 << 30  # bytes of each kind that are kept when nobody uses them
_SHARE = 32  # of DEVICE memory one part of so many of the device's is kept, where that is more


class Source(Protocol):
    """Where new blocks come from."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def allocate(self, nbytes: int, zeros: bool = True) -> Any:
        """A block: of zeros, or else of anything."""
        ...

    def free(self, block: Any) -> None:
        """Give it back."""
        ...

    def zero(self, block: Any, nbytes: int) -> None:
        """Clear a block that is lent again."""
        ...

    def host_address(self, block: Any) -> int | None:
        """Where the host sees a block; None where it does not."""
        ...

    def trim(self) -> None:
        """Take back what others keep of this memory without using it."""
        ...

    def free_and_total(self) -> tuple[int | None, int]:
        """Free bytes where they are known, and all bytes."""
        ...


@dataclass(frozen=True)
class DeviceSource:
    """Blocks of a device; equal for equal devices, so that it can be a key."""

    memory: DeviceMemory
    managed: bool

    @property
    def name(self) -> str:
        """The device's."""
        return self.memory.name

    def allocate(self, nbytes: int, zeros: bool = True) -> int:
        """The address of a block: of zeros, or else of anything."""
        allocate = self.memory.allocate_managed if self.managed else self.memory.allocate
        address = allocate(nbytes)
        if zeros:
            self.zero(address, nbytes)
        return address

    def free(self, block: int) -> None:
        """Give a block back; copies in the background hold theirs, so none is under way."""
        self.memory.free(block)

    def zero(self, block: int, nbytes: int) -> None:
        """Clear a block that is lent again."""
        self.memory.fill(block, b"\0", nbytes)

    def host_address(self, block: int) -> int | None:
        """Managed blocks have one address on both sides."""
        return block if self.managed else None

    def trim(self) -> None:
        """The device's."""
        self.memory.trim()

    def free_and_total(self) -> tuple[int | None, int]:
        """The device's."""
        return self.memory.free_and_total()


HOST_SOURCE = HostMemory()


@lru_cache(maxsize=8)
def device_source(memory: Any, managed: bool) -> DeviceSource:
    """One of each: to make it takes time."""
    return DeviceSource(memory, managed)


class Lease:
    """A block on loan; `block` is an ndarray of bytes on the host, an address on a device."""

    __slots__ = ("__weakref__", "_class_bytes", "_pool", "_source", "block", "nbytes")

    def __init__(
        self, pool: Pool, source: Source, block: Any, nbytes: int, class_bytes: int
    ) -> None:
        self._pool, self._source, self._class_bytes = pool, source, class_bytes
        self.block, self.nbytes = block, nbytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's door to a block that the host sees: an array made through it keeps this lease."""
        address = self._source.host_address(self.block)
        if address is None:
            raise AttributeError("__array_interface__: the host does not see this block")
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}

    def __del__(self) -> None:
        self._pool.take_back(self._source, self.block, self._class_bytes)


class Pool:
    """Blocks of one kind of memory, lent and kept.

    Attributes:
        kind: whose blocks.
        limit: bytes that are kept at most; None for the default.
    """

    def __init__(self, kind: Kind, limit: int | None = None) -> None:
        self.kind, self.limit = kind, limit
        self._returns = Returns(self._take)
        self._kept: defaultdict[tuple[Source, int], list[Any]] = defaultdict(list)
        self._in_use = self._peak = self._pooled = self._allocations = self._reuses = 0

    def lend(self, source: Source, nbytes: int, zeroed: bool = True) -> Lease:
        """A block of at least `nbytes` bytes: of zeros, or else of anything, to be written by who asks.

        Raises:
            OutOfMemoryError: if the source has none, even after giving back what is kept.
        """
        class_bytes = size_class(nbytes)
        with self._returns:
            kept = self._kept.get((source, class_bytes))
            reused = bool(kept)
            if kept:
                block = kept.pop()
                self._pooled -= class_bytes
                self._reuses += 1
            else:
                block = self._new_block(source, class_bytes, nbytes, zeroed)
                self._allocations += 1
            self._in_use += class_bytes
            if self._in_use > self._peak:
                self._peak = self._in_use
        lease = Lease(self, source, block, nbytes, class_bytes)
        if reused and zeroed:
            source.zero(block, nbytes)
        return lease

    def _new_block(self, source: Source, class_bytes: int, nbytes: int, zeroed: bool) -> Any:
        try:
            return source.allocate(class_bytes, zeroed)
        except MemoryError:
            _let_go()
            gc.collect()  # leases may hang in reference cycles
            self._returns.work_off()
            self._give_back()
            source.trim()
        try:
            return source.allocate(class_bytes, zeroed)
        except MemoryError as error:
            free, total = source.free_and_total()
            raise OutOfMemoryError(
                f"{self.kind.name} memory: {in_units(nbytes)} were asked for on the {source.name}, "
                f"which has {in_units(total)}"
                + (f", {in_units(free)} of them free" if free is not None else "")
                + f"; {in_units(self._in_use)} are in use by this kind: use smaller batches or shapes"
            ) from error

    def take_back(self, source: Source, block: Any, class_bytes: int) -> None:
        """The end of a lease; may be called anywhere, also when the interpreter is being taken down."""
        if not _ended:
            self._returns.put((source, block, class_bytes))

    def _take(self, returned: tuple[Source, Any, int]) -> None:
        source, block, class_bytes = returned
        self._in_use -= class_bytes
        if self._pooled + class_bytes <= self._most(source):
            self._kept[source, class_bytes].append(block)
            self._pooled += class_bytes
        else:
            source.free(block)

    def _most(self, source: Source) -> int:
        """Bytes that are kept at most when a block of a source comes back."""
        if self.limit is not None:
            return self.limit
        if self.kind is not Kind.DEVICE:
            return DEFAULT_LIMIT
        key: Any = source
        return _device_limit(key)

    def _give_back(self) -> int:
        freed, self._pooled = self._pooled, 0
        kept, self._kept = self._kept, defaultdict(list)
        for (source, _), blocks in kept.items():
            for block in blocks:
                source.free(block)
        return freed

    def trim(self) -> int:
        """Give kept blocks back to where they came from; the number of bytes."""
        with self._returns:
            return self._give_back()

    def report(self) -> KindReport:
        """The counts of now."""
        with self._returns:
            return KindReport(
                self.kind, self._in_use, self._peak, self._pooled, self._allocations, self._reuses
            )


@lru_cache(maxsize=8)
def _device_limit(source: Source) -> int:
    """The default for a device, which is asked for its size once."""
    return max(DEFAULT_LIMIT, source.free_and_total()[1] // _SHARE)


def _let_go() -> None:
    for one in WHEN_SHORT:
        one()


@lru_cache(maxsize=1024)
def size_class(nbytes: int) -> int:
    """`nbytes` rounded up to one of eight sizes between powers of two, beyond 512 MiB to whole 64 MiB.

    At most 1/8 is wasted.
    """
    if nbytes <= _SMALLEST:
        return _SMALLEST
    step = min(max(1 << (nbytes - 1).bit_length() - 4, _SMALLEST), _LARGEST_STEP)
    return -(-nbytes // step) * step


POOLS = {kind: Pool(kind) for kind in Kind}
_ended: list[bool] = []  # filled when the process ends: what blocks come from may be gone then
atexit.register(_ended.append, True)


def report() -> Report:
    """What is in use, was at most in use, and is kept, of each kind of memory."""
    return Report(tuple(pool.report() for pool in POOLS.values()))


def trim() -> int:
    """Give all blocks that are kept for later back to the system or device; the number of bytes."""
    _let_go()
    return sum(pool.trim() for pool in POOLS.values())


def limit_pooled(kind: Kind | str, nbytes: int) -> None:
    """Keep at most `nbytes` bytes of freed blocks of one kind; gives back what is kept now.

    Else 1 GiB is kept, of DEVICE a thirty-second of the memory of the GPU where that is more.

    Raises:
        ArgumentError: if it is no size.
    """
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise ArgumentError(
            f"limit_pooled: nbytes must be an integer of at least 0, got {nbytes!r}"
        )
    pool = POOLS[Kind.of(kind)]
    pool.limit = nbytes
    pool.trim()


def host_bytes(lease: Lease) -> Bytes:
    """The bytes of a lease that the host sees, as an array that keeps the lease."""
    return np.asarray(lease)
