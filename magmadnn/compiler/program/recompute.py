"""recompute: what costs one operation and is made of a value in memory is computed by each of its readers.

A reduction over rows needs all of its operand, so that lies in memory. What is made of the operand and of a
row (x - mean, in the forward and the backward pass of a normalisation) would be one more matrix there, to be
written once, and then read by others in place of the operand, which takes as long to read.
"""

from __future__ import annotations

from dataclasses import replace

from magmadnn.compiler.formulas import is_pointwise, operations
from magmadnn.graph.dim import product
from magmadnn.graph.node import Node, with_inputs
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program


def recompute(program: Program) -> Program:
    """Give each reader of such a value a node of its own; formulas, and so bits, stay."""
    nodes = program.nodes()
    readers: dict[Node, list[Node]] = {node: [] for node in nodes}
    for node in nodes:
        for i in dict.fromkeys(node.inputs):
            readers[i].append(node)
    reduced = {node.inputs[0] for node in nodes if _reduces_rows(node)}
    roots = set(program.roots)
    again = {
        node
        for node in nodes
        if node not in roots
        and len(readers[node]) > 1
        and _is_cheap(node, reduced)
        and all(_walks(reader, node) for reader in readers[node])
    }
    if not again:
        return program
    new: dict[Node, Node] = {}
    for node in nodes:
        own = {i: replace(new[i]) if i in again else new[i] for i in node.inputs}
        inputs = tuple(own[i] for i in node.inputs)
        new[node] = with_inputs(node, inputs)
    return program.with_roots([new[root] for root in program.roots])


def _reduces_rows(node: Node) -> bool:
    """Whether a node combines all rows of its operand."""
    kind = node.op.kind if isinstance(node.op, Op) else OpKind.OTHER
    if kind is not OpKind.REDUCTION or node.inputs[0].ndim < 2:
        return False
    return bool(node.attributes.get("axis") == tuple(range(node.inputs[0].ndim - 1)))


def _is_cheap(node: Node, reduced: set[Node]) -> bool:
    """Whether it is one operation on a matrix that is reduced too, and on what is the same in every row."""
    if not is_pointwise(node) or operations(node) != 1:
        return False
    full = [i for i in node.inputs if i.shape == node.shape]
    rows = (i for i in node.inputs if i.shape != node.shape)
    return len(full) == 1 and full[0] in reduced and all(product(i.shape[:-1]) == 1 for i in rows)


def _walks(reader: Node, node: Node) -> bool:
    """Whether a reader computes element by element, or reduces rows."""
    return _reduces_rows(reader) or (is_pointwise(reader) and reader.shape == node.shape)
