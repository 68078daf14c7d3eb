"""Device memory through CuPy's binding of the CUDA runtime.

Copies run on the default stream, in the order they are asked for. Copies in the background run on a
stream of their own until `wait`; those beside all else on a stream of the thread that asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import cupy  # only where the extra cuda12 or cuda13 is installed
import numpy as np
from cupy.cuda import runtime

from magmadnn.backends.cpu.host import Bytes

from .protocol import fill_by_doubling

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


def probe() -> tuple[int, str]:
    """How many devices there are, and their names or why there are none."""
    try:
        count: int = runtime.getDeviceCount()
        names = [runtime.getDeviceProperties(n)["name"].decode() for n in range(count)]
    except runtime.CUDARuntimeError as error:
        return 0, f"the NVIDIA driver gives no device ({error})"
    return count, ", ".join(names) or "the NVIDIA driver lists no device"


class CupyMemory:
    """`DeviceMemory` of one CUDA device."""

    def __init__(self, device: int) -> None:
        self.name = f"device {device}"
        self._device = device
        with self._here():
            self._side = cupy.cuda.Stream(non_blocking=True)
        self._held: list[object] = []
        self._lock = threading.Lock()
        self._thread = threading.local()

    def _here(self) -> cupy.cuda.Device:
        """The runtime keeps a current device for each thread, so every call says its own."""
        return cupy.cuda.Device(self._device)

    def allocate(self, nbytes: int) -> int:
        return self._allocated(runtime.malloc, nbytes)

    def allocate_managed(self, nbytes: int) -> int:
        if nbytes > runtime.memGetInfo()[1]:  # more than the device holds would thrash, not fail
            raise MemoryError
        return self._allocated(runtime.mallocManaged, nbytes)

    def _allocated(self, call: Callable[[int], int], nbytes: int) -> int:
        try:
            with self._here():
                return call(nbytes)
        except runtime.CUDARuntimeError as error:
            if error.status == _OUT_OF_MEMORY:
                raise MemoryError from error
            raise

    def free(self, address: int) -> None:
        with self._here():
            runtime.free(address)

    def copy_to_device(self, to: int, source: Bytes, hold: object = None) -> None:
        self._copy(to, source.ctypes.data, source.nbytes, hold)

    def copy_beside(self, to: int, source: Bytes) -> None:
        kind = runtime.memcpyHostToDevice
        with self._here():
            if not hasattr(self._thread, "stream"):
                self._thread.stream = cupy.cuda.Stream(non_blocking=True)
            runtime.memcpyAsync(
                to, source.ctypes.data, source.nbytes, kind, self._thread.stream.ptr
            )

    def wait_beside(self) -> None:
        if hasattr(self._thread, "stream"):
            with self._here():
                runtime.streamSynchronize(self._thread.stream.ptr)

    def pinned(self, nbytes: int) -> Bytes:
        with self._here():
            return np.frombuffer(cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8, nbytes)

    def copy_to_host(self, to: Bytes, source: int, hold: object = None) -> None:
        self._copy(to.ctypes.data, source, to.nbytes, hold)

    def copy_on_device(self, to: int, source: int, nbytes: int) -> None:
        self._copy(to, source, nbytes, None)

    def _copy(self, to: int, source: int, nbytes: int, hold: object) -> None:
        kind = runtime.memcpyDefault  # with unified addresses the runtime sees which side is which
        with self._here():
            if hold is None:
                runtime.memcpy(to, source, nbytes, kind)
                return
            with self._lock:
                self._held.append(hold)
            runtime.deviceSynchronize()  # what the default stream still writes comes first
            runtime.memcpyAsync(to, source, nbytes, kind, self._side.ptr)

    def fill(self, to: int, pattern: bytes, count: int) -> None:
        if not count:
            return
        nbytes = len(pattern) * count
        with self._here():
            if len(set(pattern)) == 1:
                runtime.memset(to, pattern[0], nbytes)
                return
        self.copy_to_device(to, np.frombuffer(pattern, np.uint8))
        fill_by_doubling(self, to, pattern, nbytes)

    def prefetch_managed(self, address: int, nbytes: int, to_device: bool) -> None:
        if to_device:  # CuPy's binding for CUDA 13 cannot name the host: pages follow when it reads
            with self._here():
                runtime.memPrefetchAsync(address, nbytes, self._device, self._side.ptr)

    def wait(self) -> None:
        with self._lock:  # taken before waiting: what is added meanwhile is held for the next wait
            held, self._held = self._held, []
        with self._here():
            runtime.deviceSynchronize()
        del held

    def free_and_total(self) -> tuple[int | None, int]:
        with self._here():
            free, total = runtime.memGetInfo()
        return int(free), int(total)
