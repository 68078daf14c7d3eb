"""Gradients of several batches averaged for one update.

A batch adds its gradient, times what its mean was divided by, to sums that are part of the state. The last
one of a group gives the parts of the optimiser the mean over the group, as one large batch would have had it
but for rounding; after the others parameters, moments and counts stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import Updated, placeholder
from magmadnn.graph.op import Array
from magmadnn.tensor import Operation, Tensor, Variable

_FLAG = Spec((), np.dtype(np.float64))


def inverse_of(mass: Operation) -> Operation:
    """1 / mass, and 0 of rows that all weigh nothing; nothing is infinite on the way."""
    is_heavy = ops.greater(mass, 0.0)
    found: Operation = ops.where(is_heavy, 1.0 / ops.where(is_heavy, mass, 1.0), 0.0)
    return found


class Accumulation:
    """The sums, and the graph around a step.

    Args:
        every: batches of a group, at least 2.
        mass: what the mean over a batch was divided by, as its number of rows: a scalar of float64.

    Attributes:
        slots: what belongs to the state, by name.
        batch: number of the next batch in its epoch.
        batches: of the epoch; the last group may have fewer than `every`.
    """

    def __init__(self, every: int, mass: Operation) -> None:
        self.every, self._mass = every, mass
        self.batch, self.batches = 0, 0
        self._begins, self._ends = placeholder("begins", _FLAG), placeholder("ends", _FLAG)
        self._total = Variable("accumulated_mass", Tensor.wrap(np.zeros((), np.float64)))
        self.slots = {self._total.name: self._total}
        self._sums: list[Updated] = []

    # --- the graph --------------------------------------------------------------------------------

    def averaged(self, gradients: Sequence[Operation], names: Sequence[str]) -> list[Operation]:
        """The means of a group's gradients so far, from those of one batch; `names` of parameters."""
        begins = ops.greater(Operation(self._begins), 0.5)
        total = ops.where(begins, 0.0, self._total) + self._mass
        self._sums = [(self._total.node, total.node)]
        inverse = inverse_of(total)
        means = []
        for gradient, name in zip(gradients, names, strict=True):
            held = Tensor.wrap(np.zeros(bind_shape(gradient.shape, {}), gradient.dtype))
            slot = self.slots[f"{name}/accumulated"] = Variable(f"{name}/accumulated", held)
            summed = ops.where(begins, 0, slot) + gradient * ops.cast(self._mass, gradient.dtype)
            self._sums.append((slot.node, summed.node))
            means.append(summed * ops.cast(inverse, gradient.dtype))
        return means

    def kept(self, updates: Sequence[Updated]) -> list[Updated]:
        """The updates at the end of a group; otherwise everything stays as it is."""
        ends = ops.greater(Operation(self._ends), 0.5)
        return [
            (target, ops.where(ends, Operation(value), Operation(target)).node)
            for target, value in updates
        ]

    def updates(self) -> list[Updated]:
        """New sums."""
        return self._sums

    # --- what is fed ------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[Node]:
        """The inputs."""
        return [self._begins, self._ends]

    def feeds(self, count: int) -> dict[Node, Array]:
        """Whether groups begin and end with the next `count` batches."""
        numbers = self.batch + np.arange(count)
        begins, ends = numbers % self.every == 0, self._ends_with(numbers)
        return {self._begins: begins.astype(np.float64), self._ends: ends.astype(np.float64)}

    def updates_before(self, count: int) -> Any:
        """Updates between now and each of the next `count` batches."""
        ends = self._ends_with(self.batch + np.arange(count))
        return np.concatenate([[0], np.cumsum(ends)[:-1]])

    def _ends_with(self, numbers: Any) -> Any:
        return (numbers % self.every == self.every - 1) | (numbers == self.batches - 1)
