"""Watching a run: find the first step that makes NaN or infinity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from magmadnn.errors import NumericError
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.graph.spec import is_floating


class FiniteWatch:
    """Raises at the first step whose operands are finite and whose result is not.

    Raises:
        NumericError: naming the operation, the layer, and the range of its operands.
    """

    def __call__(self, node: Node, value: Array, operands: Sequence[Array]) -> None:
        """Look at one step."""
        if not is_floating(node.dtype) or np.isfinite(value).all():
            return
        kind = "NaN" if np.isnan(value).any() else "infinity"
        place = np.argwhere(~np.isfinite(np.atleast_1d(value)))[0].tolist()
        where = f" in {node.scope}" if node.scope else ""
        ranges = ", ".join(f"{_range(x)} {x.shape}" for x in operands)
        raise NumericError(
            f"{node.op.name}{where}: the result has {kind}, first at {place}; operands: {ranges}; "
            "lower the learning rate, clip gradients, or look for bad data"
        )


def _range(x: Array) -> str:
    if x.size == 0:
        return "empty"
    return f"{float(np.min(x)):.4g} to {float(np.max(x)):.4g}"
