"""The optimiser's state shared out on GPUs: a step in which moments lie in parts.

Parameters are whole on each rank, moments split along an axis that ranks share evenly. So what follows from
placements (`placements/distribute.py`) is ZeRO: sums of gradients come to each rank for its part (a
reduce-scatter), which it updates, and new parameters to all (an all-gather). All of it is one program.
Rajbhandari and others: "ZeRO", SC 2020, stage 2.
"""

from __future__ import annotations

from typing import Any

from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import Node
from magmadnn.graph.placing import Placement, Shard
from magmadnn.optim.building.update import Update
from magmadnn.parallel.placements.part import Part
from magmadnn.parallel.placements.step import PlacedStep
from magmadnn.parallel.ranks_step import RanksStep

from .optimiser import ShardedStep


class PartedStateStep(PlacedStep):
    """One step in which each rank has parts of the optimiser's moments; see `PlacedStep`."""

    def _placed(self, update: Update) -> dict[Node, tuple[Placement, Node]]:
        self.splits, self.some, self._within = {}, {}, {}
        slots = dict(update.slots) | ({} if self.accumulation is None else self.accumulation.slots)
        axes = {slot.node: _axis(slot.node, self._comm.size) for slot in slots.values()}
        self.parts = [
            Part(n, Shard(axis), self._comm) for n, axis in axes.items() if axis is not None
        ]
        return {part.whole: (part.placement, part.own) for part in self.parts}


def step_of(way: Any, *arguments: Any, device: str = "cpu", **named: Any) -> RanksStep:
    """The step of a rank: on GPUs one program, on the CPU one whose bits do not depend on ranks."""
    if device == "cpu":
        return ShardedStep(way, *arguments, device=device, **named)
    way.settle(device)
    return PartedStateStep(way, *arguments, device=device, **named)


def _axis(slot: Node, ranks: int) -> int | None:
    """The longest axis that ranks share evenly; None if there is none."""
    shape = bind_shape(slot.shape, {})
    even = [axis for axis, size in enumerate(shape) if size and size % ranks == 0]
    return max(even, key=lambda axis: shape[axis], default=None)
