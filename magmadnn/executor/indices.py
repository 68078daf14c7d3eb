"""Indices that a run is given, looked at before it: kernels give NaN for one that is out of range.

NumPy raises there. A run without a guard would have to keep the old values of all variables, in case its
kernels meet such an index; where indices are fed, or are views of what is fed, a look at them costs
microseconds instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from magmadnn.graph.dim import Dim, substitute
from magmadnn.graph.node import CONSTANT, PLACEHOLDER, Node
from magmadnn.graph.op import Array, Op, OpKind
from magmadnn.graph.program import Program


class Indices:
    """The operands of a program that number places, and how many places each may number."""

    def __init__(self, program: Program) -> None:
        self._limits = sorted(
            {pair for node in program.nodes() for pair in _limits_of(node)},
            key=lambda pair: (pair[0].name or "", pair[1]),
        )

    def may_be_wrong(self, fed: Mapping[Node, Any], sizes: Mapping[str, int]) -> bool:
        """Whether one may be out of range: it is, or its values are known to kernels only."""
        return any(not _all_below(_known(i, fed, sizes), limit) for i, limit in self._limits)


def _limits_of(node: Node) -> list[tuple[Node, int]]:
    """The index operands of a node whose kernel would not raise, and the number of places."""
    op = node.op
    if not isinstance(op, Op) or op.decompose is None or not op.integers:
        return []
    places = op.places(*node.inputs, **node.attributes) if op.places else 0  # 0: nobody knows
    if isinstance(places, Dim):
        return []  # such an op is a call of NumPy
    pairs = zip(op.args, node.inputs, strict=True)
    return [(operand, places) for name, operand in pairs if name in op.integers]


def _all_below(values: Array | None, limit: int) -> bool:
    if values is None:
        return False
    return not values.size or bool(values.min() >= 0 and values.max() < limit)


def _known(node: Node, fed: Mapping[Node, Any], sizes: Mapping[str, int]) -> Array | None:
    """The value of what is fed or constant, or moved from there; None for all else."""
    if node.op is PLACEHOLDER:
        value = fed.get(node)
        return value if isinstance(value, np.ndarray) else None  # or it lies on a GPU
    if node.op is CONSTANT:
        return np.asarray(node.value)
    if not isinstance(node.op, Op) or node.op.kind is not OpKind.MOVEMENT:
        return None
    operands = [_known(i, fed, sizes) for i in node.inputs]
    if any(operand is None for operand in operands):
        return None
    attributes = {k: substitute(v, sizes) for k, v in node.attributes.items()}
    return np.asarray(node.op.numpy(*operands, **attributes))
