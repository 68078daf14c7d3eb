"""Where the boxes of a drawing stand, and the ways of its edges around them.

A layered drawing: Sugiyama, Tagawa, Toda, "Methods for visual understanding of hierarchical system
structures", IEEE Trans. SMC 11 (1981). Every node stands in the row of its depth. An edge that passes
rows has a bend in each of them, which takes its place beside the boxes. Rows are ordered by the mean place
of what their members are joined to (the barycentre rule, section III); then each member is drawn as near
to that mean as the order and the widths allow, which is a least-squares problem solved exactly.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

Item = Hashable  # a box, or a Bend
_SWEEPS = 12


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


@dataclass(frozen=True)
class Bend:
    """Where edges from one box pass a row."""

    source: Box
    row: int


class Layout:
    """The rows and places of a graph.

    Attributes:
        row: the row of each node and bend, from the top.
        place: the middle of each, along its row.
    """

    def __init__(self, nodes: Sequence[Box], width: float, bend: float) -> None:
        """`width` is that of a box with its gap, `bend` that of a bend."""
        self._width, self._bend = width, bend
        self.row = _rows(nodes)
        self._bends: dict[Box, int] = {}  # the last row in which edges from a box bend
        self._joined: dict[Item, list[Item]] = {node: [] for node in nodes}
        for node in nodes:
            for source in dict.fromkeys(node.inputs):
                self._join(source, node)
        self._rows: list[list[Item]] = [[] for _ in range(max(self.row.values()) + 1)]
        for item, row in self.row.items():
            self._rows[row].append(item)
        self.place: dict[Item, float] = {}
        for items in self._rows:
            for number, item in enumerate(items):
                self.place[item] = number * width
        self._arrange()

    def way(self, source: Box, target: Box) -> list[float]:
        """The places where the edge from `source` to `target` passes the rows between them."""
        between = range(self.row[source] + 1, self.row[target])
        return [self.place[Bend(source, row)] for row in between]

    def _join(self, source: Box, target: Box) -> None:
        begun = self._bends.get(source, self.row[source])  # edges of one source share their bends
        last: Item = source if begun == self.row[source] else Bend(source, begun)
        for row in range(begun + 1, self.row[target]):
            bend = Bend(source, row)
            self.row[bend] = row
            self._joined[bend] = []
            self._link(last, bend)
            last = bend
            self._bends[source] = row
        above = self.row[target] - 1
        self._link(source if above == self.row[source] else Bend(source, above), target)

    def _link(self, upper: Item, lower: Item) -> None:
        self._joined[upper].append(lower)
        self._joined[lower].append(upper)

    def _arrange(self) -> None:
        """Sweep down and up: first rows are ordered, then, with their order kept, places are improved."""
        for sweep in range(2 * _SWEEPS):
            rows = self._rows if sweep % 2 == 0 else self._rows[::-1]
            for row in rows:
                wish = {item: self._wish(item, down=sweep % 2 == 0) for item in row}
                if sweep < _SWEEPS:
                    row.sort(key=wish.__getitem__)
                self._settle(row, wish)
        left = min(self.place[i] - self._half(i) for i in self.place)
        self.place = {item: at - left for item, at in self.place.items()}

    def _wish(self, item: Item, *, down: bool) -> float:
        """The mean place of what an item is joined to above, sweeping down, or below, sweeping up.

        Leaves do not draw a chain of operations away from its line, if anything else holds it.
        """
        side = [j for j in self._joined[item] if (self.row[j] < self.row[item]) == down]
        near = [j for j in side if not _is_leaf(j)] or side or self._joined[item]
        return sum(self.place[j] for j in near) / len(near) if near else self.place[item]

    def _half(self, item: Item) -> float:
        return (self._bend if isinstance(item, Bend) else self._width) / 2

    def _settle(self, row: Sequence[Item], wish: Mapping[Item, float]) -> None:
        """Places nearest to the wishes, by least squares, that keep the order and do not overlap.

        With the widths to the left taken off, that is the nearest ascending sequence: neighbours that
        contradict each other share the mean of their wishes (pool adjacent violators).
        """
        blocks: list[tuple[float, int]] = []  # mean, how many
        offset, offsets = 0.0, []
        for item in row:
            offsets.append(offset + self._half(item))
            offset += 2 * self._half(item)
            mean, count = wish[item] - offsets[-1], 1
            while blocks and blocks[-1][0] >= mean:
                other, more = blocks.pop()
                mean, count = (mean * count + other * more) / (count + more), count + more
            blocks.append((mean, count))
        means = [mean for mean, count in blocks for _ in range(count)]
        for item, mean, taken in zip(row, means, offsets, strict=True):
            self.place[item] = mean + taken


def _is_leaf(item: Item) -> bool:
    return isinstance(item, Box) and not item.inputs


def _rows(nodes: Sequence[Box]) -> dict[Item, int]:
    """The depth of each node; leaves stand just above their first reader."""
    row: dict[Item, int] = {}
    for node in nodes:
        row[node] = 1 + max((row[i] for i in node.inputs), default=-1)
    first: dict[Box, int] = {}
    for node in nodes:
        for source in node.inputs:
            first[source] = min(first.get(source, row[node]), row[node])
    row |= {leaf: at - 1 for leaf, at in first.items() if not leaf.inputs}
    return row
