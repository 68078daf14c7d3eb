"""Numbers in a GPU's memory by which streams of several processes wait for each other, without a kernel.

The front ends of streams write and wait (`cuStreamBatchMemOp`), in graphs too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Final

_WAIT, _WRITE = 1, 2  # CUstreamBatchMemOpType, of 32 bits
# A wait ends where the number is the one given or up to 2**31 - 1 more, counted modulo 2**32; what a stream
# has written before is seen before the number is.
_AT_LEAST, _WITH_BARRIER = 0, 0
BYTES: Final = 4  # of a number


class MemoryCall(ctypes.Structure):
    """CUstreamBatchMemOpParams of a wait or a write."""

    _fields_ = (
        ("kind", ctypes.c_uint32), ("address", ctypes.c_uint64), ("value", ctypes.c_uint64),
        ("how", ctypes.c_uint32), ("alias", ctypes.c_uint64), ("unused", ctypes.c_uint64),
    )  # fmt: skip


def writes(places: Iterable[int], number: int) -> list[MemoryCall]:
    """Calls by which a stream writes a number of 32 bits to each of some addresses of GPUs."""
    return [MemoryCall(_WRITE, place, number, _WITH_BARRIER) for place in places]


def waits(places: Iterable[int], number: int) -> list[MemoryCall]:
    """Calls that wait until there is that number, or a later one, at addresses."""
    return [MemoryCall(_WAIT, place, number, _AT_LEAST) for place in places]
