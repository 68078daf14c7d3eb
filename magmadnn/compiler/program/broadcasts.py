"""spread: what is broadcast along an axis in the middle is copied to a shape that kernels can walk over.

A kernel reads an operand that is the same in every row, in every column, or in both. One that repeats itself
in another way, such as (a, 1, c) beside (a, b, c), is repeated in memory first: as far as the last axis where
that is broadcast too, so that a number for each matrix of a stack becomes one for each of its rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magmadnn.compiler.formulas import compilable
from magmadnn.graph.gradient import parts
from magmadnn.graph.node import Node, scoped
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

Shape = tuple[Any, ...]


def spread(program: Program) -> Program:
    """Repeat such operands of pointwise ops, each once for all that read it in one shape."""
    new: dict[Node, Node] = {}
    made: dict[tuple[Node, Shape], Node] = {}

    def repeated(operand: Node, reader: Node) -> Node:
        goal = walkable(operand.shape, reader.shape)
        if goal == operand.shape:
            return operand
        if (operand, goal) not in made:
            with scoped(reader.path):
                made[operand, goal] = parts().broadcast_to(operand, shape=goal)
        return made[operand, goal]

    for node in program.nodes():
        inputs = tuple(new[i] for i in node.inputs)
        if isinstance(node.op, Op) and node.op.kind is OpKind.POINTWISE and compilable(node):
            inputs = tuple(repeated(i, node) for i in inputs)
        new[node] = node if inputs == node.inputs else replace(node, inputs=inputs)
    return program.with_roots([new[root] for root in program.roots])


def walkable(shape: Shape, result: Shape) -> Shape:
    """The shape that an operand of `shape` must have for a kernel that makes `result` to read it."""
    padded = (1,) * (len(result) - len(shape)) + shape
    kept = [own != 1 for own, size in zip(padded, result, strict=True) if size != 1]
    leading = kept[:-1]
    if all(leading) or not any(leading):
        return shape
    if result[-1] != 1 and padded[-1] == 1:
        return (*result[:-1], 1)
    return result
