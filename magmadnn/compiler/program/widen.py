"""widen: what is computed of half precision is computed in float32, and the result is rounded.

That is what the NumPy functions do, of products and of all that goes element by element. A kernel converts
while it reads, and as it stores; within a kernel each op rounds, and the bits stay in registers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.compiler.formulas import compilable, converts, converts_half, is_contraction
from magmadnn.compiler.kernels.formula import HALVES
from magmadnn.graph.node import Node, scoped, with_inputs
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.gradient import parts
from magmadnn.memory.dtypes import is_floating


def widen(program: Program) -> Program:
    """Put conversions around every product and pointwise op that has operands of half precision."""
    if not any(dtype.name in HALVES for dtype in {node.dtype for node in program.nodes()}):
        return program
    new: dict[Node, Node] = {}
    for node in program.nodes():
        inputs = tuple(new[i] for i in node.inputs)
        fresh = with_inputs(node, inputs)
        new[node] = _widened(fresh) if _is_half_product(fresh) else _pointwise(fresh)
    return program.with_roots([new[root] for root in program.roots])


def _is_half_product(node: Node) -> bool:
    halves = any(i.dtype.name in HALVES for i in node.inputs)
    return halves and is_contraction(node) and not node.attributes


def _widened(node: Node) -> Node:
    wide: np.dtype[Any] = np.result_type(np.float32, *_floats(node))
    with scoped(node.path):
        inputs = tuple(_cast(i, wide) for i in node.inputs)
        product = replace(node, inputs=inputs, spec=Spec(node.shape, wide))
        return _cast(product, node.dtype)


def _pointwise(node: Node) -> Node:
    """A pointwise node of halves in float32; any other, and what has no kernel then either, as it is."""
    op, halves = node.op, any(i.dtype.name in HALVES for i in node.inputs)
    if not isinstance(op, Op) or op.kind is not OpKind.POINTWISE or converts_half(node):
        return node
    if not halves:
        return node
    with scoped(node.path):
        wide: np.dtype[Any] = np.result_type(np.float32, *_reals(node, op))
        inputs = tuple(_cast(i, wide) if i.dtype.name in HALVES else i for i in node.inputs)
        if converts(node):  # to another half, an integer or truth, at once
            made = replace(node, inputs=inputs)
            return made if compilable(made) else node
        own = op.dtypes(op.words, [i.dtype for i in inputs], node.attributes)
        made = replace(node, inputs=inputs, spec=Spec(node.shape, own))
        return _cast(made, node.dtype) if compilable(made) else node


def _reals(node: Node, op: Op) -> list[np.dtype[Any]]:
    """The dtypes of operands that are real numbers and no halves; conditions have no say."""
    own = [i.dtype for k, i in enumerate(node.inputs) if op.words.operand(k) not in op.integers]
    return [d for d in own if is_floating(d) and d.name not in HALVES]


def _floats(node: Node) -> list[np.dtype[Any]]:
    return [i.dtype for i in node.inputs if i.dtype.name not in HALVES]


def _cast(node: Node, dtype: np.dtype[Any]) -> Node:
    return node if node.dtype == dtype else parts().cast(node, dtype=dtype.name)
