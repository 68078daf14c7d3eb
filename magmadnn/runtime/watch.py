"""Watching a run: find the first step that makes NaN or infinity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from magmadnn.errors import NumericError
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node
from magmadnn.graph.op import Array
from magmadnn.graph.signature import shape_text
from magmadnn.memory.dtypes import is_floating


class FiniteWatch:
    """Raises at the first step that makes NaN, or infinity, of operands that have none.

    An infinity that is written into the graph (a mask) may be carried on; it is a fault when NaN comes
    of it. NaN in a placeholder or a variable is a fault as soon as it is read.

    Raises:
        NumericError: naming the operation, its scope (the layer), and the range of its operands.
    """

    def __call__(self, node: Node, value: Array, operands: Sequence[Array]) -> None:
        """Look at one step."""
        if not is_floating(node.dtype) or np.isfinite(value).all():
            return
        for source, operand in zip(node.inputs, operands, strict=True):
            if source.op in (PLACEHOLDER, VARIABLE) and _nan(operand):
                raise NumericError(
                    f"{source.op.name} {source.name}: it has NaN, {_first(operand, np.isnan(operand))}; "
                    f"read by {_where(node)}; look for bad data, or a step that was too large"
                )
        if _nan(value):
            kind, before = "NaN", any(_nan(x) for x in operands)
        else:
            kind, before = "infinity", any(not np.isfinite(x).all() for x in operands)
        if before:
            return
        ranges = ", ".join(f"{_range(x)} {shape_text(x.shape)}" for x in operands)
        raise NumericError(
            f"{_where(node)}: the result has {kind}, {_first(value, ~np.isfinite(value))}; "
            f"operands: {ranges}; lower the learning rate, clip gradients, or look for bad data"
        )


def _where(node: Node) -> str:
    return f"{node.op.name} in {node.scope}" if node.scope else node.op.name


def _nan(x: Array) -> bool:
    return bool(np.isnan(x).any())


def _first(x: Array, wrong: Array) -> str:
    """Where the first wrong element is."""
    if not x.ndim:
        return "a scalar"
    return f"first at {shape_text(tuple(np.argwhere(wrong)[0].tolist()))}"


def _range(x: Array) -> str:
    if x.size == 0:
        return "empty"
    return f"{float(np.min(x)):.4g} to {float(np.max(x)):.4g}"
