"""Streams of the emulated device, done once somebody waits for them, and what native code calls."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from magmadnn.backends.cuda.engine import KernelNode, NativeCall

if TYPE_CHECKING:
    from tests.runtime.cuda.emulator import Emulator


class EmulatedMark:
    """A place in a queue of what was launched; no more than that is done when it is waited for."""

    def __init__(self, lane: Emulator | EmulatedLane) -> None:
        self._lane, self._is_past = lane, False
        self._passed = 0.0
        lane.later(self._pass)

    def _pass(self) -> None:
        self._is_past, self._passed = True, time.perf_counter()

    def seconds_since(self, earlier: EmulatedMark) -> float:
        """The time between two that are past."""
        assert self._is_past and earlier._is_past
        return self._passed - earlier._passed

    def wait(self) -> None:
        """Do all that was launched before."""
        with self._lane.lock:
            while self._lane.queue and not self._is_past:
                self._lane.queue.pop(0)()


class EmulatedFence:
    """`ReusableEvent` of this process."""

    def __init__(self, engine: Emulator) -> None:
        self.last: EmulatedMark | None = None
        self.call = engine.called("wait", self.wait)

    def wait(self) -> None:
        """Do all that was launched before it was set last."""
        if self.last is not None:
            self.last.wait()


class EmulatedCalls:
    """`Calls` of this process: the same as at once, by native code."""

    def __init__(self, engine: Emulator, lane: Emulator | EmulatedLane) -> None:
        self._engine, self._lane = engine, lane

    def copy(self, to: int, source: int, nbytes: int) -> NativeCall:
        return self._engine.called("copy", lambda: self._lane.copy(to, source, nbytes))

    def launch(self, node: KernelNode, arguments: np.ndarray) -> NativeCall:
        def launch() -> None:
            self._lane.launch(replace(node, arguments=tuple(arguments.tolist())))

        return self._engine.called("launch", launch)

    def mark(self, fence: EmulatedFence) -> NativeCall:
        def mark() -> None:
            fence.last = self._lane.mark()

        return self._engine.called("mark", mark)

    def follow(self, fence: EmulatedFence) -> NativeCall:
        def follow() -> None:
            if fence.last is not None:
                self._lane.follow(fence.last)

        return self._engine.called("follow", follow)


class EmulatedLane:
    """`Stream` of this process: copies are made, and kernels run, once somebody waits for them."""

    def __init__(self, engine: Emulator) -> None:
        self._engine, self.lock = engine, engine.lock
        self.queue: list[Callable[[], None]] = []
        self.calls = EmulatedCalls(engine, self)

    def later(self, what: Callable[[], None]) -> None:
        self.queue.append(what)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        self.later(lambda: ctypes.memmove(to, source, nbytes) and None)

    def launch(self, node: KernelNode) -> None:
        self.later(lambda: self._engine.run(node))

    def mark(self) -> EmulatedMark:
        return EmulatedMark(self)

    def follow(self, mark: EmulatedMark) -> None:
        self.later(mark.wait)
