"""How the values of a plan lie in memory, without the memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array, Op

from .native_plan import NativePlan
from .parts_in_place import places_of, stack_within


def frames_of(plan: NativePlan, sizes: Mapping[str, int]) -> dict[Node, Array]:
    """An array for each value that has memory or is a view of it, laid out as it will be for these sizes.

    Nobody touches their elements, so that the system gives no memory for them.
    """
    stored = {node for work in plan.work for node in work.placed}
    frames: dict[Node, Array] = {}
    for node in plan.program.nodes():
        if plan.layouts.is_view(node):
            if node.inputs[0] in frames:  # else it is a view of a value that is not stored
                frames[node] = plan.layouts.seen(node, frames[node.inputs[0]], sizes)
        elif node not in frames and (node in stored or not isinstance(node.op, Op)):
            _place(plan, node, sizes, frames)
    return frames


def _place(
    plan: NativePlan, node: Node, sizes: Mapping[str, int], frames: dict[Node, Array]
) -> None:
    """Memory of its own, or a part of a movement's result; the movement comes later."""
    whole = plan.inside.get(node)
    if whole is None:
        frames[node] = np.empty(bind_shape(node.shape, sizes), node.dtype)
        return
    if whole not in frames:
        _place(plan, whole, sizes, frames)
    frames[node] = part_of(plan, node, frames[whole], sizes)


def part_of(plan: NativePlan, node: Node, whole: Array, sizes: Mapping[str, int]) -> Array:
    """The part of a movement's result that a value is.

    Args:
        plan: what is run.
        node: one of `plan.inside`.
        whole: memory of the movement's result.
        sizes: of symbolic dimensions.
    """
    movement = plan.inside[node]
    if len(movement.inputs) == 1:
        found = stack_within(plan.layouts, node, movement, whole, sizes)
        assert found is not None
        return found
    shapes = [bind_shape(i.shape, sizes) for i in movement.inputs]
    parts = places_of(movement, whole, shapes, sizes)
    number = [plan.layouts.bases[i] for i in movement.inputs].index(node)
    return parts[number].reshape(bind_shape(node.shape, sizes))
