"""A model as a picture of its layers, which notebooks show by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, cast

from magmadnn.calls import ExplainsAttributes
from magmadnn.graph.drawing.diagram import Diagram, fill_of, to_svg
from magmadnn.graph.drawing.layered import Box
from magmadnn.graph.node import PLACEHOLDER, Node, topological
from magmadnn.graph.signature import shape_text
from magmadnn.layers.layer import Layer, LayerCall

from .plain.architecture import layer_calls

if TYPE_CHECKING:
    from .model import Model

_OUTPUT = "#fef3c7"
_LETTERS = 34


class Pictured(ExplainsAttributes):
    """What a Model has for being drawn."""

    def __magmadnn_diagram__(self) -> Diagram:
        """What `md.graph.to_svg(model)` draws: layers with output shapes and numbers of parameters."""
        return diagram_of_layers(cast("Model", self))

    def _repr_svg_(self) -> str:
        return to_svg(self)


def diagram_of_layers(model: Model) -> Diagram:
    """A box for each input, layer, and op between layers.

    A layer that is called several times is one box, unless one of its calls follows from another.
    """
    nodes = topological(
        [*(p.node for p in model.inputs), *(o.node for o in model.outputs)], layer_calls
    )
    merged = {n: n.origin.layer if isinstance(n.origin, LayerCall) else n for n in nodes}
    ordered = _ordered(nodes, merged)
    if ordered is None:  # a circle
        merged = {n: n for n in nodes}
        ordered = list(nodes)
    boxes: dict[Any, Box] = {}
    outputs = {o.node for o in model.outputs}
    for key in ordered:
        calls = [n for n in nodes if merged[n] is key]
        sources = dict.fromkeys(boxes[merged[i]] for n in calls for i in layer_calls(n))
        boxes[key] = _box(calls, tuple(sources), not outputs.isdisjoint(calls))
    return Diagram(tuple(boxes.values()), _LETTERS)


def _ordered(nodes: Sequence[Node], merged: dict[Node, Any]) -> list[Any] | None:
    """What nodes became, each after what it reads from; None where that goes in a circle."""
    needed: dict[Any, set[Any]] = {}
    for node in nodes:
        needed.setdefault(merged[node], set()).update(merged[i] for i in layer_calls(node))
    found: list[Any] = []
    while len(found) < len(needed):
        ready = [k for k, sources in needed.items() if k not in found and sources <= set(found)]
        if not ready:
            return None
        found += ready
    return found


def _box(calls: Sequence[Node], inputs: tuple[Box, ...], is_output: bool) -> Box:
    node = calls[0]
    shapes = ", ".join(dict.fromkeys(shape_text(n.shape) for n in calls))
    if not isinstance(node.origin, LayerCall):
        kind = "Input" if node.op is PLACEHOLDER else ""
        fill = _OUTPUT if is_output and kind == "" else fill_of(node)
        return Box(f"{node.label} {kind}".rstrip(), (shapes,), node.scope, fill, inputs)
    layer = node.origin.layer
    title = f"{layer.label} ({type(layer).__name__})"
    title = title if len(title) < _LETTERS - 4 else layer.label
    lines = [shapes, _parameters(layer)]
    if len(calls) > 1:
        lines.append(f"called {len(calls)} times")
    fill = _OUTPUT if is_output else "white"
    return Box(title, tuple(filter(None, lines)), repr(layer), fill, inputs)


def _parameters(layer: Layer) -> str:
    count = sum(prod(p.value.shape) for p in layer.parameters())
    if not count:
        return ""
    return f"{count:,} parameter{'s' * (count != 1)}{'' if layer.is_trainable else ', frozen'}"
