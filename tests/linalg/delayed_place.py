"""A device of NumPy whose copies and computations run as late as the marks allow."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np

from magmadnn.linalg.out_of_core._host import HostPlace
from magmadnn.linalg.out_of_core.place import Array, HostArray, Mark

COMPUTE, UP, DOWN = range(3)


class DelayedPlace(HostPlace):
    """Three queues, as a GPU's streams; what misses a wait reads numbers that are not there yet.

    The seed says which queue is run as far as it may, which one then, and which only if both others wait.

    Attributes:
        allocated: bytes.
    """

    name = "the delayed place"

    def __init__(self, seed: int) -> None:
        super().__init__()
        orders = list(permutations((COMPUTE, UP, DOWN)))
        self._first = orders[seed % len(orders)]
        self._queues: list[list[Any]] = [[], [], []]
        self._done = [0, 0, 0]
        self._asked = [0, 0, 0]
        self.allocated = 0

    # --- queues -----------------------------------------------------------------------------------

    def _ask(self, queue: int, what: Any) -> Mark:
        self._queues[queue].append(what)
        self._asked[queue] += 1
        return queue, self._asked[queue]

    def _step(self, queue: int) -> bool:
        """Run the first of a queue, if it may; a mark in it waits for another queue."""
        if not self._queues[queue]:
            return False
        first = self._queues[queue][0]
        if isinstance(first, tuple):
            other, number = first
            if self._done[other] < number:
                return False
        else:
            first()
        self._queues[queue].pop(0)
        self._done[queue] += 1
        return True

    def _run_until(self, mark: Mark) -> None:
        queue, number = mark
        while self._done[queue] < number:
            assert any(self._step(one) for one in self._first), "the queues wait for each other"

    def computed(self) -> Mark:
        return COMPUTE, self._asked[COMPUTE]

    def follow(self, mark: Mark) -> None:
        self._ask(COMPUTE, mark)

    def upload(self, to: Array, source: HostArray, after: list[Mark]) -> Mark:
        for mark in after:
            self._ask(UP, mark)
        return self._ask(UP, lambda: np.copyto(to, source))

    def download(self, to: HostArray, source: Array) -> Mark:
        self._ask(DOWN, self.computed())
        return self._ask(DOWN, lambda: np.copyto(to, source))

    def close(self) -> None:
        for queue in range(3):
            self._run_until((queue, self._asked[queue]))

    def allocate(self, count: int, dtype: np.dtype[Any]) -> Array:
        self.allocated += count * dtype.itemsize
        found = super().allocate(count, dtype)
        found[...] = np.nan
        return found

    # --- arithmetic, later ------------------------------------------------------------------------

    def _later(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self._ask(COMPUTE, lambda: function(*arguments, **named))

    def subtract(self, c: Array, a: Array, b: Array, *, flip_a: bool, flip_b: bool) -> None:
        self._later(super().subtract, c, a, b, flip_a=flip_a, flip_b=flip_b)

    def factor(self, a: Array) -> Array:
        found = np.full(1, -1)
        compute = super().factor
        self._later(lambda: np.copyto(found, compute(a)))
        return found

    def solve_behind(self, x: Array, lower: Array) -> None:
        self._later(super().solve_behind, x, lower)

    def solve(self, x: Array, a: Array, *, lower: bool, unit: bool, flip: bool) -> None:
        self._later(super().solve, x, a, lower=lower, unit=unit, flip=flip)

    def eliminate(self, a: Array, spare: Array) -> HostArray:
        self._run_until(self.computed())
        return super().eliminate(a, spare)

    def reorder(self, a: Array, order: HostArray, spare: Array) -> None:
        self._later(super().reorder, a, np.array(order), spare)

    def exchange(self, a: Array, order: HostArray) -> None:
        self._later(super().exchange, a, np.array(order))

    def total(self, a: Array) -> Array:
        found = np.zeros(1, a.dtype)
        compute = super().total
        self._later(lambda: np.copyto(found, compute(a)))
        return found

    def values(self, parts: list[Array]) -> list[Any]:
        self._run_until(self.computed())
        return super().values(parts)
