"""Views that get memory of their own, because a kernel that reads them could not walk over them.

A transposed operand of a sum, say, or the rows of a table that were reversed: they are copied first. Halves
that are not widened where they are read get memory for their float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

from .layout import FULL, Layouts, is_gemm_operand
from .regions import matrix_of


def layouts_of(
    program: Program, compilable: Callable[[Node], bool], *, widening: bool = False
) -> Layouts:
    """How the values of a program lie in memory, with copies where kernels need them.

    Args:
        program: what is compiled.
        compilable: whether compiled code can do a node.
        widening: whether kernels widen halves as they read them.
    """
    nodes = program.nodes()
    layouts = Layouts(nodes, widening=widening)
    copied = {i for node in nodes for i in _unreadable(node, layouts, compilable)}
    if widening:
        read = [i for node in nodes if not layouts.is_view(node) for i in _as_is(node, layouts)]
        copied.update(
            _widening_of(i, layouts) for i in (*read, *program.roots) if layouts.is_widened(i)
        )
    return Layouts(nodes, copied, widening=widening) if copied else layouts


def _as_is(node: Node, layouts: Layouts) -> Iterable[Node]:
    """The operands of a node whose elements its kernel takes as they lie in memory."""
    kind = node.op.kind if isinstance(node.op, Op) else None
    if kind in (OpKind.GATHER, OpKind.SCATTER, OpKind.MOVEMENT):
        return node.inputs
    if kind is OpKind.CONTRACTION and len({layouts.arrays[i].dtype for i in node.inputs}) > 1:
        return node.inputs
    return ()


def _widening_of(node: Node, layouts: Layouts) -> Node:
    """The cast that a view of widened halves is a view of."""
    while not layouts.is_widening(node):
        node = node.inputs[0]
    return node


def _unreadable(node: Node, layouts: Layouts, compilable: Callable[[Node], bool]) -> Iterable[Node]:
    """The operands of a node that are views which its kernel cannot read."""
    op = node.op
    if not isinstance(op, Op) or not compilable(node):
        return
    for operand in node.inputs:
        if layouts.is_view(operand) and not _reads(node, op, operand, layouts):
            yield operand


def _reads(node: Node, op: Op, operand: Node, layouts: Layouts) -> bool:
    if op.kind in (OpKind.GATHER, OpKind.SCATTER):
        return bool(layouts.arrays[operand].flags.c_contiguous)
    if op.kind is OpKind.POINTWISE:
        return layouts.spread(operand, *matrix_of(node.shape)) is not None
    if op.kind is OpKind.REDUCTION:
        return _is_walked(node.attributes.get("axis"), operand, layouts)
    if op.kind is OpKind.CONTRACTION and operand.ndim > 1:
        return is_gemm_operand(layouts.arrays[operand])
    return True


def _is_walked(axes: object, operand: Node, layouts: Layouts) -> bool:
    """Whether a reduction can walk over the operand of this layout: over its rows, or down its columns."""
    spread = layouts.spread(operand, *matrix_of(operand.shape))
    return spread == FULL or (axes == (operand.ndim - 1,) and spread is not None)
