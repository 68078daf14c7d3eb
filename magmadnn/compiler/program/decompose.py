"""decompose: ops that are made of others become those, so that they can be fused.

A result without elements stays: its parts may have nothing to choose from (the largest of a softmax over no
elements), and which of them nobody reads is known to the op alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from magmadnn.graph.body import nodes_inside
from magmadnn.graph.node import Node, scoped, with_inputs
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program


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
