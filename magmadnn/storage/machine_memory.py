"""How much memory this machine has, and how much of it programs may take now."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

# limit of a container, what it has of that, and what of this are pages of files that can be dropped
_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)


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
    for limit, used, parts in _LIMITS:
        text = _text_of(limit).strip()  # "max" where there is no limit
        if text.isdecimal():
            held = _text_of(used).strip()
            taken = int(held) - _dropped(_text_of(parts)) if held.isdecimal() else 0
            most = min(most, max(int(text) - max(taken, 0), 0))
    _, found, rest = _text_of("/proc/meminfo").partition("MemAvailable:")
    return min(most, int(rest.split()[0]) << 10) if found else most


def _dropped(parts: str) -> int:
    """Bytes of files in memory that the system can drop at once."""
    fields = dict(line.split()[:2] for line in parts.splitlines() if len(line.split()) > 1)
    text = fields.get("inactive_file", "")
    return int(text) if text.isdecimal() else 0


def _text_of(name: str) -> str:
    """A small file of the system; nothing where it is not there."""
    try:
        return Path(name).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
