"""Diagrams: boxes that read from boxes; of nodes here, and of kernels in the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .node import (
    CONSTANT,
    PLACEHOLDER,
    PLACES,
    SIZE,
    VARIABLE,
    Node,
    follows_sizes,
    topological,
)
from .program import Program
from .text import constant_text

_FIXED = "#f3f4f6"
FILL = {
    VARIABLE: "#dbeafe", PLACEHOLDER: "#dcfce7", CONSTANT: _FIXED, SIZE: _FIXED, PLACES: _FIXED
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Box:
    """One box.

    Attributes:
        title: its first line,
        lines: and those below.
        tip: what is shown where one points at it.
        fill: its colour.
        inputs: the boxes that it reads from.
    """

    title: str
    lines: tuple[str, ...] = ()
    tip: str = ""
    fill: str = "white"
    inputs: tuple[Box, ...] = ()


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
        from .svg import to_svg

        return to_svg(self)


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
