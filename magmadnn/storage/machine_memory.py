"""How much memory this machine has, and how much of it programs may take now."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@cache
def total_bytes() -> int:
    """Bytes of memory in this machine; where it does not say, as much as one can address."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system knows these two
        return 1 << 47


def available_bytes() -> int:
    """Bytes that programs may take now without others being moved out; all where that is not known."""
    most = total_bytes()
    for name in _LIMITS:
        text = _text_of(name).strip()  # "max" where there is no limit
        most = min(most, int(text)) if text.isdecimal() else most
    _, found, rest = _text_of("/proc/meminfo").partition("MemAvailable:")
    return min(most, int(rest.split()[0]) << 10) if found else most


def _text_of(name: str) -> str:
    """A small file of the system; nothing where it is not there."""
    try:
        return Path(name).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
