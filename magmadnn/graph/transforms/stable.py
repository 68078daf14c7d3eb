"""Formulas in forms that keep their digits: the ops' rules `Op.stable`, applied to a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from magmadnn.graph.node import Node, scoped, topological, with_inputs
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program


def stabilise(program: Program) -> Program:
    """Apply the ops' rules `Op.stable`: log(softmax(x)) becomes log_softmax(x), and the like."""
    new = stabilised(program.roots)
    return program.with_roots([new[root] for root in program.roots])


def stabilised(roots: Sequence[Node], kept: Iterable[Node] = ()) -> dict[Node, Node]:
    """What each node that `roots` need becomes; most stay what they are.

    Args:
        roots: what is computed.
        kept: nodes that must stay part of what depends on them, since a gradient with respect to them is
            wanted.
    """
    inner = {node for node in kept if node.inputs}
    new: dict[Node, Node] = {}
    for node in topological(roots):
        inputs = tuple(new[i] for i in node.inputs)
        new[node] = _stable(with_inputs(node, inputs), {new[k] for k in inner if k in new})
    return new


def _stable(node: Node, kept: Collection[Node]) -> Node:
    """The node after the rules of its op, and of what it became; each keeps shape and dtype."""
    while isinstance(node.op, Op):
        for rule in node.op.stable:
            with scoped(node.path):
                result: Node | None = rule(node)
            if result is not None and result.spec == node.spec and _depends(result, node, kept):
                node = result
                break
        else:
            break
    return node


def _depends(result: Node, node: Node, kept: Collection[Node]) -> bool:
    """Whether `result` needs all of `kept` that `node` needs."""
    if not kept:
        return True
    return not (set(topological([node])) & set(kept)) - set(topological([result]))
