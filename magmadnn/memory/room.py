"""Room for data on a device: how much may lie there, and what larger data is streamed through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magmadnn.backends.cpu.host import Bytes
from magmadnn.backends.cuda import device_memory
from magmadnn.errors import ArgumentError

from .kinds import Kind
from .pool import POOLS

_SHARE = 0.8  # of what is free; the rest is for parameters, values and other models
_RING_BYTES = 128 << 20  # of data that is streamed: on the host, and again on the device

_limit: list[int | None] = [None]


@dataclass(frozen=True)
class Room:
    """What a device has for data.

    Attributes:
        nbytes: that may lie there.
        ring_bytes: of a ring that larger data is streamed through, unless two batches need more.
        pinned: gives memory of the host that copies to the device are fastest from.
    """

    nbytes: int
    ring_bytes: int
    pinned: Callable[[int], Bytes]


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


def room_of(device: int, held: int = 0) -> Room:
    """The room on a device; `held` bytes of data lie there already, and would make way.

    Raises:
        DeviceError: if there is no such device.
    """
    memory = device_memory(device)
    nbytes = _limit[0]
    if nbytes is None:
        free, total = memory.free_and_total()
        kept = POOLS[Kind.DEVICE].report().pooled
        nbytes = int(_SHARE * ((total if free is None else free) + kept + held))
    return Room(nbytes, _RING_BYTES, memory.pinned)
