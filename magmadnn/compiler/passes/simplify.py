"""simplify: equal nodes become one, and ops' own rewrites are applied.

Nodes that nothing needs disappear by themselves: a program is what its roots reach.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from magmadnn.graph.node import CONSTANT, Node
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program


def simplify(program: Program) -> Program:
    """Share common sub-expressions and apply `Op.rewrites`."""
    new: dict[Node, Node] = {}
    known: dict[Hashable, Node] = {}
    for node in program.nodes():
        inputs = tuple(new[i] for i in node.inputs)
        fresh = node if inputs == node.inputs else replace(node, inputs=inputs)
        fresh = _rewritten(fresh)
        new[node] = known.setdefault(_key(fresh), fresh)
    return program.with_roots([new[root] for root in program.roots])


def _rewritten(node: Node) -> Node:
    """The first rewrite of the node's op that applies; it must keep shape and dtype."""
    if isinstance(node.op, Op):
        for rewrite in node.op.rewrites:
            result: Node | None = rewrite(node)
            if result is not None and result.spec == node.spec:
                return result
    return node


def _key(node: Node) -> Hashable:
    """Equal for nodes that compute the same value."""
    if node.op is CONSTANT and node.value.size == 1:
        return ("constant", node.spec, node.value.tobytes())
    if not node.inputs and not node.attributes:
        return node
    return (node.op.name, node.inputs, tuple(node.attributes.items()), node.spec)
