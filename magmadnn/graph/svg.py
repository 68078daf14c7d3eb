"""A drawing of a graph as SVG, laid out here, so that nobody has to install Graphviz.

Layers of a layered drawing are the nodes' depths; inside a layer, nodes are ordered by the mean position
of their inputs (the barycentre rule: Sugiyama, Tagawa, Toda, IEEE Trans. SMC 11 (1981), section III).
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from .node import CONSTANT, PLACEHOLDER, VARIABLE, Node, topological
from .show import constant_text, nodes_of

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 150, 40, 20, 46, 16
_FILL = {VARIABLE: "#dbeafe", PLACEHOLDER: "#dcfce7", CONSTANT: "#f3f4f6"}


def to_svg(*outputs: Any, path: str | Path | None = None) -> str:
    """The drawing of the graphs of `outputs` as SVG text; also written to `path` if that is given.

    Variables are blue, placeholders green, constants grey, operations white; data flows downwards.
    """
    nodes = topological(nodes_of(outputs))
    places = _places(nodes)
    width = max(x for x, _ in places.values()) + _WIDTH + _MARGIN
    height = max(y for _, y in places.values()) + _HEIGHT + _MARGIN
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="11">'
        ),
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0 8 4 0 8z" fill="#6b7280"/></marker></defs>'
        ),
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
    ]
    parts += [_edge(places[i], places[n]) for n in nodes for i in n.inputs]
    parts += [_box(n, places[n]) for n in nodes]
    text = "\n".join([*parts, "</svg>\n"])
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def _places(nodes: list[Node]) -> dict[Node, tuple[float, float]]:
    """The upper left corner of each node's box."""
    depth: dict[Node, int] = {}
    for node in nodes:
        depth[node] = 1 + max((depth[i] for i in node.inputs), default=-1)
    for node in reversed(nodes):  # leaves stand just above their first user
        for i in node.inputs:
            if not i.inputs:
                users = [depth[n] for n in nodes if i in n.inputs]
                depth[i] = min(users) - 1
    lowest = min(depth.values())
    rows: dict[int, list[Node]] = {}
    for node in nodes:
        rows.setdefault(depth[node] - lowest, []).append(node)
    column: dict[Node, float] = {}
    for _, row in sorted(rows.items()):
        wish = {
            n: sum(column[i] for i in n.inputs) / len(n.inputs) if n.inputs else float(k)
            for k, n in enumerate(row)
        }
        at = -1.0
        for node in sorted(row, key=lambda n: wish[n]):
            at = max(at + 1, wish[node])
            column[node] = at
    return {
        n: (
            _MARGIN + column[n] * (_WIDTH + _GAP_X),
            _MARGIN + (depth[n] - lowest) * (_HEIGHT + _GAP_Y),
        )
        for n in nodes
    }


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    x0, y0 = start[0] + _WIDTH / 2, start[1] + _HEIGHT
    x1, y1 = end[0] + _WIDTH / 2, end[1]
    bend = max((y1 - y0) / 2, 12)
    return (
        f'<path d="M{x0:.0f} {y0:.0f}C{x0:.0f} {y0 + bend:.0f} {x1:.0f} {y1 - bend:.0f} '
        f'{x1:.0f} {y1:.0f}" fill="none" stroke="#6b7280" marker-end="url(#tip)"/>'
    )


def _box(node: Node, place: tuple[float, float]) -> str:
    x, y = place
    title = constant_text(node.value) if node.op is CONSTANT else node.label
    middle = x + _WIDTH / 2
    fill = next((colour for op, colour in _FILL.items() if op is node.op), "white")
    tooltip = ", ".join(f"{k}={v}" for k, v in node.attributes.items())
    return (
        f"<g><title>{escape(' '.join(filter(None, [node.scope, tooltip])) or node.op.name)}</title>"
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" '
        f'fill="{fill}" stroke="#374151"/>'
        f'<text x="{middle:.0f}" y="{y + 17:.0f}" text-anchor="middle" font-weight="bold">'
        f"{escape(title[:22])}</text>"
        f'<text x="{middle:.0f}" y="{y + 31:.0f}" text-anchor="middle" fill="#4b5563">'
        f"{escape(str(node.spec)[:26])}</text></g>"
    )
