"""precision: contractions get operands of half precision; sums and everything else stay as they are.

Unlike all other passes it changes values, on purpose. So it runs first, and for every executor: the
reference computes the same rounded products. A rounded operand is a cast there and back; compiled
code rounds it where it is computed, and stores the float32 that the product reads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.errors import UnknownNameError
from magmadnn.graph.gradient import parts
from magmadnn.graph.node import CONSTANT, Node, scoped
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.graph.spec import BFLOAT16

PRECISIONS = ("float32", "tf32", "mixed_bf16", "mixed_fp16", "float64")

_HALVES: dict[str, np.dtype[Any]] = {
    "mixed_bf16": BFLOAT16,
    "mixed_fp16": np.dtype(np.float16),
}


def precision(program: Program, mode: str) -> Program:
    """Round the float32 operands of all contractions as `mode` says.

    Args:
        program: any; values of other dtypes than float32 are left alone.
        mode: one of `PRECISIONS`. Only the mixed ones change the program: "float64" says how a model is
            built, and "tf32" allows devices that have it to round within a product.

    Raises:
        UnknownNameError: if there is no such precision.
    """
    if mode not in PRECISIONS:
        raise UnknownNameError.of("precision", mode, PRECISIONS)
    return program if mode not in _HALVES else _rounded_products(program, _HALVES[mode])


def _rounded_products(program: Program, half: np.dtype[Any]) -> Program:
    new: dict[Node, Node] = {}
    rounded: dict[Node, Node] = {}
    for node in program.nodes():
        inputs = tuple(new[i] for i in node.inputs)
        if isinstance(node.op, Op) and node.op.kind is OpKind.CONTRACTION:
            for operand in inputs:
                if operand not in rounded:
                    rounded[operand] = _rounded(operand, half)
            inputs = tuple(rounded[i] for i in inputs)
        new[node] = node if inputs == node.inputs else replace(node, inputs=inputs)
    return program.with_roots([new[root] for root in program.roots])


def _rounded(operand: Node, half: np.dtype[Any]) -> Node:
    """The operand with the digits that `half` has, in float32."""
    if operand.dtype != np.float32 or operand.op is CONSTANT:
        return operand
    cast = parts().cast
    with scoped(operand.path):
        return cast(cast(operand, dtype=half.name), dtype="float32")
