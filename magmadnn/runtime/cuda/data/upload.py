"""Arrays of the host onto a device: by a few threads through pinned memory, while they are copied on."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

import numpy as np

from magmadnn.backends.cpu.host import Bytes
from magmadnn.backends.cuda import DeviceMemory
from magmadnn.graph.op import Array

_CHUNK_BYTES = 4 << 20
THREADS = 8  # one copies from memory at a fifth of what the bus takes
_MOST_SPARE = 2 * THREADS
_spare: list[tuple[DeviceMemory, Bytes]] = []  # pinned memory that nobody uses
_lock = threading.Lock()


@cache
def threads() -> ThreadPoolExecutor:
    """Threads for work on arrays of the host."""
    count = min(THREADS, max((os.cpu_count() or 1) // 2, 1))
    return ThreadPoolExecutor(count, thread_name_prefix="uploads")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=threads.cache_clear)  # a child has none of the threads


def upload(memory: DeviceMemory, to: int, values: Array) -> None:
    """Copy an array to a device, in C order and the machine's byte order; returns when it is there.

    What was begun on the device before is done first.
    """
    memory.wait()
    native = values.dtype.newbyteorder("=")
    row = max(values[:1].size * native.itemsize, 1)
    rows = max(_CHUNK_BYTES // row, 1)
    if len(values) <= rows:
        memory.copy_to_device(to, _flat(np.ascontiguousarray(values, native)))
        return

    def copy(first: int) -> None:
        piece = values[first : first + rows]
        pinned = pinned_for(memory, rows * row)
        place = pinned[: len(piece) * row]
        np.copyto(place.view(native).reshape(piece.shape), piece)
        memory.copy_beside(to + first * row, place)
        memory.wait_beside()
        give_back(memory, pinned)

    copies = [threads().submit(copy, first) for first in range(0, len(values), rows)]
    wait(copies)
    for done in copies:
        done.result()


def _flat(values: Array) -> Bytes:
    return values.reshape(-1).view(np.uint8)


def pinned_for(memory: DeviceMemory, nbytes: int) -> Bytes:
    """Pinned memory, to be given back: what somebody else is done with, as it takes long to make."""
    with _lock:
        owned = ((held.size, k) for k, (owner, held) in enumerate(_spare) if owner is memory)
        if fitting := [(size, k) for size, k in owned if size >= nbytes]:
            return _spare.pop(min(fitting)[1])[1]
    return memory.pinned(nbytes)


def give_back(memory: DeviceMemory, pinned: Bytes) -> None:
    """Let others have pinned memory, of which nothing is copied any more."""
    with _lock:
        _spare.append((memory, pinned))
        del _spare[:-_MOST_SPARE]
