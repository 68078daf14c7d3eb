"""Looking for garbage less often while many models are made, whose thousands of objects all stay."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 20_000  # new ones between two looks, a few times those of a model's start

_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] = (0, 0, 0)


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Inside, reference cycles are looked for once for `_OBJECTS` new objects.

    Garbage stays bounded by that. Where the user has said to look less often, or not at all, nothing changes.
    Blocks may be nested, and overlap in several threads: the last that ends puts back what was before.
    """
    global _users, _before
    with _lock:
        _users += 1
        if _users == 1:
            _before = gc.get_threshold()
            if 0 < _before[0] < _OBJECTS:
                gc.set_threshold(_OBJECTS, *_before[1:])
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                gc.set_threshold(*_before)
