"""The machine, the commit and the versions that results belong to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from .cases import Device

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (
    "numpy", "llvmlite", "scipy-openblas64", "ml_dtypes", "torch", "jax", "jaxlib",
)  # fmt: skip
CUDA_LIBRARIES = ("cupy-cuda13x", "nvidia-cublas", "nvidia-cuda-nvrtc")


def cores() -> list[int]:
    """Numbers of the cores that this process may use, one hardware thread of each."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    seen, found = set(), []
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = _text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        if not siblings or siblings not in seen:
            seen.add(siblings)
            found.append(cpu)
    return found


def last_cache_bytes() -> int:
    """Size of the last-level cache that the first core sees; 32 MiB where the system does not say."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = _text(str(path))
        scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 0)
        sizes.append(int(text[:-1]) * scale if scale else 0)
    return max(sizes) or 32 << 20


def description(device: Device = "cpu") -> dict[str, Any]:
    """Machine, commit and versions, as JSON data."""
    libraries = LIBRARIES + CUDA_LIBRARIES * (device == "cuda")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "cores": len(cores()),
        "last_cache_bytes": last_cache_bytes(),
        "memory_bytes": _memory_bytes(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": _commit(),
        "gpu": _gpu() if device == "cuda" else "",
        "versions": {name: _version(name) for name in libraries},
        "load_at_start": list(os.getloadavg()),
    }


def _cpu() -> str:
    """Name, and family and model, since virtual machines hide the name's numbers."""
    info: dict[str, str] = {}
    for line in _text("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        info.setdefault(key.strip(), value.strip())
    if "model name" not in info:
        return platform.processor() or platform.machine()
    return f"{info['model name']}, family {info.get('cpu family')}, model {info.get('model')}"


def _gpu() -> str:
    """Name, memory and driver."""
    query = "--query-gpu=name,memory.total,driver_version"
    done = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip().partition("\n")[0]


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _commit() -> str:
    """The commit, marked where files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "magmadnn")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + (
        " and changes" if changed else ""
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
