"""Views that get memory of their own, because a kernel that reads them could not walk over them.

A transposed operand of a sum, say, or the rows of a table that were reversed: they are copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from magmadnn.compiler.kernels.operands import FULL
from magmadnn.compiler.layout import Layouts
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

from .joined_axes import joinable
from .loads import illegal_loads, possible_loads
from .region import matrix_of

# ops that take operands only that are packed
_PACKED = (
    OpKind.GATHER,
    OpKind.SCATTER,
    OpKind.KERNEL,
    OpKind.LIBRARY,
    OpKind.LOOP,
)


def layouts_of(
    program: Program, compilable: Callable[[Node], bool], *, rounding: bool = True
) -> Layouts:
    """How the values of a program lie in memory, with copies where kernels need them.

    Args:
        program: what is compiled.
        compilable: whether compiled code can do a node.
        rounding: whether kernels round float32 to half precision as they read it; they all widen
            halves. Those that round, on the CPU, also read matrices of joined axes.
    """
    nodes, loads = program.nodes(), possible_loads(program, compilable, rounding)
    joined = joinable(program, compilable) if rounding else {}
    while True:
        layouts = Layouts(nodes, (), loads, joined)
        copied = {i for node in nodes for i in _unreadable(node, layouts, compilable)}
        illegal = illegal_loads(program, layouts, copied, compilable, rounding)
        illegal |= copied & loads  # what is wanted as a copy is converted first
        if not illegal:
            return Layouts(nodes, copied, loads, joined) if copied else layouts
        loads -= illegal


def _unreadable(node: Node, layouts: Layouts, compilable: Callable[[Node], bool]) -> Iterable[Node]:
    """The operands of a node that are views which its kernel cannot read."""
    op = node.op
    if not isinstance(op, Op) or layouts.is_view(node):
        return
    if op.kind is not OpKind.LOOP and not compilable(node):
        return
    for operand in node.inputs:
        if layouts.is_view(operand) and not _reads(node, op, operand, layouts):
            yield operand


def _reads(node: Node, op: Op, operand: Node, layouts: Layouts) -> bool:
    if op.kind in _PACKED:
        return bool(layouts.arrays[operand].flags.c_contiguous)
    if op.kind is OpKind.POINTWISE:
        return layouts.spread(operand, *matrix_of(node.shape)) is not None
    if op.kind is OpKind.REDUCTION:
        return _is_walked(node.attributes.get("axis"), operand, layouts)
    if op.kind is OpKind.CONTRACTION and operand.ndim > 1:
        return layouts.is_factor(operand)
    return True


def _is_walked(axes: object, operand: Node, layouts: Layouts) -> bool:
    """Whether a reduction can walk over the operand of this layout: over its rows, or down its columns."""
    spread = layouts.spread(operand, *matrix_of(operand.shape))
    return spread == FULL or (axes == (operand.ndim - 1,) and spread is not None)
