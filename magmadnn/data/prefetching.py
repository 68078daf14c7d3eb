"""A background thread that prepares the next items while the present one is used."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, DataError, DTypeError

Item = TypeVar("Item")

_JOIN_SECONDS = 5.0  # how long `close` waits for an item that is just being prepared


@checked_call
def prefetch(source: Iterable[Item], depth: int = 2) -> Prefetcher[Item]:
    """The items of `source` in their order, up to `depth` of them prepared ahead by a thread.

    An exception in `source` is raised where its item would have come. The thread ends when the
    items end, at an exception, at `close()` or the end of a `with` block, and when the result is
    no longer used. A generator is closed in the thread that ran it.

    Args:
        source: any iterable: `batches(...)`, a generator, a list.
        depth: items kept ready, at least 1. Memory: `depth + 1` items.

    Raises:
        ArgumentError: a depth below 1.
        DTypeError: `source` cannot be iterated over.
    """
    if depth < 1:
        raise ArgumentError(f"prefetch: depth must be at least 1, got {depth}")
    try:
        iterator = iter(source)
    except TypeError as error:
        raise DTypeError(
            f"prefetch: expected something to iterate over, got {type(source).__name__}"
        ) from error
    return Prefetcher(iterator, depth)


class Prefetcher(Generic[Item]):
    """Iterator made by `prefetch`; also a context manager."""

    def __init__(self, iterator: Iterator[Item], depth: int) -> None:
        # The thread knows the channel only: were it to hold `self`, that could never be collected.
        self._channel: _Channel[Item] = _Channel(depth)
        self._thread = threading.Thread(
            target=_fill, args=(iterator, self._channel), name="magmadnn-prefetch", daemon=True
        )
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _close, self._channel, self._process)
        self._thread.start()

    def __iter__(self) -> Prefetcher[Item]:
        return self

    def __next__(self) -> Item:
        if self._process != os.getpid():
            raise DataError(
                "prefetch: its thread runs in the process that this one was forked from, and prepares "
                "nothing here: call prefetch in the process that uses it"
            )
        return self._channel.take()

    def close(self) -> None:
        """Stops the thread; items prepared but not taken are dropped. May be called again."""
        _close(self._channel, self._process)
        # A source that uses this very object would otherwise wait for itself.
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    def __enter__(self) -> Prefetcher[Item]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Channel(Generic[Item]):
    """A queue of bounded length with an end, an error and a way to close it from either side."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[Item] = deque()
        self._error: BaseException | None = None
        self._ended = False
        # Re-entrant: the garbage collector may call `close` while this thread holds the lock.
        self._changed = threading.Condition(threading.RLock())

    def put(self, item: Item) -> bool:
        """Adds an item when there is room; False when nobody wants more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._items) < self._depth)
            if self._ended:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def take(self) -> Item:
        """The next item; the source's error or StopIteration at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._items)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def end(self, error: BaseException | None = None) -> None:
        """The source's end: what was put can still be taken."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """The consumer's end: nothing more is wanted."""
        with self._changed:
            self._ended, self._error = True, None
            self._items.clear()
            self._changed.notify_all()


def _close(channel: _Channel[Item], process: int) -> None:
    """End the thread, in the process that has it: in a forked one it may hold the lock for ever."""
    if os.getpid() == process:
        channel.close()


def _fill(iterator: Iterator[Item], channel: _Channel[Item]) -> None:
    """What the thread does."""
    error: BaseException | None = None
    try:
        for item in iterator:
            if not channel.put(item):
                break
        close = getattr(iterator, "close", None)  # a generator's clean-up belongs to this thread
        if callable(close):
            close()
    except BaseException as raised:
        error = raised
    channel.end(error)
