"""Room for data on a device: how much may lie there, and what larger data is streamed through."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from magmadnn.backends.cpu.host import Bytes
from magmadnn.backends.cuda import device_memory
from magmadnn.errors import ArgumentError

from .kinds import Kind
from .pool import POOLS

ALWAYS_THERE = (
    1 << 20
)  # bytes: to ask a system or device what is left takes longer than a small step
_SHARE = 0.8  # of what is free; the rest is for parameters, values and other models
_RING_BYTES = 256 << 20  # of data that is streamed: on the host, and again on the device
_THREADS = 12  # that read rows from all over memory, a few GB/s each

_limit: list[int | None] = [None]


@dataclass(frozen=True)
class Room:
    """What a device has for data.

    Attributes:
        device: its number.
        held: bytes of data that lie there already and would make way.
        threads: that read what is streamed.
    """

    device: int
    held: Callable[[], int] = lambda: 0
    threads: int = min(_THREADS, max((os.cpu_count() or 1) * 3 // 4, 1))

    @property
    def is_limited(self) -> bool:
        """Whether `limit_data` says how much may lie there."""
        return _limit[0] is not None

    @property
    def nbytes(self) -> int:
        """Bytes of data that may lie there."""
        if _limit[0] is not None:
            return _limit[0]
        free, total = device_memory(self.device).free_and_total()
        kept = POOLS[Kind.DEVICE].report().pooled
        return int(_SHARE * ((total if free is None else free) + kept + self.held()))

    @property
    def ring_bytes(self) -> int:
        """Bytes of a ring that larger data is streamed through, unless two batches need more.

        Where nothing says how much may lie there, half of the room: graphs and kernels take of it too.
        """
        return min(_RING_BYTES, self.nbytes if self.is_limited else self.nbytes // 2)

    def pinned(self, nbytes: int) -> Bytes:
        """Memory of the host that copies to the device are fastest from."""
        return device_memory(self.device).pinned(nbytes)


def limit_data(nbytes: int | None) -> None:
    """Let `fit` keep at most `nbytes` bytes of data on a device, and stream what is larger.

    None: four fifths of what is free there.

    Raises:
        ArgumentError: if it is no size.
    """
    if nbytes is not None and (
        isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0
    ):
        raise ArgumentError(f"limit_data: nbytes must be an integer of at least 0, got {nbytes!r}")
    _limit[0] = nbytes
