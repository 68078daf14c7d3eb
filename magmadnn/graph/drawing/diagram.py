"""Diagrams: boxes that read from boxes; of nodes here, and of kernels in the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magmadnn.graph.node import (
    CONSTANT,
    PLACEHOLDER,
    PLACES,
    SIZE,
    VARIABLE,
    Node,
    follows_sizes,
    topological,
)
from magmadnn.graph.program import Program
from magmadnn.graph.text import constant_text, nodes_of

from .layered import Box

_FIXED = "#f3f4f6"
FILL = {
    VARIABLE: "#dbeafe", PLACEHOLDER: "#dcfce7", CONSTANT: _FIXED, SIZE: _FIXED, PLACES: _FIXED
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Diagram:
    """What `to_svg` draws.

    Attributes:
        boxes: each after those that it reads from.
        letters: how many letters a line of a box has room for.
    """

    boxes: tuple[Box, ...]
    letters: int = 26

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        from .svg import Drawing  # and html, which is rarely needed

        return Drawing(self.boxes, self.letters).text()


def diagram_of_nodes(nodes: Sequence[Node]) -> Diagram:
    """A box for each node that `nodes` need."""
    return _diagram(topological(nodes), {})


def diagram_of_program(program: Program) -> Diagram:
    """A box for each node of a program; those of new values say whose they are."""
    new: dict[Node, str] = {}
    for target, value in program.updates:
        new[value] = ", ".join(filter(None, [new.get(value, ""), str(target.name)]))
    return _diagram(program.nodes(), {value: f"new {names}" for value, names in new.items()})


def _diagram(nodes: Sequence[Node], notes: dict[Node, str]) -> Diagram:
    boxes: dict[Node, Box] = {}
    for node in nodes:
        inputs = tuple(boxes[i] for i in dict.fromkeys(node.inputs))
        lines = tuple(filter(None, [str(node.spec), notes.get(node, "")]))
        boxes[node] = Box(_title(node), lines, _tip(node), fill_of(node), inputs)
    return Diagram(tuple(boxes.values()))


def leaf_box(node: Node) -> Box:
    """The box of a variable, placeholder, constant or size."""
    return Box(_title(node), (str(node.spec),), _tip(node), fill_of(node))


def fill_of(node: Node) -> str:
    """The colour of a node's box: by kind for leaves, white for operations."""
    return next((colour for op, colour in FILL.items() if op is node.op), "white")


def _tip(node: Node) -> str:
    attributes = ", ".join(f"{k}={v}" for k, v in node.attributes.items())
    return " ".join(filter(None, [node.scope, node.label, attributes]))


def _title(node: Node) -> str:
    if node.op is CONSTANT:
        return constant_text(node.value)
    return f"{node.label} {node.attributes['dim']}" if follows_sizes(node) else node.label


def to_svg(*outputs: Any, path: str | Path | None = None) -> str:
    """The drawing of the graphs of `outputs` as SVG text; also written to `path` if that is given.

    Variables are blue, placeholders green, constants and sizes grey, operations white; data flows
    downwards. Pointing at a box shows its layer and attributes. What a model runs is drawn by
    `to_svg(model.diagram(...))`: nodes before optimisation, kernels after it.

    Args:
        outputs: Operations; or a single program, diagram, or model, whose layers are drawn.
        path: a file to write.

    Raises:
        GraphError: for anything that has no graph.
    """
    diagram = _shown(outputs)
    text = diagram._repr_svg_()
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def _shown(outputs: tuple[Any, ...]) -> Diagram:
    if len(outputs) == 1 and isinstance(outputs[0], Diagram):
        return outputs[0]
    if len(outputs) == 1 and isinstance(outputs[0], Program):
        return diagram_of_program(outputs[0])
    if len(outputs) == 1 and hasattr(type(outputs[0]), "__magmadnn_diagram__"):
        found: Diagram = outputs[0].__magmadnn_diagram__()
        return found
    return diagram_of_nodes(nodes_of(outputs))
