"""simplify: equal nodes become one, small constants are computed, and ops' own rewrites are applied.

None of it changes a bit of any result. Nodes that nothing needs disappear by themselves: a program is
what its roots reach.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from magmadnn.errors import MagmaDNNError
from magmadnn.graph.dim import dims_of
from magmadnn.graph.node import CONSTANT, Node, constant, scoped, with_inputs
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

LARGEST_CONSTANT = 1024  # elements; a larger one is not worth its memory in the plan
_NOT_FOLDED = (OpKind.RANDOM, OpKind.LOOP, OpKind.RESULT, OpKind.COLLECTIVE)


def simplify(program: Program) -> Program:
    """Share common sub-expressions, compute small constants, apply `Op.rewrites`."""
    new: dict[Node, Node] = {}
    known: dict[Hashable, Node] = {}
    for node in program.nodes():
        inputs = tuple(new[i] for i in node.inputs)
        fresh = with_inputs(node, inputs)
        if isinstance(node.op, Op):
            if node.op.rewrites:
                with scoped(node.path):
                    fresh = _rewritten(fresh)
            if all(i.op is CONSTANT for i in fresh.inputs):
                with scoped(node.path):
                    fresh = _folded(fresh)
        new[node] = known.setdefault(_key(fresh), fresh)
    return program.with_roots([new[root] for root in program.roots])


def _rewritten(node: Node) -> Node:
    """The node after the rewrites of its op, and of what it became; each keeps shape and dtype."""
    while isinstance(node.op, Op):
        for rewrite in node.op.rewrites:
            result: Node | None = rewrite(node)
            if result is not None and result.spec == node.spec:
                node = result
                break
        else:
            break
    return node


def _folded(node: Node) -> Node:
    """A constant, where the node is small and computed from small constants."""
    op, inputs = node.op, node.inputs
    if any(i.op is not CONSTANT or i.value.size > LARGEST_CONSTANT for i in inputs):
        return node
    if not isinstance(op, Op) or op.kind in _NOT_FOLDED or next(_dims(node), None) is not None:
        return node
    if _size(node) > LARGEST_CONSTANT:
        return node
    try:
        return constant(op.forward([i.value for i in inputs], node.attributes, node.dtype))
    except MagmaDNNError:
        return node  # a run raises it, with the place where it belongs


def _dims(node: Node) -> Any:
    return dims_of((node.shape, *node.attributes.values()))


def _size(node: Node) -> int:
    count = 1
    for size in node.shape:
        count *= size
    return count


def _key(node: Node) -> Hashable:
    """Equal for nodes that compute the same value."""
    if node.op is CONSTANT and node.value.size <= LARGEST_CONSTANT:
        return (CONSTANT, node.spec, node.value.tobytes())
    if not node.inputs and not node.attributes:
        return node
    return (node.op, node.inputs, _exact(node.attributes), node.spec)


def _exact(attributes: Mapping[str, Any]) -> Hashable:
    """Attributes with the types of their values: 0.0, -0.0, 0 and False are equal, but not the same."""
    if not attributes:
        return ()
    return tuple([(key, _typed(value), value) for key, value in attributes.items()])


def _typed(value: Any) -> Hashable:
    """What tells a value from one of another type that is equal; NumPy takes long to name its dtypes."""
    return np.dtype if isinstance(value, np.dtype) else repr(value)
