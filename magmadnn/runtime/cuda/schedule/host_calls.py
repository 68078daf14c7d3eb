"""Steps that NumPy computes, on copies of values that lie on a device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from magmadnn.backends.cuda.engine import HostNode
from magmadnn.compiler.regions.draft import Work
from magmadnn.graph.dim import substitute
from magmadnn.graph.node import Node, naming_scope
from magmadnn.graph.op import Array, Op
from magmadnn.runtime.cuda.layout import Layout


def host_call(layout: Layout, work: Work) -> HostNode:
    """The ops' NumPy functions, on copies of their operands; graphs are cut there."""
    needed = set(work.needed)

    def call() -> None:
        known: dict[Node, Array] = {}
        for node in work.region.nodes:
            op = node.op
            assert isinstance(op, Op)
            operands = [_operand(layout, i, known) for i in node.inputs]
            attributes = {k: substitute(v, layout.sizes) for k, v in node.attributes.items()}
            with naming_scope(node):
                known[node] = np.asarray(op.forward(operands, attributes, node.dtype))
        for node in needed:
            layout.write(node, known[node])

    names = (node.op.name for node in work.region.nodes if isinstance(node.op, Op))
    return HostNode(f"by NumPy, on copies: {', '.join(dict.fromkeys(names))}", call)


def _operand(layout: Layout, node: Node, known: Mapping[Node, Array]) -> Array:
    """A value on the host: just computed, a view of such, or a copy from the device."""
    if node in known:
        return known[node]
    if layout.plan.layouts.bases[node] in known:
        return layout.viewed(node, _operand(layout, node.inputs[0], known))
    return layout.read(node)
