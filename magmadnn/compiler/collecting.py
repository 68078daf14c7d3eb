"""No search for garbage while a compiler works: all that it makes is in use until it is done.

Python looks for cycles whenever some hundred objects were made, in all objects that there are. To plan the
training of ResNet-50 makes so many that this took a quarter of the time.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from magmadnn.backends.cpu.forks import ProcessLock

_lock = ProcessLock(keep=True)
_collected: list[bool] = []  # for each that is inside: whether there was a search before


@contextmanager
def uncollected() -> Iterator[None]:
    """Nobody looks for garbage meanwhile; the last of several that are inside sets back how it was."""
    with _lock:
        _collected.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _leave()


def _leave() -> None:
    if _collected and _collected.pop():  # the first one's is the last to be taken
        gc.enable()


def _leave_all() -> None:
    """In a child that was forked, where other threads are gone."""
    while _collected:
        _leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)
