"""Calls of a communicator on a thread of its own, in the order in which they were begun.

So a sum over ranks goes on while the thread that began it computes. Only one thread uses the communicator at
a time: whoever begins a call waits for all of them before the communicator is used elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

from magmadnn.comm import Communicator
from magmadnn.comm.groups import Binding, is_telling
from magmadnn.graph.op import Array

_MOST_SPANS: Final = 1 << 12


@dataclass(frozen=True)
class Span:
    """A call that has ended.

    Attributes:
        number: which call.
        nbytes: of what is summed.
        begun, ended, wanted: seconds of `time.perf_counter`: when the call was begun, had ended, and when
            somebody began to wait for it.
    """

    number: int
    nbytes: int
    begun: float
    ended: float
    wanted: float

    @property
    def hidden(self) -> float:
        """The share of its time in which nobody waited for it."""
        whole = self.ended - self.begun
        return 1.0 if whole <= 0 else min(max((self.wanted - self.begun) / whole, 0.0), 1.0)


class Beside:
    """What is under way on one communicator.

    Simulated ranks take turns, so their calls are made where they are begun; so are those of a thread that
    asks all ranks before each call (`telling`).

    Attributes:
        spans: of the last calls.
    """

    def __init__(self, is_simulated: bool) -> None:
        self._threads = None if is_simulated else ThreadPoolExecutor(1, "magmadnn sums")
        self._running: dict[int, tuple[Future[Any], int, float]] = {}
        self.spans: list[Span] = []

    def begin(self, number: int, nbytes: int, call: Callable[[], Array]) -> None:
        """Begin call `number`, which has not been begun, or was waited for."""
        begun, binding = time.perf_counter(), Binding()

        def run() -> tuple[Array, float]:
            with binding.here():
                return call(), time.perf_counter()

        if self._threads is None or is_telling():
            future: Future[Any] = Future()
            future.set_result(run())
        else:
            future = self._threads.submit(run)
        self._running[number] = future, nbytes, begun

    def result(self, number: int) -> Array:
        """Wait for call `number`; what it gave, or raised."""
        wanted = time.perf_counter()
        future, nbytes, begun = self._running.pop(number)
        found: Array
        found, ended = future.result()
        self.spans.append(Span(number, nbytes, begun, ended, wanted))
        if len(self.spans) > _MOST_SPANS:
            del self.spans[: _MOST_SPANS // 2]
        return found


_known: WeakKeyDictionary[Communicator, Beside] = WeakKeyDictionary()
_lock = Lock()


def beside(communicator: Communicator) -> Beside:
    """What is under way on a communicator."""
    with _lock:
        if communicator not in _known:
            _known[communicator] = Beside(getattr(communicator, "clock", None) is not None)
        return _known[communicator]
