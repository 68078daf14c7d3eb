"""Calls of LLVM that take long, by several threads at once, and not while the process forks.

llvmlite lets one thread at a time into LLVM, which itself asks only that threads do not share a context or
a target machine. A child that is forked while a thread is inside LLVM has LLVM's own locks as they were
then, and could wait for them for ever: so a fork waits until nobody is, which takes as long as LLVM takes
for a piece of code.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import llvmlite.binding as llvm

_PATIENCE = 10.0  # seconds that a fork waits


class _Calls:
    """Counts threads that are inside, and lets nobody in while the process forks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._forking = self._locked = False

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def before(self) -> None:
        """Keep everybody out: of this, and of all other calls of LLVM."""
        with self._changed:
            self._forking = True
            self._changed.wait_for(lambda: not self._inside, _PATIENCE)
        lock = _lock_of_llvmlite()
        self._locked = lock is not None and lock._lock.acquire(timeout=_PATIENCE)

    def after_in_parent(self) -> None:
        """Let them in again."""
        if self._locked:
            llvm.ffi.lib._lock._lock.release()
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Nobody is inside."""
        self.__init__()  # type: ignore[misc] # begins anew
        if (lock := _lock_of_llvmlite()) is not None:
            lock._lock = threading.RLock()


def call_unlocked(name: str, *arguments: Any) -> Any:
    """Call a function of llvmlite's library without its lock."""
    function = getattr(llvm.ffi.lib, name)
    with _calls:
        return getattr(function, "_cfn", function)(*arguments)


def _lock_of_llvmlite() -> Any:
    """What holds llvmlite's lock; None where a version of it keeps that elsewhere."""
    lock = getattr(llvm.ffi.lib, "_lock", None)
    return lock if hasattr(lock, "_lock") else None


_calls = _Calls()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_calls.before,
        after_in_parent=_calls.after_in_parent,
        after_in_child=_calls.after_in_child,
    )
