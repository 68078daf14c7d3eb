"""What is known of regions while they grow: what they read, how long their formulas are, which needs which.

All of it is kept up to date node by node, so that fusing a graph takes time in proportion to its size. The
order of regions is that of D. J. Pearce, P. H. J. Kelly, "A dynamic topological sort algorithm for directed
acyclic graphs", ACM Journal of Experimental Algorithmics 11 (2006): what is new of one region moves only
regions that lie between it and what it needs. So it can be told without looking at all regions whether one
needs another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from magmadnn.compiler.formulas import depth_of, times_written
from magmadnn.compiler.kernels.rows import LONG_ROW
from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.regions.below import is_at_least, is_below
from magmadnn.compiler.regions.region import (
    Region,
    RegionKind,
    is_reduction,
    is_same_matrix,
    matrix_of,
)
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind


class RegionOrder:
    """Which regions need which, and an order in which each is behind those that it needs.

    Attributes:
        needs: the regions that each needs directly.
    """

    def __init__(self) -> None:
        self.needs: dict[Region, set[Region]] = {}
        self._readers: dict[Region, set[Region]] = {}
        self._place: dict[Region, int] = {}
        self._count = 0

    def add(self, region: Region) -> None:
        """One more region, behind all others."""
        self.needs[region], self._readers[region] = set(), set()
        self._place[region] = self._count
        self._count += 1

    def need(self, region: Region, other: Region) -> None:
        """`region` needs `other`, which does not need it."""
        self.needs[region].add(other)
        self._readers[other].add(region)
        start, end = self._place[region], self._place[other]
        if start > end:
            return
        later = self._found(region, self._readers, start, end)
        earlier = self._found(other, self.needs, start, end)
        ordered = [*sorted(earlier, key=self._at), *sorted(later, key=self._at)]
        self._place.update(zip(ordered, sorted(map(self._at, ordered)), strict=True))

    def merge(self, merged: Region, one: Region, other: Region) -> None:
        """`merged` takes the place of two regions, neither of which needs the other."""
        parts = {one, other}
        for table, opposite in ((self.needs, self._readers), (self._readers, self.needs)):
            table[merged] = (table.pop(one) | table.pop(other)) - parts
            for near in table[merged]:
                opposite[near] -= parts
                opposite[near].add(merged)
        self._place[merged] = max(self._place.pop(one), self._place.pop(other))
        for reader in sorted(self._readers[merged], key=self._at):
            self.need(reader, merged)

    def reaches(self, start: Region, targets: Collection[Region]) -> bool:
        """Whether `start` needs one of `targets`, directly or through others."""
        place = self._place
        first = min(place[region] for region in targets)
        seen, stack = {start}, [start]
        while stack:
            fresh = self.needs[stack.pop()] - seen
            if not fresh.isdisjoint(targets):
                return True
            behind = [region for region in fresh if place[region] > first]
            seen.update(behind)
            stack += sorted(behind, key=self._at, reverse=True)  # what is nearest is looked at next
        return False

    def _at(self, region: Region) -> int:
        return self._place[region]

    def _found(
        self, begin: Region, table: Mapping[Region, set[Region]], start: int, end: int
    ) -> set[Region]:
        """What hangs on a region, directly or through others, at places from `start` to `end`."""
        seen, stack, place = {begin}, [begin], self._place
        while stack:
            near = table[stack.pop()] - seen
            inside = {region for region in near if start <= place[region] <= end}
            seen |= inside
            stack.extend(inside)
        return seen


_LONGEST_FORMULA = 400  # what is used twice is written out twice, so that lengths may double
_DEEPEST_FORMULA = 64  # of ops within ops; what goes through a formula calls itself for each
_MOST_WALKS = (
    16  # over a row, each for reductions of what the one before found; all begin with the operands
)


class Extent(NamedTuple):
    """How large the formula of a node is, written out.

    Attributes:
        length: the ops in it, those of one node counted as one,
        depth: how deep they lie in each other,
        walks: and how many reductions, one after the other, must be known before.
    """

    length: int
    depth: int
    walks: int

    @property
    def is_short(self) -> bool:
        """Whether a kernel can have it."""
        return (
            self.length <= _LONGEST_FORMULA
            and self.depth <= _DEEPEST_FORMULA
            and self.walks <= _MOST_WALKS
        )


class Growth:
    """Facts of regions in the making.

    Attributes:
        of: the region of each node that is computed.
        streams: the arrays as large as a region's matrix that its kernel reads from outside.
        order: which regions need which.
    """

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts
        self.of: dict[Node, Region] = {}
        self.streams: dict[Region, set[Node]] = {}
        self.order = RegionOrder()
        self._extents: dict[Node, Extent] = {}
        self._formulas: dict[Node, tuple[int, tuple[int, ...]]] = {}

    # --- changes ----------------------------------------------------------------------------------

    def begin(self, region: Region) -> None:
        """A new region, of one node."""
        self.order.add(region)
        self.streams[region] = set()
        self._take(region.nodes[0], region)

    def join(self, node: Node, region: Region) -> None:
        """A region gets one more node, behind all others."""
        region.nodes.append(node)
        self._take(node, region)

    def _take(self, node: Node, region: Region) -> None:
        self._extents[node] = self._extent(node, region)
        self.streams[region] = self.streams_with(node, region)
        self.of[node] = region
        for other in {self.of[b] for b in self._bases(node) if b in self.of} - {region}:
            self.order.need(region, other)

    def replace(self, merged: Region, one: Region, other: Region) -> None:
        """A region takes the place of two."""
        self.streams[merged] = self.streams_of_both(merged, one, other)
        del self.streams[one], self.streams[other]
        self.order.merge(merged, one, other)
        self.of.update(dict.fromkeys(merged.nodes, merged))
        for node in merged.nodes:
            self._extents[node] = self._extent(node, merged)

    # --- questions --------------------------------------------------------------------------------

    def is_short_with(self, node: Node, region: Region) -> bool:
        """Whether the formula of one more node of a region is short."""
        return self._extent(node, region).is_short

    def walks_once_with(self, node: Node, region: Region) -> bool:
        """Whether a region of long rows would still walk over them once only; others may do so again."""
        return not _is_long(region) or _walks_once(node, self._extent(node, region), region)

    def are_short(self, region: Region) -> bool:
        """Whether all formulas of a region in the making are, and long rows are walked over once."""
        extents: dict[Node, Extent] = {}
        for node in region.nodes:
            extents[node] = self._over(node, [extents.get(b, _READ) for b in self._bases(node)])
        once = not _is_long(region) or all(_walks_once(n, e, region) for n, e in extents.items())
        return once and all(extent.is_short for extent in extents.values())

    def streams_with(self, node: Node, region: Region) -> set[Node]:
        """The streams of a region that has one more node."""
        own = {b for b in self._bases(node) if self.of.get(b) is not region}
        return self.streams[region] | {b for b in own if _is_stream(b, region)}

    def matrices(self, region: Region) -> set[Node]:
        """The matrices that a region of columns reduces."""
        made = [n for n in region.nodes if n in region.elements or is_reduction(n)]
        return {b for n in made for b in self._bases(n) if b.ndim > 1} - set(region.nodes)

    def streams_of_both(self, merged: Region, one: Region, other: Region) -> set[Node]:
        """The streams of a region that takes the place of two."""
        return (self.streams[one] | self.streams[other]) - set(merged.nodes)

    def _extent(self, node: Node, region: Region) -> Extent:
        inside = (
            self._extents[b] if self.of.get(b) is region else _READ for b in self._bases(node)
        )
        return self._over(node, list(inside))

    def _over(self, node: Node, operands: Sequence[Extent]) -> Extent:
        """The extent over those of its operands; of a reduction or a product, its result is known."""
        walks = max((e.walks for e in operands), default=0)
        if not isinstance(node.op, Op) or node.op.kind is not OpKind.POINTWISE:
            return Extent(1, 0, walks + 1)
        if (formula := self._formulas.get(node)) is None:  # asked for often
            formula = self._formulas[node] = depth_of(node), times_written(node)
        depth, times = formula
        deepest = max((e.depth for e in operands), default=0)
        length = 1 + sum(n * e.length for n, e in zip(times, operands, strict=True))
        return Extent(length, depth + deepest, walks)

    def _bases(self, node: Node) -> list[Node]:
        return [self._layouts.bases[i] for i in node.inputs]


def _is_long(region: Region) -> bool:
    """Whether rows are made in blocks, by a kernel for each walk over them: see `lower/long_rows.py`.

    One row of a length that nobody knows is; rows of a matrix are not, of which there are several to share.
    """
    if region.kind is not RegionKind.ROWS:
        return False
    if region.rows:
        return is_at_least(region.columns, LONG_ROW)
    return not is_below(region.columns, LONG_ROW)


def _walks_once(node: Node, extent: Extent, region: Region) -> bool:
    """Whether a node needs no walk over a row behind that in which its region's reductions are made."""
    if not isinstance(node.op, Op) or node.op.kind is not OpKind.POINTWISE:
        return extent.walks <= 1
    return extent.walks == 0 or not is_same_matrix(matrix_of(node.shape), region.domain)


