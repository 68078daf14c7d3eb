"""moved_halves: what is moved into another order is moved as halves, where halves are wanted behind it.

A conversion to half precision goes before a movement, if nothing else reads that; one that widens halves goes
behind a movement that copies. So a copy has half the bytes, kernels convert as they store and as they read,
and the products behind it are those of halves. Elements stay what they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from magmadnn.compiler.formulas import converts_half, widens
from magmadnn.compiler.kernels.formula import HALVES
from magmadnn.compiler.layout import Layouts
from magmadnn.graph.dim import product
from magmadnn.graph.node import Node, scoped, with_inputs
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.gradient import parts

_COMPUTED = (OpKind.POINTWISE, OpKind.REDUCTION, OpKind.CONTRACTION)


def move_halves(program: Program) -> Program:
    """Exchange conversions of half precision and movements of all elements of one operand."""
    if not any(map(converts_half, program.nodes())):
        return program
    return _widened_later(_rounded_earlier(program))


def _rounded_earlier(program: Program) -> Program:
    """What is rounded behind movements, and read nowhere else, is rounded before them."""
    new: dict[Node, Node] = {}
    rounded: dict[Node, Node] = {}  # what is moved as halves, by the movement
    for node in program.nodes():
        new[node] = with_inputs(node, tuple(new[i] for i in node.inputs))
        if _moves(node):
            source, steps = _steps_to(node)
            half = _wanted_half(program, source, steps)
            if half:
                with scoped(node.path):
                    rounded[node] = _again(steps, _rounded(new[source], half))
        elif _narrows(node) and node.inputs[0] in rounded:
            new[node] = rounded[node.inputs[0]]
    return program.with_roots([new[root] for root in program.roots])


def _widened_later(program: Program) -> Program:
    """Halves that are widened before movements which copy them are widened behind these."""
    loads = set(filter(widens, program.nodes()))
    layouts, new = Layouts(program.nodes(), loads=loads), dict[Node, Node]()
    for node in program.nodes():
        new[node] = with_inputs(node, tuple(new[i] for i in node.inputs))
        if _moves(node) and not layouts.is_view(node):
            source, steps = _steps_to(node)
            if widens(source):
                with scoped(node.path):
                    made = _again(steps, new[source.inputs[0]])
                    new[node] = parts().cast(made, dtype=source.dtype.name)
    return program.with_roots([new[root] for root in program.roots])


def _moves(node: Node) -> bool:
    """Whether it moves all elements of one operand and nothing else."""
    if not isinstance(node.op, Op) or node.op.kind is not OpKind.MOVEMENT or len(node.inputs) != 1:
        return False
    return node.dtype == np.float32 and product(node.shape) == product(node.inputs[0].shape)


def _narrows(node: Node) -> bool:
    return converts_half(node) and node.dtype.name in HALVES


def _steps_to(node: Node) -> tuple[Node, list[Node]]:
    """What a movement moves in the end, and the movements from it on, in order."""
    steps, source = [node], node.inputs[0]
    while _moves(source):
        steps.insert(0, source)
        source = source.inputs[0]
    return source, steps


def _wanted_half(program: Program, source: Node, steps: list[Node]) -> str:
    """The half precision that is wanted of what a kernel computes, and nothing else; empty for none."""
    readers, roots = program.readers, set(program.roots)
    kind = source.op.kind if isinstance(source.op, Op) else None
    if kind not in _COMPUTED or not roots.isdisjoint((source, *steps)):
        return ""
    if any(readers[one] != [then] for one, then in zip((source, *steps), steps, strict=False)):
        return ""
    wanted = {reader.dtype.name if _narrows(reader) else "" for reader in readers[steps[-1]]}
    return wanted.pop() if len(wanted) == 1 else ""


def _rounded(node: Node, half: str) -> Node:
    """A value in half precision, of which it may have been widened."""
    if widens(node) and node.inputs[0].dtype.name == half:
        return node.inputs[0]
    made: Node = parts().cast(node, dtype=half)
    return made


def _again(steps: list[Node], source: Node) -> Node:
    """The same movements of another value."""
    for step in steps:
        source = replace(step, inputs=(source,), spec=Spec(step.shape, source.dtype))
    return source
