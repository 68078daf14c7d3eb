"""A drawing of a graph as SVG, laid out here, so that nobody has to install Graphviz."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from .layered import Layout
from .node import CONSTANT, PLACEHOLDER, SIZE, VARIABLE, Node, topological
from .text import constant_text, nodes_of

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN, _BEND = 156, 40, 20, 40, 16, 14
_FILL = {VARIABLE: "#dbeafe", PLACEHOLDER: "#dcfce7", CONSTANT: "#f3f4f6", SIZE: "#f3f4f6"}
_LONGEST_TITLE, _LONGEST_SPEC = 22, 26  # letters that surely fit into a box
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
    'height="{height}" font-family="sans-serif" font-size="11">\n'
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 8 4 0 8z" fill="#6b7280"/></marker></defs>\n'
    '<rect width="{width}" height="{height}" fill="white"/>'
)


def to_svg(*outputs: Any, path: str | Path | None = None) -> str:
    """The drawing of the graphs of `outputs` as SVG text; also written to `path` if that is given.

    Variables are blue, placeholders green, constants and sizes grey, operations white; data flows
    downwards. Pointing at a box shows its layer and attributes.

    Raises:
        GraphError: for anything that has no graph.
    """
    nodes = topological(nodes_of(outputs))
    layout = Layout(nodes, _WIDTH + _GAP_X, _BEND)
    width = max(_x(layout, n) for n in nodes) + _WIDTH / 2 + _MARGIN
    width = max(width, *(_MARGIN + at + _BEND for at in layout.place.values()))
    height = max(_y(layout.row[n]) for n in nodes) + _HEIGHT + _MARGIN
    edges = [_edge(layout, i, n) for n in nodes for i in dict.fromkeys(n.inputs)]
    boxes = [_box(n, _x(layout, n), _y(layout.row[n])) for n in nodes]
    head = _HEAD.format(width=f"{width:.0f}", height=f"{height:.0f}")
    text = "\n".join([head, *edges, *boxes, "</svg>\n"])
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def _x(layout: Layout, node: Node) -> float:
    """The middle of a box."""
    return _MARGIN - _GAP_X / 2 + layout.place[node]


def _y(row: int) -> float:
    """The upper edge of a row."""
    return _MARGIN + row * (_HEIGHT + _GAP_Y)


def _edge(layout: Layout, source: Node, target: Node) -> str:
    """A line down from box to box, straight through each row that it passes."""
    x, y = _x(layout, source), _y(layout.row[source]) + _HEIGHT
    path = f"M{x:.0f} {y:.0f}"
    row = layout.row[source]
    for at in layout.way(source, target):
        row += 1
        path += _curve(x, y, (x := _MARGIN - _GAP_X / 2 + at), _y(row))
        y = _y(row) + _HEIGHT
        path += f"V{y:.0f}"
    path += _curve(x, y, _x(layout, target), _y(layout.row[target]))
    return f'<path d="{path}" fill="none" stroke="#6b7280" marker-end="url(#tip)"/>'


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    middle = (y0 + y1) / 2
    return f"C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {y1:.0f}"


def _box(node: Node, x: float, y: float) -> str:
    fill = next((colour for op, colour in _FILL.items() if op is node.op), "white")
    attributes = ", ".join(f"{k}={v}" for k, v in node.attributes.items())
    tip = " ".join(filter(None, [node.scope, node.label, attributes]))
    return (
        f"<g><title>{escape(tip)}</title>"
        f'<rect x="{x - _WIDTH / 2:.0f}" y="{y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" '
        f'fill="{fill}" stroke="#374151"/>'
        f'<text x="{x:.0f}" y="{y + 17:.0f}" text-anchor="middle" font-weight="bold">'
        f"{escape(_shortened(_title(node), _LONGEST_TITLE))}</text>"
        f'<text x="{x:.0f}" y="{y + 31:.0f}" text-anchor="middle" fill="#4b5563">'
        f"{escape(_shortened(str(node.spec), _LONGEST_SPEC))}</text></g>"
    )


def _title(node: Node) -> str:
    if node.op is CONSTANT:
        return constant_text(node.value)
    return f"size {node.attributes['dim']}" if node.op is SIZE else node.label


def _shortened(text: str, most: int) -> str:
    """The end of a name tells more than its beginning: `...dense_1/weight`."""
    return text if len(text) <= most else f"…{text[1 - most :]}"
