"""Files that somebody else wrote: their names, how they are opened, and whether they fit into memory.

Whatever a name or a file holds, what goes wrong is one of magmadnn's errors, in one line.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError, FileError, MagmaDNNError, OutOfMemoryError, quoted, shown
from magmadnn.storage.machine_memory import available_bytes
from magmadnn.storage.places import expanded

_SMALL = (
    1 << 28
)  # bytes that are not worth asking the system about, and that packed data may always become
_RATIO = 100
_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# A pipe that was put there meanwhile would block.
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


def input_name(what: str, value: Any) -> str:
    """The path that a user gave, as text.

    Args:
        what: how a message begins: `read_npz: the file`.
        value: text, or something with a path.

    Raises:
        ArgumentError: it is no path, or holds a zero byte.
    """
    name = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(name, str) or not name or "\0" in name:
        raise ArgumentError(f"{what} must be a path, got {quoted(value)}")
    return name


def input_path(what: str, value: Any) -> Path:
    """The same with `~` replaced by the home folder.

    Raises:
        ArgumentError: as `input_name`.
        FileError: there is no such home folder.
    """
    return expanded(input_name(what, value))


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Turns what the system says in the block into an error about `where`, a file or folder."""
    try:
        yield
    except MagmaDNNError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FileError(
            f"{shown(where)}: cannot be read ({reason}): check the path and its permissions"
        ) from error
    except MemoryError as error:
        raise OutOfMemoryError(
            f"{shown(where)}: does not fit into the memory of this process: read a smaller file, or "
            "part of it"
        ) from error


@contextmanager
def opened(path: Path, where: str | None = None) -> Iterator[FileIO]:
    """A regular file, open for reading bytes while the block runs.

    Args:
        path: the file.
        where: how messages call it; None: its name.

    Raises:
        FileError: it is not there, is a folder, a pipe, a socket or a device, or cannot be read.
        OutOfMemoryError: the block found no memory.
    """
    where = where or shown(path)
    with reading(where):
        # Looked at before it is opened, since opening some devices does something.
        check_regular(where, path.stat())
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            check_regular(where, os.fstat(descriptor))
            yield file


def check_regular(where: str, status: os.stat_result) -> None:
    """Raises `FileError` unless it is a regular file."""
    if (kind := kind_of(status)) is not None:
        raise FileError(f"{where}: expected a regular file, got {kind}: give the name of a file")


def kind_of(status: os.stat_result) -> str | None:
    """What it is, in words; None for a regular file."""
    if stat.S_ISREG(status.st_mode):
        return None
    return next((words for is_kind, words in _KINDS if is_kind(status.st_mode)), "another kind")


def check_room(where: object, nbytes: int, way_out: str) -> None:
    """Refuses what needs more memory than there is, before any of it is taken.

    Raises:
        OutOfMemoryError: `nbytes` are more than programs may take now.
    """
    if nbytes > _SMALL and nbytes > (free := available_bytes()):
        raise OutOfMemoryError(
            f"{shown(where)}: needs {nbytes:,} bytes of memory, and {free:,} are available: {way_out}"
        )


def unpacked_limit(nbytes: int) -> int:
    """Bytes that `nbytes` of packed data may become.

    Real data shrinks to a tenth, seldom to a hundredth; a thousandth or less is made to fill the memory.
    """
    return max(_SMALL, _RATIO * nbytes)
