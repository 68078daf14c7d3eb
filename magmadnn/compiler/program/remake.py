"""remake: a matrix that lies in memory is made again by readers that have at hand what it was made of.

What follows a normalisation, such as ReLU, is kept for the layer behind it. On the way back the gradient is
cut by what was kept, and then summed beside its products with what was normalised. Kernels would read the
gradient, what was normalised and what was kept. The last is a few operations on the second and on rows, and a
third of what they read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from magmadnn.compiler.formulas import is_cheap, is_pointwise, widens
from magmadnn.graph.dim import product
from magmadnn.graph.node import Node, with_inputs
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

from .recompute import reduces_rows

_MOST_STEPS = 6  # conversions included


def remake(program: Program) -> Program:
    """Give such readers nodes of their own for what they do again; formulas, and so bits, stay."""
    nodes, readers = program.nodes(), program.readers
    reduced = {node.inputs[0] for node in nodes if reduces_rows(node)}
    again: dict[Node, tuple[Node, Sequence[Node]]] = {}  # what a reader reads, and the steps to it
    for kept in nodes:
        if not any(map(_is_call, readers[kept])):
            continue
        steps = _steps_to(kept, reduced)
        for read in (kept, *filter(widens, readers[kept])) if steps else ():
            found = [*steps, read] if read is not kept else steps
            (matrix,) = _full(found[0])
            again |= dict.fromkeys(_beside(matrix, readers[read], readers), (read, found))
    if not again:
        return program
    new: dict[Node, Node] = {}
    for node in nodes:
        own = dict(new)
        if node in again:
            read, steps = again[node]
            for step in steps:
                own[step] = replace(step, inputs=tuple(own[i] for i in step.inputs))
        new[node] = with_inputs(node, tuple(own[i] for i in node.inputs))
    return program.with_roots([new[root] for root in program.roots])


def _is_call(node: Node) -> bool:
    """Whether a node is a call of a library, whose operands lie in memory."""
    return isinstance(node.op, Op) and node.op.kind is OpKind.LIBRARY


def _steps_to(kept: Node, reduced: set[Node]) -> Sequence[Node]:
    """The steps from a matrix that is reduced to what is kept, in order; none if it is made otherwise."""
    steps, node = list[Node](), kept
    while len(steps) < _MOST_STEPS and node not in reduced:
        full = _full(node)
        rows = (i for i in node.inputs if i not in full)
        if not is_pointwise(node) or not is_cheap(node) or len(full) != 1:
            return ()
        if any(product(i.shape[:-1]) != 1 for i in rows):
            return ()
        steps.append(node)
        (node,) = full
    return steps[::-1] if node in reduced else ()


def _full(node: Node) -> set[Node]:
    """The operands of a node that are as large as it is."""
    return {i for i in node.inputs if i.shape == node.shape}


def _beside(matrix: Node, found: Iterable[Node], readers: dict[Node, list[Node]]) -> list[Node]:
    """Those nodes that are combined with what is made of a matrix, or are equal to one that is."""
    walked = [n for n in found if is_pointwise(n) and n.op is not matrix.op]
    alike = {
        (n.op, n.inputs)
        for n in walked
        for reader in readers[n]
        if any(i is not n and _is_of(i, matrix) for i in reader.inputs)
    }
    return [n for n in walked if (n.op, n.inputs) in alike]


def _is_of(node: Node, matrix: Node) -> bool:
    """Whether a value is one operation on a matrix."""
    return node is matrix or (is_pointwise(node) and matrix in node.inputs)
