"""What is known of regions while they grow: what they read, how long their formulas are, which needs which.

All of it is kept up to date node by node, so that fusing a graph takes time in proportion to its size. The
order of regions is that of D. J. Pearce, P. H. J. Kelly, "A dynamic topological sort algorithm for directed
acyclic graphs", ACM Journal of Experimental Algorithmics 11 (2006): what is new of one region moves only
regions that lie between it and what it needs. So it can be told without looking at all regions whether one
needs another.

What is made only to be reduced over rows is computed by the reduction's own kernel as it reads. So
`sum((x - mean) ** 2, axis=0)` reads x, and nothing is stored for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from magmadnn.compiler.formulas import depth_of, is_cheap, is_pointwise, times_written
from magmadnn.compiler.kernels.operands import (
    COLUMN,
    FULL,
    PADDED,
    ROW,
    SCALAR,
    STRIDED,
    STRIDED_COLUMN,
)
from magmadnn.compiler.kernels.rows import LONG_ROW
from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.regions.open_sizes import is_at_least, is_below
from magmadnn.compiler.regions.region import (
    Region,
    RegionKind,
    is_reduction,
    is_same_matrix,
    matrix_of,
)
from magmadnn.graph.dim import product
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

_OPERANDS = (FULL, ROW, COLUMN, SCALAR)  # how such kernels read operands,
_ALSO = (STRIDED, STRIDED_COLUMN, PADDED)  # and where they combine all rows of one matrix
_STREAMS = (FULL, STRIDED, PADDED)
# ops whose kernels compute nothing besides, so that their results are stored,
_STORES = (OpKind.GATHER, OpKind.SCATTER, OpKind.KERNEL, OpKind.LIBRARY, OpKind.LOOP, OpKind.RESULT)
_READS_MEMORY = (*_STORES, OpKind.CONTRACTION)  # and those that read what is stored
_MOST = 16  # nodes that one reduction computes for each element
MOST_STREAMS = 6  # matrices that it reads


class Producers:
    """Finds what reductions over rows compute for themselves.

    Args:
        program: what is compiled.
        layouts: how values lie in memory.
        compilable: whether compiled code can do a node.
        is_walked: whether a reduction becomes a region of columns,
        is_whole: or one of all elements as a single row; others compute nothing for themselves.

    Attributes:
        inner: all of that; it belongs to the reduction's region.
    """

    def __init__(
        self,
        program: Program,
        layouts: Layouts,
        compilable: Callable[[Node], bool],
        is_walked: Callable[[Node], bool],
        is_whole: Callable[[Node], bool],
    ) -> None:
        self._layouts, self._compilable = layouts, compilable
        self._roots = {layouts.bases[root] for root in program.roots}
        self._readers: dict[Node, list[Node]] = {}
        nodes = program.nodes()
        for node in nodes:
            for base in {layouts.bases[i] for i in node.inputs}:
                if not layouts.is_view(node):
                    self._readers.setdefault(base, []).append(node)
        self._position = {node: k for k, node in enumerate(nodes)}
        walked = [n for n in nodes if reduces_rows(n) and compilable(n) and is_walked(n)]
        self._of = {n: self._found(n) for n in walked}
        whole = [n for n in nodes if is_reduction(n) and compilable(n) and is_whole(n)]
        self._of |= {n: self._made_for_all(n) for n in whole}
        self.inner = {node for found in self._of.values() for node in found}

    def of(self, reduction: Node) -> list[Node]:
        """What a reduction computes of each element before it combines them, in order."""
        return self._of.get(reduction, [])

    def streams(self, reduction: Node) -> set[Node]:
        """The matrices that it reads, as large as the one that it reduces."""
        made = self.of(reduction)
        return self._streams([*made, reduction], set(made), reduction.inputs[0])

    def _made_for_all(self, reduction: Node) -> list[Node]:
        """The same for a reduction of all elements, which are read in the order in which they lie.

        Only what is cheap, of values that are stored anyway: below a length one thread computes all of it.
        """
        source, found = reduction.inputs[0], self._found(reduction)
        length = product(source.shape)
        inner = set(found)
        read = {i for node in found for i in node.inputs if i not in inner}
        in_order = all(
            self._layouts.is_run(i, (), length)
            or self._layouts.spread(i, source.shape[:-1], source.shape[-1]) == SCALAR
            for i in read
        )
        stored = all(map(self._is_stored, self._streams(found, inner, source)))
        return found if in_order and stored and all(map(is_cheap, found)) else []

    def _is_stored(self, base: Node) -> bool:
        """Whether a value lies in memory whoever else computes with its elements."""
        if not isinstance(base.op, Op) or base in self._roots or base.op.kind in _STORES:
            return True
        return any(
            isinstance(node.op, Op) and node.op.kind in _READS_MEMORY
            for node in self._readers[base]
        )

    def _found(self, reduction: Node) -> list[Node]:
        source, found = reduction.inputs[0], set[Node]()
        reads = (*_OPERANDS, *_ALSO) if reduces_rows(reduction) else _OPERANDS
        stack = [(source, reduction)]
        while stack:
            node, reader = stack.pop()
            if self._is_private(node, reader, source, reads):
                found.add(node)
                stack += [(self._rounded(i), node) for i in dict.fromkeys(node.inputs)]
        streams = self._streams([*found, reduction], found, source)
        if len(found) > _MOST or len(streams) > MOST_STREAMS or self._stores_more(streams, found):
            return []
        return sorted(found, key=self._position.__getitem__)

    def _is_private(self, node: Node, reader: Node, source: Node, reads: tuple[str, ...]) -> bool:
        """Whether a node is computed element by element, for one reader only."""
        if not is_pointwise(node) or not self._compilable(node) or self._layouts.is_view(node):
            return False
        if node.shape != source.shape or node in self._roots or self._readers[node] != [reader]:
            return False
        own = (i for i in reader.inputs if self._layouts.bases[i] is node)
        rows, columns = source.shape[:-1], source.shape[-1]
        return all(self._rounded(i) is node for i in own) and all(
            self._layouts.spread(i, rows, columns) in reads for i in node.inputs
        )

    def _rounded(self, node: Node) -> Node:
        """What a value is widened of, where that is no pass over memory; the value itself otherwise."""
        return node.inputs[0] if self._layouts.loaded(node) is node else node

    def _streams(self, readers: Iterable[Node], inner: set[Node], source: Node) -> set[Node]:
        rows, columns = source.shape[:-1], source.shape[-1]
        read = (i for node in readers for i in node.inputs if self._rounded(i) not in inner)
        return {
            self._layouts.bases[i]
            for i in read
            if self._layouts.spread(i, rows, columns) in _STREAMS
        }

    def _stores_more(self, streams: set[Node], inner: set[Node]) -> bool:
        """Whether more would be stored than what is reduced: values that nobody else reads."""
        alone = [
            base
            for base in streams
            if isinstance(base.op, Op)
            and base not in self._roots
            and all(reader in inner for reader in self._readers[base])
        ]
        return len(alone) > 1


def reduces_rows(node: Node) -> bool:
    """Whether a node combines the rows of one matrix: all axes but the last."""
    if not is_reduction(node) or node.inputs[0].ndim < 2:
        return False
    return bool(node.attributes.get("axis") == tuple(range(node.inputs[0].ndim - 1)))


# --- regions while they grow ----------------------------------------------------------------------


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
    """Whether rows are made in blocks, by a kernel for each walk over them: see `lower/row_blocks.py`.

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
