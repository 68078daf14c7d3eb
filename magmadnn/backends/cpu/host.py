"""Host memory: blocks of bytes that start on a cache line; small ones from NumPy, others in large pages.

In pages of 4 KiB a matrix is scattered over physical memory: the processor translates an address for every
other cache line, and pages that happen to fall on the same sets of a cache push each other out. In pages of
2 MiB neither happens. The system gives such pages where it can; where it does not, nothing else changes.

Memory for large pages is asked for in slabs of some megabytes, and cut into blocks. A block comes back when
the last array on it is garbage (`Returns`). A slab that is free as a whole goes back to the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from bisect import insort
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.storage.machine_memory import total_bytes

from .forks import Returns

PAGE = 2 << 20
SLAB = 8 << 20  # bytes that are asked of the system at least
ALIGNMENT = 64  # one cache line, and one AVX-512 register
AVAILABLE = hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MAP_ANONYMOUS")

Bytes = NDArray[np.uint8]


@dataclass(eq=False)
class _Slab:
    """A mapping that begins with a large page; `free` are its free parts as (first, end), in order."""

    mapping: mmap.mmap
    address: int
    size: int
    used: int = 0  # offset from which on nothing was ever lent, so that it is zero
    free: list[tuple[int, int]] = field(default_factory=list)

    def take(self, nbytes: int) -> int | None:
        """The offset of the first free part that is large enough; it is free no longer."""
        for at, (first, end) in enumerate(self.free):
            if end - first >= nbytes:
                self.free[at : at + 1] = [(first + nbytes, end)] if first + nbytes < end else []
                return first
        return None

    def give(self, first: int, end: int) -> None:
        """Take a part back and join it with its neighbours."""
        insort(self.free, (first, end))
        joined: list[tuple[int, int]] = []
        for part in self.free:
            if joined and joined[-1][1] == part[0]:
                joined[-1] = (joined[-1][0], part[1])
            else:
                joined.append(part)
        self.free = joined


class _Block:
    """A part of a slab; NumPy reaches it through `__array_interface__`, and keeps it."""

    __slots__ = ("__array_interface__", "_first", "_nbytes", "_owner", "_slab")

    def __init__(self, owner: LargePages, slab: _Slab, first: int, nbytes: int, room: int) -> None:
        self._owner, self._slab, self._first, self._nbytes = owner, slab, first, room
        self.__array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (slab.address + first, False),
            "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        self._owner.take_back(self._slab, self._first, self._nbytes)


class LargePages:
    """Gives blocks of zeros, and takes them back when nobody uses them any more."""

    def __init__(self) -> None:
        self._slabs: list[_Slab] = []
        self._returns = Returns(self._take)

    @property
    def nbytes(self) -> int:
        """Bytes of all slabs."""
        with self._returns:
            return sum(slab.size for slab in self._slabs)

    def allocate(self, nbytes: int, zeros: bool = True) -> Bytes:
        """A block whose address is a multiple of `ALIGNMENT`; see `HostMemory.allocate`.

        Raises:
            MemoryError: if the system has not that much.
        """
        room = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        with self._returns:
            slab, first = self._found(room)
            stale = max(0, min(slab.used, first + nbytes) - first)
            slab.used = max(slab.used, first + room)
        made = np.asarray(_Block(self, slab, first, nbytes, room))
        if zeros:
            made[:stale] = 0
        return made

    def _found(self, room: int) -> tuple[_Slab, int]:
        for slab in self._slabs:
            first = slab.take(room)
            if first is not None:
                return slab, first
        slab = _mapped(max(SLAB, -(-room // PAGE) * PAGE))
        self._slabs.append(slab)
        slab.take(room)
        return slab, 0

    def take_back(self, slab: _Slab, first: int, nbytes: int) -> None:
        """The end of a block; may be called anywhere."""
        self._returns.put((slab, first, first + nbytes))

    def _take(self, part: tuple[_Slab, int, int]) -> None:
        slab, first, end = part
        slab.give(first, end)
        if slab.free == [(0, slab.size)]:
            self._slabs.remove(slab)


def _mapped(size: int) -> _Slab:
    """New zeros from the system, in large pages where it has them."""
    flags: Any = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        mapping = mmap.mmap(-1, size + PAGE, flags=flags)
    except OSError as error:
        raise MemoryError from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without large pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    address = -(-start // PAGE) * PAGE
    return _Slab(mapping, address, size, free=[(0, size)])


LARGE_PAGES = LargePages()


_SMALL = 16 << 10  # bytes of a block for which a few small pages will do


class HostMemory:
    """Gives and takes back blocks of host memory."""

    name = "host"

    def allocate(self, nbytes: int, zeros: bool = True) -> Bytes:
        """A block of zeros whose address is a multiple of `ALIGNMENT`.

        Args:
            nbytes: how large.
            zeros: whether all of them have to be 0; else they are what they were before.

        Raises:
            MemoryError: if the machine has not that much.
        """
        if nbytes > total_bytes():  # the system may promise it, and kill us on first use
            raise MemoryError
        if nbytes > _SMALL and AVAILABLE:
            return LARGE_PAGES.allocate(nbytes, zeros)
        # np.zeros leaves large blocks to the system, which zeroes a page when it is first touched
        raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + nbytes]

    def free(self, block: Bytes) -> None:
        """Give a block back; that happens when the last reference goes."""

    def zero(self, block: Bytes, nbytes: int) -> None:
        """Clear the first bytes of a block that is used again."""
        block[:nbytes] = 0

    def host_address(self, block: Bytes) -> int | None:
        """Where the host sees a block."""
        return int(block.ctypes.data)

    def trim(self) -> None:
        """Nobody keeps any that is not used."""

    def free_and_total(self) -> tuple[int | None, int]:
        """Free bytes where they are known, and all bytes."""
        return None, total_bytes()
