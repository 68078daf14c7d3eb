"""A drawing of a graph as SVG, laid out here, so that nobody has to install Graphviz."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .layered import Box, Layout

_GAP_X, _GAP_Y, _MARGIN, _BEND = 20, 40, 16, 14
_LETTER, _LINE = 6, 14  # a box has this much for each letter and each line
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
    'height="{height}" font-family="sans-serif" font-size="11">\n'
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 8 4 0 8z" fill="#6b7280"/></marker></defs>\n'
    '<rect width="{width}" height="{height}" fill="white"/>'
)


class Drawing:
    """Boxes at their places, all of one size; a line of one has room for so many letters."""

    def __init__(self, boxes: Sequence[Box], letters: int) -> None:
        self.boxes, self.letters = boxes, letters
        self.width = _LETTER * self.letters
        self.height = 12 + _LINE * (1 + max((len(b.lines) for b in self.boxes), default=0))
        self.layout = Layout(self.boxes, self.width + _GAP_X, _BEND)

    def text(self) -> str:
        """The whole file."""
        boxes, place = self.boxes, self.layout.place
        width = max((self._x(b) for b in boxes), default=0) + self.width / 2 + _MARGIN
        width = max(width, *(_MARGIN + at + _BEND for at in place.values()), 0)
        height = max((self._y(self.layout.row[b]) for b in boxes), default=0)
        height += self.height + _MARGIN
        edges = [self._edge(i, b) for b in boxes for i in dict.fromkeys(b.inputs)]
        head = _HEAD.format(width=f"{width:.0f}", height=f"{height:.0f}")
        return "\n".join([head, *edges, *map(self._box, boxes), "</svg>\n"])

    def _x(self, box: Box) -> float:
        """The middle of a box."""
        return _MARGIN - _GAP_X / 2 + self.layout.place[box]

    def _y(self, row: int) -> float:
        """The upper edge of a row."""
        return _MARGIN + row * (self.height + _GAP_Y)

    def _edge(self, source: Box, target: Box) -> str:
        """A line down from box to box, straight through each row that it passes."""
        row = self.layout.row[source]
        x, y = self._x(source), self._y(row) + self.height
        path = f"M{x:.0f} {y:.0f}"
        for at in self.layout.way(source, target):
            row += 1
            path += _curve(x, y, (x := _MARGIN - _GAP_X / 2 + at), self._y(row))
            y = self._y(row) + self.height
            path += f"V{y:.0f}"
        path += _curve(x, y, self._x(target), self._y(self.layout.row[target]))
        return f'<path d="{path}" fill="none" stroke="#6b7280" marker-end="url(#tip)"/>'

    def _box(self, box: Box) -> str:
        x, y = self._x(box), self._y(self.layout.row[box])
        texts = [
            (
                f'<text x="{x:.0f}" y="{y + 17:.0f}" text-anchor="middle" font-weight="bold">'
                f"{escape(_shortened(box.title, self.letters - 4))}</text>"
            )
        ]
        texts += [
            f'<text x="{x:.0f}" y="{y + 31 + _LINE * k:.0f}" text-anchor="middle" fill="#4b5563">'
            f"{escape(_shortened(line, self.letters))}</text>"
            for k, line in enumerate(box.lines)
        ]
        return (
            f"<g><title>{escape(box.tip)}</title>"
            f'<rect x="{x - self.width / 2:.0f}" y="{y:.0f}" width="{self.width}" '
            f'height="{self.height}" rx="5" fill="{box.fill}" stroke="#374151"/>'
            f"{''.join(texts)}</g>"
        )


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    middle = (y0 + y1) / 2
    return f"C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {y1:.0f}"


def _shortened(text: str, most: int) -> str:
    """The end tells more than the beginning: of a name `…dense_1/weight`, of several whole ones."""
    if len(text) <= most:
        return text
    kept = text[1 - most :]
    _, blank, words = kept.partition(" ")
    return f"… {words}" if blank else f"…{kept}"
