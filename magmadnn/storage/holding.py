"""One writer at a time in a folder: the others are told who it is.

An advisory lock on a small file in the folder (`flock`), which says who holds it. The system gives the lock
up when its process ends, however that happens, so that a killed one blocks nobody. Where a file system has
no such locks, as some network file systems, or the folder cannot be written, nothing is locked; between
hosts it holds only where the network file system passes locks on.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import weakref
from pathlib import Path

from magmadnn.errors import FileError

from .disk import worded
from .durable import make_folders

try:
    import fcntl
except ImportError:  # Windows
    _LOCK = None
else:
    _LOCK = fcntl

NAME = ".in-use"
_TAKEN = (errno.EAGAIN, errno.EACCES)
_CANNOT = (errno.EROFS, errno.EACCES, errno.EPERM)
_all: weakref.WeakSet[Holding] = weakref.WeakSet()


class Holding:
    """A folder that this object writes to, until `release`.

    Args:
        folder: made if it is missing.
        what: what for, in words: "train".

    Raises:
        FileError: somebody else holds it; says which process, on which host and since when.
    """

    def __init__(self, folder: Path, what: str) -> None:
        self._path, self._descriptor = folder / NAME, -1
        if _LOCK is None:
            return
        with worded("cannot write", folder):
            while self._descriptor < 0:
                try:
                    make_folders(folder)
                    descriptor = _opened(self._path)
                except OSError as error:
                    if error.errno in _CANNOT:
                        return
                    raise
                if not _locked(descriptor, folder, what):
                    return
                if _is_same(descriptor, self._path):
                    self._descriptor = descriptor
                else:  # whoever held it has just removed it
                    os.close(descriptor)
        _all.add(self)
        _write_holder(self._descriptor)

    def release(self) -> None:
        """Let others write."""
        if self._descriptor >= 0:
            if _is_same(self._descriptor, self._path):
                with contextlib.suppress(OSError):
                    self._path.unlink()  # before the lock is given up: later it may be another's
            self.forget()

    def forget(self) -> None:
        """In a forked child: the lock is the parent's, also when that has ended."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o644)


def _locked(descriptor: int, folder: Path, what: str) -> bool:
    """Take the lock; False where there are none.

    Raises:
        FileError: if somebody has it.
    """
    assert _LOCK is not None
    try:
        _LOCK.flock(descriptor, _LOCK.LOCK_EX | _LOCK.LOCK_NB)
    except OSError as error:
        holder = _holder(descriptor)
        os.close(descriptor)
        if error.errno in _TAKEN:
            raise FileError(
                f"cannot {what} in {folder}: it is in use by {holder}; wait until that has ended, or choose "
                "another folder"
            ) from error
        return False
    return True


def _write_holder(descriptor: int) -> None:
    host = os.uname().nodename
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    text = json.dumps({"process": os.getpid(), "host": host, "since": since}) + "\n"
    with contextlib.suppress(OSError):  # a full disk: then it is another process, without a number
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _holder(descriptor: int) -> str:
    """Who holds the lock, in words."""
    try:
        found = json.loads(os.pread(descriptor, 1000, 0))
        process = (
            "this process" if found["process"] == os.getpid() else f"process {found['process']}"
        )
        return f"{process} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether the file still bears its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _forget_all() -> None:
    for holding in list(_all):
        holding.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
