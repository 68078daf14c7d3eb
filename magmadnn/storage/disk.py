"""The system calls that durable writing is made of, and the words for what can go wrong with them.

Every call that changes the disk goes through `calls`, so that a test can make each one fail, or stop
the program there, and then look at what is left.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from magmadnn.errors import FileError, MagmaDNNError, OutOfMemoryError, shown
from magmadnn.storage.input_files import input_name

try:
    import fcntl
except ImportError:  # Windows
    _FULL_SYNC = None
else:
    # macOS: there fsync only hands the data to the drive, which may keep it in its cache.
    _FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)

_NOT_OFFERED = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY)


class Calls:
    """One method per system call that changes the disk; all raise OSError."""

    def create(self, path: Path) -> int:
        """Makes a new, empty file, never through a link, and returns its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Writes some or all of `data` and returns how many bytes."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Returns when the file's bytes are on the medium."""
        if _FULL_SYNC is not None:
            try:
                fcntl.fcntl(descriptor, _FULL_SYNC)
                return
            except OSError as error:
                if error.errno not in _NOT_OFFERED:
                    raise
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Gives the descriptor back."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Gives `source` the name `target` in one step; a file or empty folder there is replaced."""
        if os.name == "nt" and target.is_dir():  # there a folder replaces nothing
            target.rmdir()
        source.replace(target)

    def make_folder(self, path: Path) -> None:
        """Makes one empty folder."""
        path.mkdir()

    def remove_file(self, path: Path) -> None:
        """Removes one file or link."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Removes one empty folder."""
        path.rmdir()

    def sync_folder(self, path: Path) -> None:
        """Returns when the names in the folder are on the medium (nothing to do on Windows)."""
        if os.name == "nt":  # a folder cannot be opened there
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self.sync(descriptor)
        except OSError as error:
            if error.errno not in _NOT_OFFERED:  # some network file systems sync names at once
                raise
        finally:
            os.close(descriptor)


calls = Calls()

_FULL = "free some space or choose another folder"
_REASONS = {
    errno.ENOSPC: f"the disk is full; {_FULL}",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "no permission; choose another folder or change its permissions",
    errno.EPERM: "no permission; choose another folder or change its permissions",
    errno.EEXIST: "it exists already; choose another name or remove it first",
    errno.ENOTEMPTY: "it exists already and is not empty; choose another name or remove it first",
    errno.ENOENT: "it does not exist; check the path",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
    errno.EISDIR: "it is a folder, not a file; choose another name",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.EBUSY: "it is in use or the root of a mounted disk; choose a folder below it",
    errno.EFBIG: "it would be too large for this file system; choose another folder",
    errno.EIO: "the disk reports an input/output error; check the disk or choose another one",
}
if hasattr(errno, "EDQUOT"):
    _REASONS[errno.EDQUOT] = f"the disk quota is used up; {_FULL}"


def as_path(what: str, value: Any) -> Path:
    """A path that a user gave.

    Raises:
        ArgumentError: if it is none, holds a zero byte, or is empty: that would be the folder that the
            process is in.
    """
    return Path(input_name(what, value))


def file_error(action: str, path: Path, error: OSError) -> FileError:
    """The error for `action` ("cannot write") on `path`: one line with reason and way out."""
    system = error.strerror or str(error) or type(error).__name__
    reason = _REASONS.get(error.errno or 0)
    wrapped = FileError(f"{action} {shown(path)}: {f'{reason} ({system})' if reason else system}")
    wrapped.errno = error.errno
    return wrapped


@contextmanager
def worded(action: str, path: Path) -> Iterator[None]:
    """Turns an OSError of the block into a `FileError` about `path`, and a lack of memory into ours."""
    try:
        yield
    except MagmaDNNError:
        raise
    except OSError as error:
        raise file_error(action, path, error) from error
    except MemoryError as error:
        raise OutOfMemoryError(
            f"{action} {shown(path)}: it does not fit into the memory of this process"
        ) from error


def is_folder(path: Path) -> bool:
    """Whether it is a folder.

    Raises:
        FileError: the system does not let us look, or takes no such name.
    """
    with worded("cannot read", path):
        return path.is_dir()


def is_there(path: Path) -> bool:
    """Whether there is anything of that name; raises as `is_folder`."""
    with worded("cannot read", path):
        return path.exists()
