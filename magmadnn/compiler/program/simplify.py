"""Two passes that make nodes into others of the same value: simplify and decompose.

simplify: equal nodes become one, small constants are computed, and ops' own rewrites are applied. None of
it changes a bit of any result. Nodes that nothing needs disappear by themselves: a program is what its
roots reach.

decompose: ops that are made of others become those, so that they can be fused. A result without elements
stays: its parts may have nothing to choose from (the largest of a softmax over no elements), and which of
them nobody reads is known to the op alone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.errors import MagmaDNNError
from magmadnn.graph.body import nodes_inside
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


# --- ops that are made of others ------------------------------------------------------------------


def decompose(program: Program, libraries: Collection[str] = ()) -> Program:
    """Replace every node whose op says how by pointwise ops and reductions of equal value.

    Args:
        program: any.
        libraries: names of functions of whole arrays that the target's libraries have, and of algorithms that
            suit it: ops that offer them are computed so.
    """
    new: dict[Node, Node] = {}
    done = set[Node]()  # what they became
    for node in program.nodes():
        _take_apart(node, new, done, libraries)
    return program.with_roots([new[root] for root in program.roots])


def has_calls(program: Program) -> bool:
    """Whether a program, or a loop in it, has ops that a library's functions of whole arrays may compute."""
    return any(isinstance(node.op, Op) and node.op.by_library for node in nodes_inside(program))


def offers(program: Program, library: str) -> bool:
    """Whether an op of a program would be computed by what its record has under this name."""
    for node in program.nodes():
        make = node.op.by_library.get(library) if isinstance(node.op, Op) else None
        if make is not None and 0 not in node.shape:
            with scoped(node.path):
                if make(*node.inputs, **node.attributes) is not None:
                    return True
    return False


def _take_apart(
    node: Node, new: dict[Node, Node], done: set[Node], libraries: Collection[str]
) -> None:
    """Add to `new` what becomes of a node; what it is made of may be made of others in turn.

    What is made of a node may lie on values that were made before, not on its operands alone.
    """
    if node in new:
        return
    if node in done:
        new[node] = node
        return
    for i in node.inputs:
        if i not in new:
            _take_apart(i, new, done, libraries)
    inputs = tuple(new[i] for i in node.inputs)
    fresh = with_inputs(node, inputs)
    made: Node | None = None
    op = node.op
    has_parts = isinstance(op, Op) and (op.decompose is not None or op.by_library)
    if has_parts and 0 not in node.shape:
        assert isinstance(op, Op)
        with scoped(node.path):
            made = _made(op, inputs, node.attributes, libraries)
    if made is None:
        new[node] = fresh
    else:
        parts = {i: i for i in inputs}
        _take_apart(made, parts, done, libraries)
        new[node] = parts[made]
    done.add(new[node])


def _made(
    op: Op, inputs: Sequence[Node], attributes: Mapping[str, Any], libraries: Collection[str]
) -> Node | None:
    """What a node becomes: a library's call, or other ops; None where it stays."""
    made: Node | None = None
    for name, make in op.by_library.items():
        if name in libraries and made is None:
            made = make(*inputs, **attributes)
    if made is None and op.decompose is not None:
        made = op.decompose(*inputs, **attributes)
    return made
