"""join: ops that a library's function computes together with what they are made of (`Op.joins`).

Max pooling becomes a part of a convolution of few channels, so that the result of the convolution and its
gradient need not lie in memory.
"""

from __future__ import annotations

from collections.abc import Collection

from magmadnn.graph.node import Node, with_inputs
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program

from .simplify import simplify


def join(program: Program, libraries: Collection[str] = ()) -> Program:
    """Make calls of such functions.

    Args:
        program: whose ops are those of the target already.
        libraries: names of functions of whole arrays that the target's libraries have.
    """
    instead: dict[Node, Node] = {}
    for node in program.nodes():
        for name, make in node.op.joins.items() if isinstance(node.op, Op) else ():
            if name in libraries and node not in instead:
                made = make(node, program)
                if instead.keys().isdisjoint(made):
                    instead.update(made)
    if not instead:
        return program
    new: dict[Node, Node] = {}
    for node in program.nodes():
        _place(node, instead, new)
    return simplify(program.with_roots([new[root] for root in program.roots]))


def _place(node: Node, instead: dict[Node, Node], new: dict[Node, Node]) -> Node:
    """What stands for a node, of what stands for its operands; these come before it."""
    if node not in new:
        made = instead.get(node, node)
        new[node] = with_inputs(made, tuple(_place(i, instead, new) for i in made.inputs))
    return new[node]
