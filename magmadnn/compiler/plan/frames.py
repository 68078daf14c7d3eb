"""How the values of a plan lie in memory, without the memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array, Op

from .native_plan import NativePlan


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
        elif node in stored or not isinstance(node.op, Op):
            frames[node] = np.empty(bind_shape(node.shape, sizes), node.dtype)
    return frames
