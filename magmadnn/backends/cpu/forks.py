"""Locks that outlive a fork, a lock for what is lent, and properties that are computed once.

A forked child has one thread, and a copy of every lock as it was: one that another thread held is never
given back. So a `ProcessLock` is free again in the child. What such a thread had half done stays half done
there; where others could stumble over that, the lock is kept by the thread that forks, so that nobody is
half-way. A module that another thread imports can not be imported in a child any more, whose lock is
Python's. So a fork also waits until no thread is in an import that this package began.

`Returns` is a lock for what is lent. That comes back when the last array on it is garbage, which may be at
any moment and in any thread, also in the one that holds the lock. So coming back only puts it on a queue,
which is worked off by whoever holds the lock.
"""

from __future__ import annotations

import _imp  # its lock was public in the module `imp` up to Python 3.11
import functools
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")

_PATIENCE = 5.0  # seconds that a fork waits for locks and imports; then it goes on without them
_TURN = 1e-3  # seconds for others between two looks at what they import
_PACKAGE = __name__.partition(".")[0]
_IMPORTS, _LOCKED_IN = "<frozen importlib._bootstrap>", "_find_and_load"
_all: weakref.WeakSet[ProcessLock] = weakref.WeakSet()
_registering = threading.Lock()
_forking = threading.Lock()
_kept: list[ProcessLock] = []  # by the thread that forks


class ProcessLock:
    """A lock that is free in a forked child, whoever held it.

    Args:
        keep: whether a thread that forks takes it meanwhile, which is for locks that are held for moments.
        reentrant: whether the thread that holds it may take it again.

    Attributes:
        held: what `with` holds, another one in a child; for who takes it often: no function of Python runs.
    """

    def __init__(self, *, keep: bool = False, reentrant: bool = False) -> None:
        self.keep = keep
        # a lock that is kept knows who holds it
        self._make: Callable[[], Any] = threading.RLock if reentrant or keep else threading.Lock
        self._is_once = keep and not reentrant  # held once, by a lock that could be taken again
        self.held: Any = self._make()
        with _registering:
            _all.add(self)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; whether that succeeded. Without `blocking` who holds it does not get it again."""
        if not blocking and self._is_once and self.held._is_owned():
            return False
        return bool(self.held.acquire(blocking, timeout))

    def release(self) -> None:
        """Give it back."""
        self.held.release()

    # `with` calls the lock of C itself: a KeyboardInterrupt that is raised in a function of Python between
    # the lock and the body of `with` would leave the lock held for ever

    @property
    def __enter__(self) -> Callable[[], Any]:
        enter: Callable[[], Any] = self.held.__enter__
        return enter

    @property
    def __exit__(self) -> Callable[..., None]:
        leave: Callable[..., None] = self.held.__exit__
        return leave

    def is_own(self) -> bool:
        """Whether this thread holds it; of locks that are kept."""
        return bool(self.held._is_owned())

    def renew(self) -> None:
        """In a forked child: nobody holds it."""
        self.held = self._make()


class cached_property(functools.cached_property[Value]):
    """`functools.cached_property` where a fork does no harm: Python 3.11 holds a lock while it computes."""

    def __init__(self, function: Callable[[Any], Value]) -> None:
        super().__init__(function)
        if hasattr(self, "lock"):
            self.lock = ProcessLock(reentrant=True)


# Python's modules whose hooks give a lock back after a fork that others of theirs took before it: these have
# not run where the module came while a fork waited
_GIVEN_BACK = {"logging": "_lock", "concurrent.futures.thread": "_global_shutdown_lock"}


def _is_in_import(frame: FrameType | None) -> bool:
    """Whether a thread, whose innermost frame this is, holds the lock of an import begun by this package."""
    inside = False
    while frame is not None:
        code = frame.f_code
        if code.co_name == _LOCKED_IN and code.co_filename == _IMPORTS:
            inside = True
        elif inside and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
            return True
        frame = frame.f_back
    return False


def _others_import() -> bool:
    """Whether other threads are in imports that this package began."""
    own = threading.get_ident()
    return any(
        _is_in_import(frame) for thread, frame in sys._current_frames().items() if thread != own
    )


def _before() -> None:
    """Wait until nobody is half-way in what cannot be left half done.

    Locks come first: who holds one may import meanwhile. Who imports may wait for one: it gets all of them
    back before the next look.
    """
    _forking.acquire()
    until = time.monotonic() + _PATIENCE
    absent = _GIVEN_BACK.keys() - sys.modules.keys()
    while True:
        with _registering:
            locks = [lock for lock in _all if lock.keep]
        for lock in locks:
            if not lock.is_own() and lock.acquire(timeout=max(until - time.monotonic(), 0)):
                _kept.append(lock)
        _imp.acquire_lock()  # no import begins meanwhile
        if not _others_import() or time.monotonic() >= until:
            break
        _imp.release_lock()
        _give_back()
        time.sleep(_TURN)
    for name in absent & sys.modules.keys():
        module = sys.modules[name]
        if not getattr(module.__spec__, "_initializing", False):  # its hooks are there
            getattr(module, _GIVEN_BACK[name]).acquire()


def _give_back() -> None:
    while _kept:
        _kept.pop().release()


def _after_in_parent() -> None:
    with suppress(RuntimeError):  # not held, where an interrupt came before
        _imp.release_lock()
    _give_back()
    _forking.release()


def _after_in_child() -> None:
    global _forking, _registering
    with suppress(RuntimeError):
        _imp.release_lock()
    _forking, _registering = threading.Lock(), threading.Lock()
    _kept.clear()
    for lock in list(_all):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )


Item = TypeVar("Item")


class Returns(Generic[Item]):
    """`with returns:` holds the lock, after everything that came back before was taken.

    Args:
        take: what is done with an item, by a thread that holds the lock.
    """

    def __init__(self, take: Callable[[Item], None]) -> None:
        self._take = take
        self._lock = ProcessLock(keep=True)
        self._queue: deque[Item] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            if self._queue:
                self.work_off()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def put(self, item: Item) -> None:
        """An item comes back; may be called anywhere."""
        self._queue.append(item)
        if self._lock.acquire(blocking=False):  # otherwise whoever is next works it off
            try:
                self.work_off()
            finally:
                self._lock.release()

    def work_off(self) -> None:
        """Take all that came back; for those who hold the lock."""
        while self._queue:
            self._take(self._queue.popleft())
