"""Conversions of half precision that kernels do as they read, so that nobody makes a pass for them.

Halves in memory are widened by every kernel that reads them. A parameter, and what is fed, lies in memory as
float32: where it is wanted with the digits of halves, each kernel that reads it rounds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from magmadnn.compiler.formulas import converts_half, widens
from magmadnn.compiler.kernels.formula import HALVES
from magmadnn.compiler.layout import Layouts
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

Compilable = Callable[[Node], bool]


def possible_loads(program: Program, compilable: Compilable, rounding: bool) -> set[Node]:
    """Conversions that readers might do, before anything is known of layouts.

    Args:
        program: what is compiled.
        compilable: whether compiled code can do a node.
        rounding: whether kernels round as they read.
    """
    nodes = program.nodes()
    found = {n for n in nodes if widens(n) and compilable(n)}
    if not rounding:
        return found
    halves = (n for n in nodes if n.dtype.name in HALVES and converts_half(n))
    return found | {n for n in halves if _is_made_on_reading(n, program.readers, found)}


def _is_made_on_reading(node: Node, readers: dict[Node, list[Node]], widened: set[Node]) -> bool:
    """Whether a rounded value is best rounded again by each reader, and not stored.

    It is where float32 lies in memory anyway: a leaf, or what others read as well.
    """
    if not set(readers[node]) <= widened:
        return False
    source = node.inputs[0]
    computed = isinstance(source.op, Op) and source.op.kind is not OpKind.MOVEMENT
    return not computed or readers[source] != [node]


def illegal_loads(
    program: Program, layouts: Layouts, copied: set[Node], compilable: Compilable, rounding: bool
) -> set[Node]:
    """Conversions that some reader cannot do.

    Args:
        program: what is compiled.
        layouts: with conversions that have no memory.
        copied: views that get memory of their own.
        compilable: whether compiled code can do a node; NumPy reads what lies in memory.
        rounding: whether kernels round as they read; otherwise both factors of a product are alike.
    """
    found: set[Node] = set()
    for node in program.nodes():
        if layouts.is_view(node) and node not in copied:
            continue
        if not compilable(node) or not _converts(node, layouts, copied, rounding):
            for operand in node.inputs:
                found |= set(_on_the_way(operand, layouts))
    for root in program.roots:
        found |= set(_on_the_way(root, layouts))
    return found


def _on_the_way(node: Node, layouts: Layouts) -> Iterator[Node]:
    """The conversions between a value and its memory."""
    at = layouts.loaded(node)
    while at is not None:
        yield at
        at = layouts.loaded(at.inputs[0])


def _converts(node: Node, layouts: Layouts, copied: set[Node], rounding: bool) -> bool:
    """Whether the kernel of a node converts what it reads."""
    if not isinstance(node.op, Op):
        return True
    if node.op.kind is OpKind.CONTRACTION:
        arrays = [layouts.arrays[i] for i in node.inputs]
        alike = rounding or len({a.dtype for a in arrays}) == 1
        readable = (i in copied or layouts.is_factor(i) for i in node.inputs)
        return is_product(node) and node.dtype == np.float32 and alike and all(readable)
    return node.op.kind in (OpKind.POINTWISE, OpKind.REDUCTION)


def is_product(node: Node) -> bool:
    """Whether it is a product of two matrices, or of stacks of them, of one dtype."""
    if not isinstance(node.op, Op) or node.op.kind is not OpKind.CONTRACTION:
        return False
    if node.attributes or len(node.inputs) != 2 or node.ndim < 2:
        return False
    return all(i.ndim >= 2 and i.dtype == node.dtype for i in node.inputs)
