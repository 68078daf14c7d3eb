"""Memory of a GPU that other processes of this machine may read and write (CUDA IPC)."""

from __future__ import annotations

import ctypes
import threading
import weakref
from contextlib import suppress
from typing import Any

from magmadnn.errors import DeviceError

# Memory of other processes that is mapped into this one: by device and handle the address, and for how many.
_maps: dict[tuple[int, str], list[int]] = {}
_changing = threading.Lock()


class Mapped:
    """Memory of other processes, as one user of it here sees it: mapped once for all users of this process.

    It is given back with its last user, or by that one's `close`; not when Python ends.

    Args:
        cupy: the module; None where there is no such memory.
        device: number of this process's GPU that reads and writes it.
    """

    def __init__(self, cupy: Any, device: int) -> None:
        self._cupy, self._device, self._handles = cupy, device, list[str]()
        self._closing = weakref.finalize(self, _unmap, cupy, device, self._handles)
        self._closing.atexit = False

    def address(self, handle: str, offset: int = 0) -> int:
        """Where something lies of which `exported` has told another process's handle and offset.

        Raises:
            RuntimeError: the memory cannot be mapped, of CuPy.
        """
        with _changing:
            found = _maps.get((self._device, handle))
            if found is None:
                with self._cupy.cuda.Device(self._device):
                    opened = self._cupy.cuda.runtime.ipcOpenMemHandle(bytes.fromhex(handle))
                found = _maps[self._device, handle] = [int(opened), 0]
            if handle not in self._handles:
                self._handles.append(handle)
                found[1] += 1
            return found[0] + offset

    def close(self) -> None:
        """Give all of it back: addresses are not valid any more."""
        self._closing()


def _unmap(cupy: Any, device: int, handles: list[str]) -> None:
    with _changing:
        for handle in handles:
            found = _maps[device, handle]
            found[1] -= 1
            if not found[1]:
                del _maps[device, handle]
                with suppress(RuntimeError), cupy.cuda.Device(device):
                    cupy.cuda.runtime.ipcCloseMemHandle(found[0])


def library() -> Any:
    """CUDA's driver, which `exported` asks.

    Raises:
        OSError: there is none.
    """
    return ctypes.CDLL("libcuda.so.1")


def exported(cupy: Any, driver: Any, array: Any) -> tuple[str, int]:
    """The handle, in hexadecimal digits, of the allocation in which an array lies, and where in it, in bytes.

    Args:
        cupy: the module.
        driver: the library libcuda.
        array: of CuPy.

    Raises:
        DeviceError: its memory is not CUDA's.
        RuntimeError: its memory cannot be exported, of `cupy`.
    """
    return exported_at(cupy, driver, int(array.data.ptr), f"an array of {array.shape}")


def exported_at(cupy: Any, driver: Any, address: int, what: str) -> tuple[str, int]:
    """The same of what lies at an address; `what` is for errors.

    Raises:
        DeviceError: its memory is not CUDA's.
        RuntimeError: its memory cannot be exported, of `cupy`.
    """
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = driver.cuMemGetAddressRange_v2(
        ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address)
    )
    if status:
        raise DeviceError(f"cuMemGetAddressRange gives {status} for {what}")
    handle = cupy.cuda.runtime.ipcGetMemHandle(base.value)
    return bytes(handle).hex(), address - int(base.value)
