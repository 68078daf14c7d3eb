"""Memory of a GPU that other processes of this machine may read (CUDA IPC)."""

from __future__ import annotations

import ctypes
from typing import Any

from magmadnn.errors import DeviceError


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
