"""Scalars of the update: settings and the step count, kept at full precision.

A `Scalar` is a float64 node without axes. Among themselves scalars stay in float64, so `1 - beta2**t`
keeps its digits; beside an array they take the array's dtype, as Python's numbers do, so a formula with
float32 gradients stays in float32.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import numpy as np

from magmadnn import ops
from magmadnn.graph.node import Node, as_nodes, node_of, record
from magmadnn.graph.op import Op
from magmadnn.graph.operators import Operators
from magmadnn.graph.spec import is_floating


class Scalar(Operators):
    """A float64 scalar that takes the dtype of the arrays it meets."""

    __slots__ = ("_casts", "_made", "node")
    __magmadnn_priority__: ClassVar[int] = 30  # above Operation: it decides the dtype

    def __init__(self, node: Node) -> None:
        self.node = node
        self._casts: dict[np.dtype[Any], Node] = {}  # this number in other dtypes,
        self._made: dict[
            Hashable, Scalar
        ] = {}  # and what was made of it: each parameter asks for it

    @classmethod
    def __magmadnn_apply__(cls, op: Op, operands: Sequence[Any], attributes: Any) -> Any:
        arrays = [node_of(x) for x in operands if not isinstance(x, Scalar)]
        dtypes = [n.dtype for n in arrays if n is not None and is_floating(n.dtype)]
        if all(n is None for n in arrays):
            return cls._of_scalars(op, operands, attributes)
        dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.float64)
        settled = [x._as(dtype) if isinstance(x, Scalar) else x for x in operands]
        return op(*settled, **attributes)

    @classmethod
    def _of_scalars(cls, op: Op, operands: Sequence[Any], attributes: Any) -> Scalar:
        """What is made of scalars and numbers alone: once, however many parameters ask for it."""
        known = next(x for x in operands if isinstance(x, Scalar))._made
        each = (x.node if isinstance(x, Scalar) else (type(x), repr(x)) for x in operands)
        key = (op.name, *each, *attributes.items())
        if key not in known:
            known[key] = cls(record(op, as_nodes(op.words, operands), attributes))
        return known[key]

    def _as(self, dtype: np.dtype[Any]) -> Node:
        if dtype == self.node.dtype:
            return self.node
        if dtype not in self._casts:
            self._casts[dtype] = ops.cast(self.node, dtype)
        return self._casts[dtype]

    def __repr__(self) -> str:
        return f"<Scalar {self.node.label}>"
