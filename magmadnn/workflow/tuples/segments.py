"""Memory that processes of one machine share: files in /dev/shm, made and owned by a tuple server.

A server makes a segment, an empty file at first. Who puts writes it by `write_new`, since pages that are
written whole need not be cleared, and a full memory is an error there and not a signal later; meanwhile the
server makes pages ahead of who writes. From then on it is mapped. What is freed serves again, with its pages.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

FOLDER = Path("/dev/shm")
_PAGE = 1 << 16
_STEP = 4 << 20  # bytes of pages that are made, or written, at a time: a few ms
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
        self._fresh: dict[str, int] = {}  # not written yet: where pages are to be made next

    @property
    def bytes_made(self) -> int:
        """Of all segments, free ones among them."""
        return sum(self._sizes.values())

    def take(self, size: int, most: int | None) -> tuple[str, bool] | None:
        """The name of a segment for `size` bytes, and whether it is a new one; None: none can be made."""
        wanted = rounded(size)
        fitting = [n for n in self._free if wanted <= self._sizes[n] <= wanted + wanted // 4]
        if fitting:
            name = min(fitting, key=lambda one: self._sizes[one])
            self._free.remove(name)
            return name, False
        while self._free and most is not None and self.bytes_made + wanted > most:
            self._unlink(self._free.pop(0))
        return self._made(wanted)

    def _made(self, size: int) -> tuple[str, bool] | None:
        name = f"{self._prefix}-{self._next}"
        self._next += 1
        try:
            os.close(os.open(FOLDER / name, os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:
            return None
        self._sizes[name] = size
        self._fresh[name] = _STEP  # who writes is before that by the time it is looked at
        return name, True

    def make_pages(self) -> bool:
        """Make some pages of a segment that is being written, ahead of who writes; whether there were any."""
        for name, begin in self._fresh.items():
            if begin < self._sizes[name]:
                end = min(begin + _STEP, self._sizes[name])
                self._fresh[name] = end if self._allocated(name, begin, end) else self._sizes[name]
                return True
        return False

    def _allocated(self, name: str, begin: int, end: int) -> bool:
        """Whether there is memory for the bytes of a segment from `begin` to `end`; there is from now on."""
        try:
            descriptor = os.open(FOLDER / name, os.O_RDWR)
            try:
                os.posix_fallocate(descriptor, begin, end - begin)
            finally:
                os.close(descriptor)
        except OSError:
            return False
        return True

    def written(self, name: str, size: int) -> None:
        """So many bytes of a segment have been written: it has all of its pages now."""
        if self._fresh.pop(name, None) is None or size == self._sizes[name]:
            return
        if not self._allocated(name, size, self._sizes[name]):
            self._sizes[name] = size

    def free(self, name: str) -> None:
        """A segment may serve again; one that was never written is removed."""
        if name in self._fresh:
            self._unlink(name)
        elif name in self._sizes and name not in self._free:
            self._free.append(name)

    def close(self) -> None:
        """Remove all."""
        for name in list(self._sizes):
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        del self._sizes[name]
        self._fresh.pop(name, None)
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


def write_new(name: str, data: Any) -> None:
    """Write a new segment, whose pages are made by that.

    Raises:
        OSError: there is no memory for them.
    """
    view = memoryview(data)
    descriptor = os.open(FOLDER / name, os.O_WRONLY)
    try:
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done : done + _STEP], done)
    finally:
        os.close(descriptor)


def remove_all(prefix: str) -> None:
    """Remove segments that a killed job has left."""
    if FOLDER.is_dir():
        for path in FOLDER.glob(f"{prefix}-*"):
            path.unlink(missing_ok=True)
