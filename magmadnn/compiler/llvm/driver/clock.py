"""The counter that timed drivers read, for Python."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from magmadnn.compiler.llvm.ir.builder import I64, Code
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target
from magmadnn.compiler.llvm.kernel import block, load, scratch


@dataclass(frozen=True)
class _Clock:
    """Stores the counter."""

    slots = ("now",)

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        frame.array("now", I64).put(0, code.clock())


class Clock:
    """The counter, to be read from Python."""

    def __init__(self) -> None:
        self._now, kernel = np.zeros(1, np.int64), _Clock()
        (self._read,) = load([kernel])
        self._arguments, self._memory = block(kernel, now=self._now), scratch(64)

    def now(self) -> int:
        """The counter, a microsecond ago."""
        self._read(self._arguments, self._memory)
        return int(self._now[0])


def ticks_per_second(seconds: float = 0.02) -> float:
    """How fast the counter runs, measured for so long."""
    clock = Clock()
    first, begun = clock.now(), time.perf_counter()
    last, ended = clock.now(), time.perf_counter()
    while ended - begun < seconds:
        last, ended = clock.now(), time.perf_counter()
    return (last - first) / (ended - begun)
