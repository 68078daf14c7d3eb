"""recompute: what costs little and is made of values in memory is computed by each of its readers.

A reduction over rows needs all of its operand, so that lies in memory. What is made of the operand and of a
row (x - mean, in the forward and the backward pass of a normalisation) would be one more matrix there, to be
written once, and then read by others in place of the operand, which takes as long to read. Likewise what is
made of the results of a library's functions and then reduced, such as a gradient that is cut where ReLU cut:
it is computed again where that moves fewer bytes than to store it. And what an op's record says so of
(`LibraryCall.again`): gathered images in halves, which would lie in memory from a network's first layer to
the end of the backward pass. In float32 all other activations take twice as much, the time is twice as long,
and they are kept.
"""

from __future__ import annotations

from dataclasses import replace

from magmadnn.compiler.formulas import is_pointwise, operations, widens
from magmadnn.graph.dim import product
from magmadnn.graph.node import Node, with_inputs
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

_WIDE_BYTES = 4  # of an element, from which on memory has room for what a call would make again
_FEW = 2  # operations that each reader does again, for a reduction's operand


def recompute(program: Program) -> Program:
    """Give each reader of such a value a node of its own; formulas, and so bits, stay."""
    nodes, readers = program.nodes(), program.readers
    reduced = {node.inputs[0] for node in nodes if reduces_rows(node)}
    stored = {n for n in nodes if _is_stored(n, readers)}
    roots = set(program.roots)
    shared = {
        node
        for node in nodes
        if node not in roots
        and len(readers[node]) > 1
        and all(_walks(r, node) for r in readers[node])
    }
    of_stored = {node for node in shared if _moves_less(node, reduced, stored)}
    again = of_stored | {node for node in shared if _is_cheap(node, reduced)}
    again |= {node for node in nodes if is_called_again(node) and len(readers[node]) > 1}
    if not again:
        return program
    new: dict[Node, Node] = {}

    def own(node: Node) -> Node:
        """A node that one reader has for itself, and with it what is made of stored values for it."""
        inputs = zip(node.inputs, new[node].inputs, strict=True)
        return replace(new[node], inputs=tuple(own(i) if i in of_stored else j for i, j in inputs))

    for node in nodes:
        apart = {i: own(i) if i in again else new[i] for i in node.inputs}
        new[node] = with_inputs(node, tuple(apart[i] for i in node.inputs))
    return program.with_roots([new[root] for root in program.roots])


def is_called_again(node: Node) -> bool:
    """Whether each reader of a value calls the function that makes it for itself."""
    call = node.op.library if isinstance(node.op, Op) else None
    return call is not None and call.again and node.dtype.itemsize < _WIDE_BYTES


def reduces_rows(node: Node) -> bool:
    """Whether a node combines all rows of its operand."""
    kind = node.op.kind if isinstance(node.op, Op) else OpKind.OTHER
    if kind is not OpKind.REDUCTION or node.inputs[0].ndim < 2:
        return False
    return bool(node.attributes.get("axis") == tuple(range(node.inputs[0].ndim - 1)))


def _is_stored(node: Node, readers: dict[Node, list[Node]]) -> bool:
    """Whether a value lies in memory: a library's function gives or takes it, or it is a part of another."""
    takers = (node, *readers[node])
    return _is_part(node) or any(
        isinstance(n.op, Op) and n.op.kind is OpKind.LIBRARY for n in takers
    )


def _is_part(node: Node) -> bool:
    """Whether a node is some elements of its operand, which no kernel has at hand."""
    moves = isinstance(node.op, Op) and node.op.kind is OpKind.MOVEMENT and len(node.inputs) == 1
    return moves and product(node.shape) != product(node.inputs[0].shape)


def _is_cheap(node: Node, reduced: set[Node]) -> bool:
    """Whether it is one operation on a matrix that is reduced too, and on what is the same in every row."""
    if not is_pointwise(node) or operations(node) != 1:
        return False
    full = [i for i in node.inputs if i.shape == node.shape]
    rows = (i for i in node.inputs if i.shape != node.shape)
    return len(full) == 1 and full[0] in reduced and all(product(i.shape[:-1]) == 1 for i in rows)


def _moves_less(node: Node, reduced: set[Node], stored: set[Node]) -> bool:
    """Whether a few operations on stored values, for a reduction, are cheaper than their result in memory.

    Two kernels read it: the one that reduces, and one that computes element by element.
    """
    if node not in reduced or not is_pointwise(node) or not 1 <= operations(node) <= _FEW:
        return False
    if any(i.shape != node.shape for i in node.inputs):
        return False
    sources = {i.inputs[0] if widens(i) else i for i in node.inputs}
    if not sources <= stored:
        return False
    again, once = sum(i.dtype.itemsize for i in sources), node.dtype.itemsize
    return 2 * again < again + once + 2 * once


def _walks(reader: Node, node: Node) -> bool:
    """Whether a reader computes element by element, or reduces rows."""
    return reduces_rows(reader) or (is_pointwise(reader) and reader.shape == node.shape)
