"""The table that `Model.summary` prints."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from magmadnn.graph.node import topological
from magmadnn.graph.signature import shape_text
from magmadnn.layers.layer import LayerCall, Parameter

from .plain.architecture import layer_calls

if TYPE_CHECKING:
    from .model import Model


def summary_text(model: Model) -> str:
    """Layers in order, with output shape, number of parameters and what is trained."""
    rows = [("layer", "kind", "output shape", "parameters")]
    rows += [(p.name, "Input", shape_text(p.shape), "0") for p in model.inputs]
    for node in topological([o.node for o in model.outputs], layer_calls):
        if isinstance(node.origin, LayerCall):
            layer = node.origin.layer
            count = sum(prod(p.value.shape) for p in layer.parameters() if p.trained)
            frozen = "" if layer.is_trainable or not count else " (frozen)"
            rows.append(
                (layer.label, type(layer).__name__, shape_text(node.shape), f"{count:,}{frozen}")
            )
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    trained = sum(prod(p.value.shape) for p in model.parameters())
    kept = sum(prod(p.value.shape) for p in model.variables())
    states = sum(
        prod(p.value.shape) for p in model.variables() if isinstance(p, Parameter) and not p.trained
    )
    nbytes = sum(p.value.nbytes for p in model.variables())
    lines.append(
        f"{kept - states:,} parameters, {trained:,} trained; "
        f"{states:,} state{'s' * (states != 1)}; {nbytes:,} bytes"
    )
    return "\n".join(lines)
