"""Host memory: blocks of bytes that start on a cache line; small ones from NumPy, others in large pages."""

from __future__ import annotations

import numpy as np

from magmadnn.storage.machine_memory import total_bytes

from .large_pages import ALIGNMENT as ALIGNMENT  # one cache line, and one AVX-512 register
from .large_pages import AVAILABLE, LARGE_PAGES
from .large_pages import Bytes as Bytes

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
