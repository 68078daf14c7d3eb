"""What `magmadnn doctor` says of GPUs: devices, driver, libraries with their versions, what is missing."""

from __future__ import annotations

import ctypes
import importlib.metadata
import sys
from collections.abc import Iterator

from magmadnn.backends import cuda
from magmadnn.errors import DeviceError, MagmaDNNError, installing
from magmadnn.memory.usage import in_units

from . import machine

# Library -> the packages that bring it, whichever is there, and what it is for.
_LIBRARIES = {
    "CuPy": (("cupy-cuda13x", "cupy-cuda12x", "cupy"), "memory, NVRTC, cuBLASLt"),
    "NVRTC": (("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"), "compiles kernels"),
    "cuBLASLt": (("nvidia-cublas", "nvidia-cublas-cu12"), "large products"),
    "cuSOLVER": (("nvidia-cusolver", "nvidia-cusolver-cu12"), "factors of matrices"),
    "cuDNN": (("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"), "convolutions, else products"),
    "NCCL": (("nvidia-nccl-cu13", "nvidia-nccl-cu12"), "several GPUs"),
}


def facts() -> Iterator[tuple[str, str]]:
    """Name and value of each."""
    found, reason = cuda.available()
    if not found:
        yield "NVIDIA GPU", f"none can be used: {reason}"
    for number in range(cuda.device_count()):
        yield f"device {number}", _device_words(number)
    yield "driver", _driver_words()
    if found:
        yield "kernels", _kernels_words()
    for name, (packages, purpose) in _LIBRARIES.items():
        version = next(filter(None, map(_version, packages)), None)
        extra = _extra().replace("cuda", "cudnn") if name == "cuDNN" else _extra()
        missing = f"not installed ({purpose}): {installing(extra)}"
        yield name, missing if version is None else version


def _device_words(number: int) -> str:
    """Name and memory of a device."""
    name = cuda.available()[1].split(", ")[number]
    try:
        free, total = cuda.device_memory(number).free_and_total()
    except MagmaDNNError as error:
        return f"{name}, cannot be used: {error}"
    return f"{name}, {in_units(total)}" + (f", {in_units(free)} free" if free is not None else "")


def _kernels_words() -> str:
    try:
        engine = cuda.device_engine(0)
    except (DeviceError, ImportError) as error:
        return f"cannot be compiled: {error}"
    return ", ".join((*engine.versions, f"{engine.processors} multiprocessors"))


def _driver_words() -> str:
    """The driver's version, and the newest CUDA that it runs."""
    words, newest = machine.driver_words(), newest_cuda()
    return words if newest is None else f"{words}, for CUDA up to {newest[0]}.{newest[1]}"


def newest_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver runs; None without a driver."""
    number = ctypes.c_int()
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        if library.cuDriverGetVersion(ctypes.byref(number)):
            return None
    except (OSError, AttributeError):
        return None
    return number.value // 1000, number.value % 1000 // 10


def _extra() -> str:
    """The extra for this driver."""
    newest = newest_cuda()
    return "cuda12" if newest is not None and newest[0] < 13 else "cuda13"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
