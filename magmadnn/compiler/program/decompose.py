"""decompose: ops that are made of others become those, so that they can be fused.

A result without elements stays: its parts may have nothing to choose from (the largest of a softmax over no
elements), and which of them nobody reads is known to the op alone.
"""

from __future__ import annotations

from magmadnn.graph.node import Node, scoped, with_inputs
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program


def decompose(program: Program) -> Program:
    """Replace every node whose op says how by pointwise ops and reductions of equal value."""
    new: dict[Node, Node] = {}
    for node in program.nodes():
        _take_apart(node, new)
    return program.with_roots([new[root] for root in program.roots])


def _take_apart(node: Node, new: dict[Node, Node]) -> None:
    """Add to `new` what becomes of a node; what it is made of may be made of others in turn."""
    if node in new:
        return
    for i in node.inputs:
        _take_apart(i, new)
    inputs = tuple(new[i] for i in node.inputs)
    fresh = with_inputs(node, inputs)
    made: Node | None = None
    if isinstance(node.op, Op) and node.op.decompose is not None and 0 not in node.shape:
        with scoped(node.path):
            made = node.op.decompose(*inputs, **node.attributes)
    if made is None:
        new[node] = fresh
    else:
        parts = {i: i for i in inputs}
        _take_apart(made, parts)
        new[node] = parts[made]
