"""The counter that timed drivers read, for Python."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from .builder import I64, Code
from .frame import Frame
from .kernel import block, load, scratch
from .target import Target


@dataclass(frozen=True)
class _Clock:
    """Stores the counter."""

    slots = ("now",)

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        frame.array("now", I64).put(0, code.clock())


def ticks_per_second(seconds: float = 0.02) -> float:
    """How fast the counter runs, measured for so long."""
    now, kernel = np.zeros(1, np.int64), _Clock()
    (loaded,) = load([kernel])
    arguments, memory = block(kernel, now=now), scratch(64)

    def read() -> tuple[int, float]:
        loaded(arguments, memory)
        return int(now[0]), time.perf_counter()

    first, begun = read()
    last, ended = read()
    while ended - begun < seconds:
        last, ended = read()
    return (last - first) / (ended - begun)
