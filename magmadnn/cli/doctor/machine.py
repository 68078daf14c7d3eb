"""Facts about this machine in words; what cannot be found out says so instead of failing."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from magmadnn.storage.machine_memory import available_bytes, total_bytes

NOT_INSTALLED = "not installed"
_UNKNOWN = "cannot be found out"
_VECTOR = ("avx", "fma", "amx", "f16c", "sse4", "vnni", "asimd", "sve", "bf16", "i8mm")


def python_words() -> str:
    """Version, kind and place of the interpreter."""
    kind = platform.python_implementation()
    return f"{platform.python_version()} ({kind}), {sys.executable}"


def system_words() -> str:
    """Operating system and kind of processor."""
    name = ""
    if hasattr(platform, "freedesktop_os_release"):
        try:
            name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
        except OSError:  # there is no such file, for instance on macOS
            name = ""
    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    return f"{name}, {kernel}" if name else kernel


def cpu_model() -> str:
    """The name that the processor gives itself."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
            return done.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return platform.processor() or _UNKNOWN
    return platform.processor() or _UNKNOWN


def cpu_features() -> str:
    """Vector extensions that the system lists; where it does not, those that NumPy found."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith(("flags", "Features")):  # x86, ARM
            flags = line.partition(":")[2].split()
            return " ".join(flag for flag in flags if flag.startswith(_VECTOR)) or _UNKNOWN
    config: Any = np.show_config(mode="dicts")
    found = config.get("SIMD Extensions", {})
    return " ".join([*found.get("baseline", ()), *found.get("found", ())]) or _UNKNOWN


def cores_words() -> str:
    """Hardware threads, those that this process may use, and cores."""
    threads = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else threads
    socket, cores = "", set()
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "physical id":
            socket = value.strip()
        elif name.strip() == "core id":
            cores.add((socket, value.strip()))
    words = f"{threads} threads, {usable} for this process"
    return f"{len(cores)} cores, {words}" if cores else words


def memory_words() -> str:
    """All memory, and what is free for programs."""
    total, free = total_bytes(), available_bytes()
    words = f", {free / 2**30:.1f} GiB available" if free < total else ""
    return f"{total / 2**30:.1f} GiB{words}"


def numpy_words() -> str:
    """Version, and the BLAS that it was built with."""
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return (
        f"{np.__version__}, BLAS {blas.get('name', 'unknown')} {blas.get('version', '')}".rstrip()
    )


def library_words(name: str) -> str:
    """The version of a library, or why it cannot be used."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        return NOT_INSTALLED if error.name == name else f"cannot be loaded: {_one_line(error)}"
    except (ImportError, OSError, RuntimeError) as error:
        return f"cannot be loaded: {_one_line(error)}"
    if version := getattr(module, "__version__", None):
        return str(version)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "there, version unknown"


def package_words(name: str) -> str:
    """The version of a package, which is not imported: some take seconds."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED


def driver_words() -> str:
    """The NVIDIA driver's version."""
    lines = _lines("/proc/driver/nvidia/version")
    return lines[0].partition(":")[2].strip() if lines else "none found"


def folder_words(folder: Path) -> str:
    """Whether a folder can be written, or made, in words."""
    above = _nearest(folder)
    if not can_write(folder):
        return f"{folder}: cannot be written, because {above} cannot"
    return f"{folder}: {'can be written' if above == folder else 'can be made when it is needed'}"


def can_write(folder: Path) -> bool:
    """Whether a folder can be written, or made."""
    above = _nearest(folder)
    return above.is_dir() and os.access(above, os.W_OK | os.X_OK)


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _lines(path: str) -> list[str]:
    """The lines of a file of the system; none where it is not there."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
