"""decompose: ops that are made of others become those, so that they can be fused."""

from __future__ import annotations

from dataclasses import replace

from magmadnn.graph.node import Node, scoped
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program


def decompose(program: Program) -> Program:
    """Replace every node whose op says how by pointwise ops and reductions of equal value."""
    new: dict[Node, Node] = {}
    for node in program.nodes():
        inputs = tuple(new[i] for i in node.inputs)
        fresh = node if inputs == node.inputs else replace(node, inputs=inputs)
        if isinstance(node.op, Op) and node.op.decompose is not None:
            with scoped(node.path):
                made: Node | None = node.op.decompose(*fresh.inputs, **fresh.attributes)
            fresh = made or fresh
        new[node] = fresh
    return program.with_roots([new[root] for root in program.roots])
