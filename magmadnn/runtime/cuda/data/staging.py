"""Small copies between host and device in the order of launches: nobody waits for each."""

from __future__ import annotations

import math

import numpy as np

from magmadnn.backends.cpu.host import Bytes
from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.graph.op import Array

_BYTES = 8 << 20
_ALIGNMENT = 64


class Staging:
    """Pinned memory of the host that copies go through until all is waited for; larger ones go straight."""

    def __init__(self, device: int) -> None:
        self._memory, self._engine = device_memory(device), device_engine(device)
        self._bytes, self._used = self._memory.pinned(_BYTES), 0
        self._start = self._bytes.ctypes.data

    def begin(self) -> None:
        """Use all of it again: everything that was begun is done, and what was fetched is not needed."""
        self._used = 0

    def _place(self, nbytes: int) -> tuple[Bytes, int] | None:
        """Memory and its address; None where there is not enough left."""
        first, last = self._used, self._used + nbytes
        if last > _BYTES:
            return None
        self._used = -(-last // _ALIGNMENT) * _ALIGNMENT
        return self._bytes[first:last], self._start + first

    def send(self, to: int, *values: Array) -> None:
        """Copy to the device, one after the other, before what is launched from now on."""
        flat = [np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in values]
        nbytes = sum(v.size for v in flat)
        place = self._place(nbytes)
        if place is None:
            for v in flat:
                self._memory.copy_to_device(to, v)
                to += v.size
        elif nbytes:
            np.concatenate(flat, out=place[0])
            self._engine.copy(to, place[1], nbytes)

    def fetch(self, source: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """What lies on the device after all that was launched so far: to be read once that is waited for."""
        nbytes = math.prod(shape) * dtype.itemsize
        place = self._place(nbytes)
        if place is None:
            found = np.empty(shape, dtype)
            self._memory.copy_to_host(found.reshape(-1).view(np.uint8), source)
            return found
        if nbytes:
            self._engine.copy(place[1], source, nbytes)
        return place[0].view(dtype).reshape(shape)
