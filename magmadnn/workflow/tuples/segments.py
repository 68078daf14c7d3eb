"""Memory that processes of one machine share: files in /dev/shm, made and owned by a tuple server.

A server makes a segment, whose pages are there at once, so that a full memory is an error here and not a
signal later. Clients write and read it. What is freed serves again, since its pages need not be made anew.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from pathlib import Path

FOLDER = Path("/dev/shm")
_PAGE = 1 << 16
_KEPT = 8  # mappings that a client keeps


def can_share() -> bool:
    """Whether this system has such memory, and it is not switched off (MAGMADNN_TUPLES=messages)."""
    wanted = os.environ.get("MAGMADNN_TUPLES", "shared") != "messages"
    return wanted and FOLDER.is_dir() and os.access(FOLDER, os.W_OK)


def rounded(size: int) -> int:
    """Bytes of a segment for data of a size."""
    return -(-max(size, 1) // _PAGE) * _PAGE


class Segments:
    """The segments of a server.

    Args:
        prefix: of their names, which nobody else has.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix, self._next = prefix, 0
        self._sizes: dict[str, int] = {}
        self._free: list[str] = []

    @property
    def bytes_made(self) -> int:
        """Of all segments, free ones among them."""
        return sum(self._sizes.values())

    def take(self, size: int, most: int | None) -> str | None:
        """The name of a segment of at least `size` bytes; None where the memory is full."""
        wanted = rounded(size)
        fitting = [n for n in self._free if wanted <= self._sizes[n] <= wanted + wanted // 4]
        if fitting:
            name = min(fitting, key=lambda one: self._sizes[one])
            self._free.remove(name)
            return name
        while self._free and most is not None and self.bytes_made + wanted > most:
            self._unlink(self._free.pop(0))
        return self._made(wanted)

    def _made(self, size: int) -> str | None:
        name = f"{self._prefix}-{self._next}"
        self._next += 1
        descriptor = os.open(FOLDER / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            (FOLDER / name).unlink()
            return None
        finally:
            os.close(descriptor)
        self._sizes[name] = size
        return name

    def free(self, name: str) -> None:
        """A segment may serve again."""
        if name in self._sizes and name not in self._free:
            self._free.append(name)

    def close(self) -> None:
        """Remove all."""
        for name in list(self._sizes):
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        del self._sizes[name]
        (FOLDER / name).unlink(missing_ok=True)


class Mappings:
    """Segments that a process has mapped; the last few stay so, since their pages are then at hand."""

    def __init__(self) -> None:
        self._maps: OrderedDict[str, mmap.mmap] = OrderedDict()

    def view(self, name: str, size: int) -> memoryview:
        """The first `size` bytes of a segment."""
        found = self._maps.pop(name, None)
        if found is None or len(found) < size:
            descriptor = os.open(FOLDER / name, os.O_RDWR)
            try:
                flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
                found = mmap.mmap(descriptor, os.fstat(descriptor).st_size, flags)
            finally:
                os.close(descriptor)
        self._maps[name] = found
        while len(self._maps) > _KEPT:
            self._maps.popitem(last=False)  # unmapped once no array lies in it
        return memoryview(found)[:size]


def remove_all(prefix: str) -> None:
    """Remove segments that a killed job has left."""
    if FOLDER.is_dir():
        for path in FOLDER.glob(f"{prefix}-*"):
            path.unlink(missing_ok=True)
