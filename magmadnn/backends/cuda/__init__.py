"""Devices: is there one, why not, and its memory. CUDA is loaded when a device is asked for."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.errors import DeviceError, installing, shown

from .protocol import DeviceMemory as DeviceMemory

if TYPE_CHECKING:
    from .engine import Engine

__all__ = [
    "DeviceMemory", "Provider", "array_library", "available", "check_process", "device_count",
    "device_engine", "device_memory", "install", "is_opened", "opens_slowly",
]  # fmt: skip


@dataclass(frozen=True)
class Provider:
    """Where devices come from.

    Attributes:
        probe: counts them, and gives their names or why there are none.
        open_device: the memory of one.
        open_engine: computing on one; None where its devices only hold memory.
    """

    probe: Callable[[], tuple[int, str]]
    open_device: Callable[[int], DeviceMemory]
    open_engine: Callable[[int], Engine] | None = None


def _probe_cupy() -> tuple[int, str]:
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(library)
    except OSError:
        return 0, f"no NVIDIA driver was found ({library})"
    try:
        from . import _cupy
    except (ImportError, OSError, RuntimeError) as error:  # it loads CUDA's libraries as well
        way_out = installing("cuda13", "cuda12")
        return 0, f"CuPy cannot be loaded ({shown(error)}): {way_out}"
    return _cupy.probe()


_opened_by: list[int] = []  # the process that opened a device
_opening = ProcessLock(
    reentrant=True
)  # by threads that do not know of each other: each device once


def is_opened() -> bool:
    """Whether this process, or one it was forked from, has opened a GPU: CUDA fails in its forks."""
    return bool(_opened_by)


def check_process() -> None:
    """Raises DeviceError in a forked process whose parent had opened a GPU: CUDA does not work there."""
    if _opened_by and _opened_by[0] != os.getpid():
        raise DeviceError(
            "the GPU was opened by the process that this one was forked from, and CUDA works in one of "
            'them only: start processes by multiprocessing.get_context("spawn"), or before the GPU is used'
        )


def _open_cupy(device: int) -> DeviceMemory:
    check_process()
    with _opening:
        _opened_by[:] = [os.getpid()]
        return _cupy_memory(device)


def _open_cupy_engine(device: int) -> Engine:
    check_process()
    with _opening:
        return _cupy_engine_of(device)


@cache
def _cupy_memory(device: int) -> DeviceMemory:
    from . import _cupy

    return _cupy.CupyMemory(device)


@cache
def _cupy_engine_of(device: int) -> Engine:
    from . import _cupy_engine

    return _cupy_engine.CudaEngine(device)


_CUPY = Provider(cache(_probe_cupy), _open_cupy, _open_cupy_engine)
_provider = [_CUPY]


def install(provider: Provider | None = None) -> Provider:
    """Take devices from another provider, or with None from CuPy again; returns the one before."""
    before = _provider[0]
    _provider[0] = _CUPY if provider is None else provider
    return before


def installed() -> Provider:
    """Where devices come from."""
    return _provider[0]


def opens_slowly() -> bool:
    """Whether it takes time to open a device, as CuPy's do."""
    return _provider[0] is _CUPY


def device_count() -> int:
    """How many devices can be used."""
    return _provider[0].probe()[0]


def available() -> tuple[bool, str]:
    """Whether a device can be used, and why or why not."""
    count, reason = _provider[0].probe()
    return count > 0, reason


def device_memory(device: int) -> DeviceMemory:
    """The memory of device number `device`.

    Raises:
        DeviceError: if there is no such device; says what is missing.
    """
    count, reason = _provider[0].probe()
    if not count:
        raise DeviceError(f"device {device} cannot be used: {reason}")
    if not 0 <= device < count:
        raise DeviceError(f"device {device} is not there: this machine has {count}, counted from 0")
    return _provider[0].open_device(device)


def array_library() -> Any | None:
    """What sees arrays on devices without copying them, as CuPy does; None where there is nothing."""
    if _provider[0] is not _CUPY or not device_count():
        return None
    import cupy

    return cupy


def device_engine(device: int) -> Engine:
    """Computing on device number `device`.

    Raises:
        DeviceError: if there is no such device, or it only holds memory.
    """
    device_memory(device)  # says what is missing
    if _provider[0].open_engine is None:
        raise DeviceError(f"device {device} holds memory only: it cannot compute")
    return _provider[0].open_engine(device)
