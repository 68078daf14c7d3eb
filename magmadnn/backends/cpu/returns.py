"""A lock for what is lent, and a queue for what comes back while somebody holds it.

What was lent comes back when the last array on it is garbage, which may be at any moment and in any thread,
also in the one that holds the lock. So coming back only puts it on a queue, which is worked off by whoever
holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from .forks import ProcessLock

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