_READ = Extent(1, 0, 0)  # of what lies in memory


def _is_stream(base: Node, region: Region) -> bool:
    return is_same_matrix(matrix_of(base.shape), region.domain)


# --- regions beside each other --------------------------------------------------------------------


class Merging(Protocol):
    """Regions in the making that can become one: `Fusion`."""

    growth: Growth

    def merge(self, one: Region, other: Region) -> Region | None:
        """What two regions become as one; None where they cannot be one kernel."""
        ...


def gather_beside(fusion: Merging, ordered: Sequence[Region]) -> None:
    """Make one of such regions.

    Args:
        fusion: that made the regions.
        ordered: all of them, in an order in which they can run.
    """
    growth, place = fusion.growth, {region: k for k, region in enumerate(ordered)}
    waiting: dict[Region, Region] = {}  # by the sums that are known last
    for region in ordered:
        sums = [r for r in growth.order.needs[region] if r.kind is RegionKind.COLUMNS]
        if region.kind is not RegionKind.ROWS or region.numbers or not sums:
            continue
        last = max(sums, key=lambda r: place[r])
        other, read = waiting.get(last), growth.streams[region] & growth.matrices(last)
        merged = None
        if other is not None and not read.isdisjoint(growth.streams[other]):
            merged = fusion.merge(other, region)
        waiting[last] = merged or region
