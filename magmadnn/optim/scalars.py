"""Scalars of the update: settings and the step count, kept at full precision.

A `Scalar` is a float64 node without axes. Among themselves scalars stay in float64, so `1 - beta2**t`
keeps its digits; beside an array they take the array's dtype, as Python's numbers do, so a formula with
float32 gradients stays in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from magmadnn import ops
from magmadnn.graph.node import Node, as_nodes, node_of, record
from magmadnn.graph.op import Op
from magmadnn.graph.operators import Operators
from magmadnn.graph.spec import is_floating


class Scalar(Operators):
    """A float64 scalar that takes the dtype of the arrays it meets."""

    __slots__ = ("node",)
    __magmadnn_priority__: ClassVar[int] = 30  # above Operation: it decides the dtype

    def __init__(self, node: Node) -> None:
        self.node = node

    @classmethod
    def __magmadnn_apply__(cls, op: Op, operands: Sequence[Any], attributes: Any) -> Any:
        arrays = [node_of(x) for x in operands if not isinstance(x, Scalar)]
        dtypes = [n.dtype for n in arrays if n is not None and is_floating(n.dtype)]
        if all(n is None for n in arrays):
            return Scalar(record(op, as_nodes(op.words, operands), attributes))
        dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.float64)
        settled = [x._as(dtype) if isinstance(x, Scalar) else x for x in operands]
        return op(*settled, **attributes)

    def _as(self, dtype: np.dtype[Any]) -> Node:
        node: Node = self.node if dtype == self.node.dtype else ops.cast(self.node, dtype)
        return node

    def __repr__(self) -> str:
        return f"<Scalar {self.node.label}>"
