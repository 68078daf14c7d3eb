"""Workers with a GPU each: arrays of CuPy, sent by a communicator of the host through its memory.

What a communicator of the devices themselves does faster, this does wherever there is one of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.backends.cuda import array_library, device_memory
from magmadnn.comm import Communicator, Request
from magmadnn.dmath.team import Array
from magmadnn.errors import DeviceError


def use_device(rank: int) -> Any:
    """CuPy, with the device of this worker: they take turns if there are fewer devices than workers.

    Raises:
        DeviceError: if there is no GPU, or CuPy is not installed; says what is missing.
    """
    device_memory(0)  # says what is missing
    cupy = array_library()
    if cupy is None:
        raise DeviceError("cuda: arrays on a GPU need CuPy: install the extra cuda13 or cuda12")
    cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
    return cupy


class _Arriving:
    """A request whose result is copied to the device when it is waited for."""

    def __init__(self, request: Request, host: Array, out: Array) -> None:
        self._request, self._host, self._out = request, host, out

    def wait(self) -> Array:
        """Block until it has come, and copy it."""
        self._request.wait()
        self._out.set(self._host)
        return self._out

    def done(self) -> bool:
        """Whether `wait` would return soon."""
        return self._request.done()


class Staged:
    """The calls of a communicator that `magmadnn.dmath` makes, for arrays on a device."""

    def __init__(self, comm: Communicator, xp: Any) -> None:
        self._comm, self._xp = comm, xp
        self.rank, self.size = comm.rank, comm.size

    def all_to_all(self, parts: Sequence[Array], out: Sequence[Array]) -> list[Array]:
        """See `Communicator.all_to_all`."""
        came = self._comm.all_to_all(
            [part.get() for part in parts], [np.empty(one.shape, one.dtype) for one in out]
        )
        for one, host in zip(out, came, strict=True):
            one.set(host)
        return list(out)

    def start_shift(self, array: Array, out: Array) -> _Arriving:
        """See `Communicator.start_shift`."""
        host = np.empty(out.shape, out.dtype)
        return _Arriving(self._comm.start_shift(array.get(), host), host, out)

    def shift(self, array: Array, out: Array) -> Array:
        """See `Communicator.shift`."""
        return self.start_shift(array, out).wait()

    def broadcast(self, array: Array, *, root: int = 0) -> Array:
        """See `Communicator.broadcast`."""
        host = array.get()
        array.set(self._comm.broadcast(host, root=root))
        return array

    def exchange(self, value: Any) -> list[Any]:
        """See `Communicator.exchange`."""
        return self._comm.exchange(value)

    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        self._comm.barrier()

    def split(self, color: int | None, key: int = 0) -> Staged | None:
        """See `Communicator.split`."""
        part = self._comm.split(color, key)
        return None if part is None else Staged(part, self._xp)
