"""Device memory through CuPy's binding of the CUDA runtime.

Copies run on the default stream, in the order they are asked for. Copies in the background run on a
stream of their own until `wait`, behind what the default stream had to do when they were asked for, and go
through pinned memory, since the device copies no other while the host goes on; those beside all else run on
a stream of the thread that asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import cupy  # only where the extra cuda12 or cuda13 is installed
import numpy as np
from cupy.cuda import runtime

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.backends.cpu.host import Bytes

from . import _driver as driver
from .nodes.arrays import DeviceArray
from .protocol import fill_by_doubling

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_MANAGES_PAGES = 89  # cudaDevAttrConcurrentManagedAccess
_MOST_PINNED = 64 << 20  # bytes of a copy that goes through pinned memory: pinning takes time, too


def probe() -> tuple[int, str]:
    """How many devices there are, and their names or why there are none."""
    try:
        count: int = runtime.getDeviceCount()
        names = [runtime.getDeviceProperties(n)["name"].decode() for n in range(count)]
    except runtime.CUDARuntimeError as error:
        return 0, f"the NVIDIA driver gives no device ({error})"
    return count, ", ".join(names) or "the NVIDIA driver lists no device"


class CudaEvent:
    """A place behind what a stream was given."""

    def __init__(self, device: int, stream: int, timed: bool = False) -> None:
        self._device = device
        with cupy.cuda.Device(device):
            self.event = cupy.cuda.Event(disable_timing=not timed)
            runtime.eventRecord(self.event.ptr, stream)

    def wait(self) -> None:
        with cupy.cuda.Device(self._device):
            self.event.synchronize()

    def seconds_since(self, earlier: CudaEvent) -> float:
        with cupy.cuda.Device(self._device):
            return 1e-3 * float(cupy.cuda.get_elapsed_time(earlier.event, self.event))


class CupyMemory:
    """`DeviceMemory` of one CUDA device."""

    def __init__(self, device: int) -> None:
        self.name = f"device {device}"
        self._device = device
        with self._here():
            self._side = cupy.cuda.Stream(non_blocking=True)
            self._begun = cupy.cuda.Event(disable_timing=True)
            self._moves = bool(runtime.deviceGetAttribute(_MANAGES_PAGES, device))
        self._held: list[object] = []
        self._fetched: list[tuple[Bytes, Bytes]] = []  # where bytes belong, and where they arrive
        self._lock = threading.Lock()
        self._waiting = threading.Lock()
        self._thread = threading.local()

    def _here(self) -> cupy.cuda.Device:
        """The runtime keeps a current device for each thread, so every call says its own."""
        return cupy.cuda.Device(self._device)

    def allocate(self, nbytes: int) -> int:
        return self._allocated(runtime.malloc, nbytes)

    def allocate_managed(self, nbytes: int) -> int:
        if nbytes > self.total:  # more than the device holds would thrash, not fail
            raise MemoryError
        address = self._allocated(runtime.mallocManaged, nbytes)
        if self._moves:
            with self._here():
                driver.prefer(address, nbytes, self._device)
        return address

    def _allocated(self, call: Callable[[int], int], nbytes: int) -> int:
        with self._here():
            try:
                return call(nbytes)
            except runtime.CUDARuntimeError as error:
                if error.status == _OUT_OF_MEMORY:
                    raise MemoryError from error
                raise

    def free(self, address: int) -> None:
        with self._here():
            runtime.free(address)

    def copy_to_device(self, to: int, source: Bytes, hold: object = None) -> None:
        if hold is not None and source.nbytes <= _MOST_PINNED:
            pinned = self.pinned(source.nbytes)
            np.copyto(pinned, source)
            source, hold = pinned, (hold, pinned)
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
        if hold is None or to.nbytes > _MOST_PINNED:
            self._copy(to.ctypes.data, source, to.nbytes, hold)
            return
        pinned = self.pinned(to.nbytes)
        self._copy(pinned.ctypes.data, source, to.nbytes, hold)
        with self._lock:
            self._fetched.append((to, pinned))

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
                self._begun.record(cupy.cuda.Stream.null)  # what that still writes comes first
                self._side.wait_event(self._begun)
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
        if self._moves:  # else the driver moves whole blocks by itself
            with self._here():
                runtime.free(0)  # makes the context, in a thread that has none
                driver.move(address, nbytes, self._device if to_device else None, self._side.ptr)

    def wait(self) -> None:
        with self._waiting:  # nobody returns before bytes that another thread waits for are there
            with self._lock:  # before waiting: what is added meanwhile is held for the next one
                held, self._held = self._held, []
                fetched, self._fetched = self._fetched, []
            with self._here():
                runtime.deviceSynchronize()
            for to, pinned in fetched:
                np.copyto(to, pinned)
            del held

    def trim(self) -> None:
        with self._here():
            cupy.get_default_memory_pool().free_all_blocks()  # of what arrays of CuPy's had

    @cached_property
    def total(self) -> int:
        return self.free_and_total()[1]

    def free_and_total(self) -> tuple[int | None, int]:
        with self._here():
            free, total = runtime.memGetInfo()
        return int(free), int(total)


def seen_at(array: DeviceArray) -> cupy.ndarray:
    """An array of any layout, as CuPy sees it."""
    memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(array.address, 0, None), 0)
    return cupy.ndarray(array.shape, array.dtype, memory, array.strides)
