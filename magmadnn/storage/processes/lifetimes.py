"""Processes that die with their parent, and waiting for those of a search that was killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from magmadnn.errors import FileError, shown
from magmadnn.storage.disk import worded

try:
    import fcntl
except ImportError:  # Windows
    _LOCK = None
else:
    _LOCK = fcntl

NAME = ".workers"
_PR_SET_PDEATHSIG = 1
_PATIENCE = 30.0  # seconds; a process that is killed may be in a call of a driver
_PAUSE = 0.5


def die_with(parent: int) -> None:
    """Let this process be killed as soon as its parent has ended, however that happens."""
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
            if os.getppid() != parent:  # it ended before that call
                os._exit(1)
            return
    threading.Thread(target=_look_after, args=(parent,), daemon=True).start()


def _look_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PAUSE)
    os._exit(1)


def mark_alive(folder: Path) -> None:
    """Hold a shared lock in a study's folder until this process ends."""
    if _LOCK is not None:
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        _LOCK.flock(descriptor, _LOCK.LOCK_SH)  # never closed: the system gives it up


def wait_for_dead(folder: Path, patience: float = _PATIENCE) -> None:
    """Return when no worker of an earlier search in this folder is alive.

    Raises:
        FileError: one still is after `patience` seconds.
    """
    if _LOCK is None or not (folder / NAME).exists():
        return
    with worded("cannot open", folder / NAME):
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        end = time.monotonic() + patience
        while True:
            try:
                _LOCK.flock(descriptor, _LOCK.LOCK_EX | _LOCK.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise FileError(
                        f"search: workers of an earlier search in {shown(folder)} are still alive; end them, "
                        "then go on"
                    ) from error
            time.sleep(0.02)
    finally:
        os.close(descriptor)
