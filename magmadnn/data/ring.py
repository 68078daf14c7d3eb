"""Room for a few batches that a thread fills while others are used: data that does not fit into memory.

The reader fills places in turn and waits where all are taken; the user takes what is ready and gives
it back by taking more. Nothing is ever copied out, and memory does not grow. Where rows are copied on, to a
device, the reader fills the next places meanwhile.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from magmadnn.data._structure import Array
from magmadnn.memory.foreign import OnDevice

_JOIN_SECONDS = 5.0  # how long `close` waits for what is just being read


class Follower(Protocol):
    """Somebody who needs a copy of what is filled."""

    def changed(self, first: int, last: int) -> None:
        """Begin to copy rows `first` to `last`, which stay as they are until `settle`; by any thread."""
        ...

    def settle(self) -> None:
        """Return once all that this thread has begun is done."""
        ...


@dataclass(frozen=True)
class Ready:
    """Batches in places that follow each other.

    Attributes:
        first: the first place.
        count: how many.
    """

    first: int
    count: int


class Ring:
    """Places for batches of equal size.

    Args:
        samples: an array like each of a batch's: shapes of rows and dtypes.
        rows: of a batch.
        places: how many batches there is room for.
        memory: gives bytes for the arrays; zeros where it is left out.

    Attributes:
        arrays: one for each of a batch's, [places * rows, ...].
        order: for each row of each batch, the row of `arrays` in which it lies. A reader may put the
            rows of what it fills at once in any order.
    """

    def __init__(
        self,
        samples: Sequence[Array],
        rows: int,
        places: int,
        memory: Callable[[int], NDArray[np.uint8]] | None = None,
    ) -> None:
        self.rows, self.places = rows, places
        self.arrays = [_like(s, places * rows, memory) for s in samples]
        self._follower: Follower | None = None
        self.order: NDArray[np.int64] = np.arange(places * rows)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._reset()

    def _reset(self) -> None:
        self._ready: deque[Ready | Any] = deque()
        self._written = self._taken = self._free_from = 0  # places so far; what was given back
        self._waiting = 0  # places that are filled and not given out yet
        self._is_full = False  # the reader waits for room
        self._error: BaseException | None = None
        self._ended = self._closed = False

    # --- the reader's side ------------------------------------------------------------------------

    def wait_for_room(self, count: int) -> int | None:
        """Wait until `count` places that follow each other are free; the first, or None if none is wanted."""
        first = self._written % self.places
        enough = self._written + count - self.places
        if self._free_from < enough:
            self.give_out()  # for whom the user may be waiting
        with self._changed:
            self._is_full = self._free_from < enough
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._free_from >= enough)
            self._is_full = False
            return None if self._closed else first

    def add(self, count: int) -> None:
        """The next `count` places are filled; they are given out with the next that is told, at the latest.

        That is also done by `give_out`, by what waits for room, and at the end.
        """
        self.give_out()
        self._written += count
        self._waiting = count

    def give_out(self) -> None:
        """Let the user have what was added, once it is where it is needed."""
        count, self._waiting = self._waiting, 0
        if not count:
            return
        if self._follower is not None:
            self._follower.settle()
        with self._changed:
            first = (self._written - count) % self.places
            last = self._ready[-1] if self._ready else None
            if isinstance(last, Ready) and last.first + last.count == first:
                self._ready[-1] = Ready(last.first, last.count + count)
            else:
                self._ready.append(Ready(first, count))
            self._changed.notify_all()

    def tell(self, first: int, last: int) -> None:
        """Rows `first` to `last` are filled: to be called before their places are added."""
        self.give_out()
        if self._follower is not None:
            self._follower.changed(first, last)

    def pass_on(self, item: Any) -> bool:
        """Hand over something that fits into no place, in its turn; False if nothing is wanted."""
        self.give_out()
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < 2)
            self._ready.append(item)
            self._changed.notify_all()
            return not self._closed

    def _read(self, fill: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            try:
                fill()
            finally:
                self.give_out()
        except BaseException as raised:
            error = raised
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    # --- the user's side --------------------------------------------------------------------------

    def start(self, fill: Callable[[], None], follower: Follower | None = None) -> Ring:
        """Begin anew, with `fill` in a thread as the reader; use as a context manager, or `close`.

        What is filled is given out once `follower` has it.
        """
        if self._thread is not None:
            self._thread.join()  # it has ended; were it still reading, it would fill our places
        self._changed = threading.Condition()  # a forked child may have one that is held
        self._reset()
        self._follower = follower
        self._thread = threading.Thread(
            target=self._read, args=(fill,), name="magmadnn-reader", daemon=True
        )
        self._thread.start()
        return self

    def take(self, most: int, least: int = 1) -> Ready | Any | None:
        """Up to `most` batches that are ready, or what was passed on; None at the end. Waits for the reader.

        What was taken before is given back. Fewer than `least` are only given out where the reader cannot add
        to them. An error of the reader is raised when all that it had filled is used up.
        """
        with self._changed:
            self._free_from = self._taken
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended or self._has(min(least, most)))
            if not self._ready:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                return None
            found = self._ready.popleft()
            if not isinstance(found, Ready):
                return found
            if found.count > most:
                self._ready.appendleft(Ready(found.first + most, found.count - most))
                found = Ready(found.first, most)
            self._taken += found.count
            return found

    def _has(self, least: int) -> bool:
        """Whether there are so many batches to be taken, or there will not be more of them."""
        if not self._ready:
            return False
        first = self._ready[0]
        last = not isinstance(first, Ready) or first.first + first.count == self.places
        return last or self._is_full or len(self._ready) > 1 or first.count >= least

    def close(self) -> None:
        """Stop the reader."""
        if self._thread is None:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_JOIN_SECONDS)

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _like(sample: Array, rows: int, memory: Callable[[int], NDArray[np.uint8]] | None) -> Array:
    """An array for so many rows of the sample's shape, in the machine's byte order, where the sample lies."""
    shape, dtype = (rows, *sample.shape[1:]), sample.dtype.newbyteorder("=")
    if isinstance(sample, OnDevice):
        from magmadnn.runtime.cuda.data import arrays

        found: Any = arrays.empty(shape, dtype, sample.device)
        return found  # no ndarray where it lies on the device
    if memory is None:
        return np.zeros(shape, dtype)
    return memory(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
