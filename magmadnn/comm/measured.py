"""Which algorithm sums arrays of which size, found by measuring on the ranks that will use it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from magmadnn.errors import ArgumentError

from .group import HostCommunicator
from .rounds import ALL_REDUCE

SIZES: Final = (1 << 10, 1 << 14, 1 << 18, 1 << 22)
_ALGORITHMS: Final = (*ALL_REDUCE, "library")


@dataclass(frozen=True)
class Choice:
    """For arrays up to each number of bytes the quickest algorithm; the last one for all that are larger.

    Args:
        steps: bytes and algorithm, in rising order.
        seconds: of each algorithm at each of these sizes, the slowest rank's, as measured.
    """

    steps: tuple[tuple[int, str], ...]
    seconds: tuple[tuple[int, str, float], ...] = ()

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.steps]
        if not sizes or sizes != sorted(set(sizes)):
            raise ArgumentError(f"Choice: bytes must rise from step to step, got {sizes}")
        for _, name in self.steps:
            if name not in _ALGORITHMS:
                known = ", ".join(_ALGORITHMS)
                raise ArgumentError(f"Choice: algorithm {name!r} is not known: known are {known}")

    def __call__(self, nbytes: int) -> str:
        """The algorithm for an array of so many bytes."""
        return next((name for size, name in self.steps if nbytes <= size), self.steps[-1][1])

    def __str__(self) -> str:
        lines = [f"{'bytes':>10}  " + "  ".join(f"{name:>9}" for name in _ALGORITHMS)]
        for size, best in self.steps:
            times = {name: value for at, name, value in self.seconds if at == size}
            shown = [
                f"{times[name] * 1e6:8.0f}{'*' if name == best else ' '}"
                if name in times
                else f"{'':9}"
                for name in _ALGORITHMS
            ]
            lines.append(f"{size:>10}  " + "  ".join(shown))
        return "\n".join([*lines, "microseconds; * is the quickest"])


def measure_all_reduce(
    communicator: HostCommunicator, sizes: Sequence[int] = SIZES, repeats: int = 7
) -> Choice:
    """Time all algorithms of `all_reduce` for some sizes, and let the communicator use the quickest.

    All ranks call it and get the same choice, which stays as it is until it is measured again. Algorithms
    sum in different orders, so results may differ in the last bits from those of another choice; without a
    choice sums are in rank order. On simulated ranks the clock that counts is theirs.

    Args:
        communicator: of the ranks.
        sizes: bytes of the arrays.
        repeats: of each measurement; the median counts.

    Raises:
        ArgumentError: for no sizes or repeats.
    """
    if not sizes or min(sizes) < 8 or repeats < 1:
        raise ArgumentError(
            f"measure_all_reduce: sizes from 8, repeats from 1, got {sizes}, {repeats}"
        )
    found: list[tuple[int, str, float]] = []
    for size in sorted(set(sizes)):
        x = np.ones(size // 8)
        for name in _ALGORITHMS:
            if name == "library" and communicator.clock is not None:
                continue  # simulated ranks have none
            communicator.all_reduce(x, op="max", algorithm=name)  # connections are made
            times = []
            for _ in range(repeats):
                communicator.barrier()
                start = _now(communicator)
                communicator.all_reduce(x, op="max", algorithm=name)
                times.append(_now(communicator) - start)
            found.append((size, name, max(communicator.exchange(median(times)))))
    steps = [
        (size, min((s, n) for at, n, s in found if at == size)[1]) for size in sorted(set(sizes))
    ]
    choice = Choice(tuple(steps), tuple(found))
    communicator.use(choice)
    return choice


def _now(communicator: HostCommunicator) -> float:
    clock = communicator.clock
    return time.perf_counter() if clock is None else clock
