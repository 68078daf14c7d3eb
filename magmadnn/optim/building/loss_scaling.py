"""Dynamic loss scaling: gradients in float16 neither vanish nor overflow.

The gradient is taken of scale * loss and divided by scale. Where a part of it is NaN or infinite, the step
changes no parameter and no slot, and the scale is halved; after `INTERVAL` good steps it is doubled
(Micikevicius and others, Mixed Precision Training, 2018, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.graph.node import Updated
from magmadnn.tensor import Operation, Tensor, Variable

INITIAL = 2.0**16
FACTOR = 2.0
INTERVAL = 2000  # good steps after which a larger scale is tried
LEAST, MOST = 2.0**-14, 2.0**24  # so that 1 / scale and scale * 1 are normal numbers of float32


class LossScale:
    """The variables of loss scaling, and the graph around a step.

    Attributes:
        slots: what belongs to the state, by name.
    """

    def __init__(self) -> None:
        self.scale = _variable("loss_scale", np.float32(INITIAL))
        self.good_steps = _variable("good_steps", np.int64(0))
        self.skipped = _variable("skipped_steps", np.int64(0))
        self.slots = {v.name: v for v in (self.scale, self.good_steps, self.skipped)}
        self._finite: Any = None

    def unscaled(self, gradients: Sequence[Operation]) -> list[Operation]:
        """The gradients of the loss, from those of the scaled loss."""
        total = None
        for gradient in gradients:
            # 0 where all elements are finite, else NaN
            found = ops.cast(ops.sum(gradient * 0.0), "float32")
            total = found if total is None else total + found
        self._finite = ops.equal(total, 0.0)
        return [g * ops.cast(1.0 / self.scale, g.dtype) for g in gradients]

    def kept(self, updates: Sequence[Updated]) -> list[Updated]:
        """The updates, where all gradients are finite; otherwise everything stays as it is."""
        return [
            (target, ops.where(self._finite, Operation(value), Operation(target)).node)
            for target, value in updates
        ]

    def updates(self) -> list[Updated]:
        """New scale and counts."""
        good, raised = self.good_steps + 1, ops.minimum(self.scale * FACTOR, MOST)
        full = ops.equal(good, INTERVAL)
        lowered = ops.maximum(self.scale / FACTOR, LEAST)
        scale = ops.where(self._finite, ops.where(full, raised, self.scale), lowered)
        streak = ops.where(ops.logical_and(self._finite, ops.logical_not(full)), good, 0)
        skipped = self.skipped + ops.cast(ops.logical_not(self._finite), "int64")
        new: list[tuple[Variable, Any]] = [
            (self.scale, scale), (self.good_steps, streak), (self.skipped, skipped),
        ]  # fmt: skip
        return [(target.node, ops.cast(value, target.dtype).node) for target, value in new]


def _variable(name: str, value: Any) -> Variable:
    return Variable(name, Tensor.wrap(np.array(value)))
