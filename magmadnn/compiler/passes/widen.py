"""widen: products of half precision become products of float32, whose result is rounded.

That is what their NumPy functions do. A kernel of the product converts while it reads, and as it stores.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.compiler.kernels.formula import HALVES
from magmadnn.graph.gradient import parts
from magmadnn.graph.node import Node, scoped
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.graph.spec import Spec


def widen(program: Program) -> Program:
    """Put conversions around every product that has operands of half precision."""
    new: dict[Node, Node] = {}
    for node in program.nodes():
        inputs = tuple(new[i] for i in node.inputs)
        fresh = node if inputs == node.inputs else replace(node, inputs=inputs)
        new[node] = _widened(fresh) if _is_half_product(fresh) else fresh
    return program.with_roots([new[root] for root in program.roots])


def _is_half_product(node: Node) -> bool:
    contracts = isinstance(node.op, Op) and node.op.kind is OpKind.CONTRACTION
    return contracts and not node.attributes and any(i.dtype.name in HALVES for i in node.inputs)


def _widened(node: Node) -> Node:
    wide: np.dtype[Any] = np.result_type(np.float32, *_floats(node))
    with scoped(node.path):
        inputs = tuple(_cast(i, wide) for i in node.inputs)
        product = replace(node, inputs=inputs, spec=Spec(node.shape, wide))
        return _cast(product, node.dtype)


def _floats(node: Node) -> list[np.dtype[Any]]:
    return [i.dtype for i in node.inputs if i.dtype.name not in HALVES]


def _cast(node: Node, dtype: np.dtype[Any]) -> Node:
    return node if node.dtype == dtype else parts().cast(node, dtype=dtype.name)
