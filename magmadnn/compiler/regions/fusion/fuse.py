"""fuse: the nodes of a program become regions, each of which will be one kernel.

Nodes are taken in order. A pointwise node joins the regions of its operands where they walk over the same
matrix, and two regions become one where a node needs both. A reduction over the last axis joins the region
of its operand; one over the leading axes, or one in the middle, begins a region of columns; a matrix product
begins a region that takes in what is done to its elements. Views belong to no region. What compiled code
cannot do is a call of the op's NumPy function.

Regions never form a cycle: before one grows, it is made sure that nothing outside lies on a way back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from magmadnn.compiler.kernels.columns import DEVIATIONS
from magmadnn.compiler.kernels.operands import (
    COLUMN,
    PADDED,
    SCALAR,
    STRIDED,
    STRIDED_COLUMN,
)
from magmadnn.compiler.kernels.rows import CHOOSING, COMBINED, NARROW_ROW
from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.program.late import late_nodes
from magmadnn.compiler.regions.copies import is_product, is_walked, layouts_of
from magmadnn.compiler.regions.open_sizes import is_below
from magmadnn.compiler.regions.region import (
    ALONE,
    Region,
    RegionKind,
    combined_by,
    is_reduction,
    is_same_matrix,
    matrix_of,
)
from magmadnn.graph.dim import Size, product
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

from .growth import MOST_STREAMS, Growth, Producers, gather_beside, reduces_rows

_MOST_OPERANDS = 14  # streams of a kernel; more than the caches' ways gain nothing
_MOST_REDUCTIONS = 8  # of one kernel that reads a matrix once for all of them
_BY_STRIDES = (RegionKind.ROWS, RegionKind.GEMM)  # whose kernels read strided operands
_ALONE = {
    OpKind.RANDOM: RegionKind.RANDOM,
    OpKind.MOVEMENT: RegionKind.MOVE,
    OpKind.GATHER: RegionKind.GATHER,
    OpKind.SCATTER: RegionKind.SCATTER,
    OpKind.KERNEL: RegionKind.OWN,
    OpKind.LIBRARY: RegionKind.LIBRARY,
}


class Fusion:
    """Regions in the making.

    Attributes:
        layouts: how values lie in memory.
        growth: the region of each node that is computed, and what is known of it.
    """

    def __init__(
        self, program: Program, compilable: Callable[[Node], bool], rounding: bool
    ) -> None:
        self.layouts = layouts_of(program, compilable, rounding=rounding)
        self._compilable = compilable
        self.position = {node: k for k, node in enumerate(program.nodes())}
        self.growth = Growth(self.layouts)
        self.of: Mapping[Node, Region] = self.growth.of
        self._late = late_nodes(program)
        self._strided: set[Node] = set()  # operands that not every kernel can read
        self._padded: set[Node] = set()  # operands that only kernels over rows can read
        self._private = Producers(
            program, self.layouts, compilable, lambda n: self._reduced_as(n) is RegionKind.COLUMNS,
            self._is_of_all,
        )  # fmt: skip
        self._reduced: dict[Node, list[Node]] = {}  # matrices, and reductions over rows of them
        for node in self.position:
            own = isinstance(node.op, Op) and not self.layouts.is_view(node)
            if own and node not in self._private.inner:
                self._take(node)

    def _take(self, node: Node) -> None:
        kind = node.op.kind if isinstance(node.op, Op) else OpKind.OTHER
        if kind is OpKind.LOOP:
            self._begin(RegionKind.LOOP, node)
        elif kind is OpKind.RESULT:
            self.growth.join(node, self.of[node.inputs[0]])
        elif kind is OpKind.COLLECTIVE:
            self._begin(RegionKind.COLLECTIVE, node)
        elif not self._compilable(node):
            self._begin(RegionKind.CALL, node)
        elif kind is OpKind.POINTWISE:
            self._take_pointwise(node)
        elif kind is OpKind.REDUCTION:
            self._take_reduction(node)
        elif kind is OpKind.CONTRACTION and self._is_gemm(node):
            self._begin(RegionKind.GEMM, node)
        elif kind in _ALONE:
            self._begin(_ALONE[kind], node, self._walked(node))
        else:
            self._begin(RegionKind.CALL, node)

    def _begin(self, kind: RegionKind, node: Node, shape: Any = None) -> Region:
        rows, columns = matrix_of(node.shape if shape is None else shape)
        region = Region(kind, rows, columns, [node])
        self.growth.begin(region)
        return region

    def _walked(self, node: Node) -> Any:
        """The shape that a kernel of one node walks over.

        For rows by number [outer, picks, inner], for matrices of a stack [outer, elements].
        """
        kind = node.op.kind if isinstance(node.op, Op) else OpKind.OTHER
        if isinstance(node.op, Op) and node.op.kernel is not None:
            return node.op.kernel.walked(node.shape, node.attributes)
        if kind is OpKind.LIBRARY and not _takes_whole(node):
            return (*node.shape[:-2], product(node.shape[-2:]))
        if kind not in (OpKind.GATHER, OpKind.SCATTER):
            return node.shape
        axis, picks = node.attributes["axis"], node.inputs[1].ndim
        own = picks if kind is OpKind.GATHER else 1
        outer, inner = node.shape[:axis], node.shape[axis + own :]
        between = node.inputs[1].shape if kind is OpKind.GATHER else ()
        return (*outer, *between, product(inner))

    # --- pointwise --------------------------------------------------------------------------------

    def _take_pointwise(self, node: Node) -> None:
        candidates = self._producers(node)
        if node in self._late:  # with what is late too
            late = {self.of.get(i) for i in node.inputs if i in self._late}
            candidates = [region for region in candidates if region in late]
        joined: Region | None = None
        for region in candidates:
            if joined is None:
                if self._fits(node, region):
                    self._join(node, region)
                    joined = region
            elif region is not joined:
                joined = self.merge(joined, region) or joined
        if joined is None:
            region = self._begin(RegionKind.ROWS, node)
            if not self._readable(node, region):
                region.kind = RegionKind.CALL

    def _producers(self, node: Node) -> list[Region]:
        """The regions of a node's operands, latest first, each once."""
        bases = [self.layouts.bases[i] for i in node.inputs]
        found = dict.fromkeys(self.of[b] for b in reversed(bases) if b in self.of)
        # a region that walks over this very matrix before one to which the node is a number of a row
        return sorted(found, key=lambda r: not is_same_matrix(r.domain, matrix_of(node.shape)))

    def _fits(self, node: Node, region: Region) -> bool:
        """Whether `node` can be computed in `region`."""
        if region.kind in ALONE:
            return False
        if not self._is_element(node, region) and not self._is_number(node, region):
            return False
        if not self._readable(node, region) or self._comes_between(node, region):
            return False
        streams = self.growth.streams_with(node, region)
        short = self.growth.is_short_with(node, region)
        return len(streams) < _MOST_OPERANDS and short and self.growth.walks_once_with(node, region)

    def _is_element(self, node: Node, region: Region) -> bool:
        """Whether the node has a value for each element of the region's matrix."""
        return is_same_matrix(matrix_of(node.shape), region.domain)

    def _is_number(self, node: Node, region: Region) -> bool:
        """Whether the node has a value for each row of the region's matrix, made from its reductions."""
        shapes = (region.rows, (*region.rows, 1))
        if region.kind is not RegionKind.ROWS or node.shape not in shapes:
            return False
        return any(self.layouts.bases[i] in region.numbers for i in node.inputs)

    def _readable(self, node: Node, region: Region) -> bool:
        """Whether the kernel can walk over every operand of the node."""
        element = self._is_element(node, region)
        walked = matrix_of(node.shape) if element else region.domain
        return all(self._reads(i, element, region, walked) for i in node.inputs)

    def _reads(self, operand: Node, by_element: bool, region: Region, walked: Any) -> bool:
        base = self.layouts.bases[operand]
        if self.of.get(base) is region:
            return self._reads_register(operand, by_element, region)
        if not by_element:
            return self.layouts.number(operand, region.rows) is not None
        spread = self.layouts.spread(operand, *walked)
        if spread == PADDED:
            self._padded.add(operand)
            return region.kind is RegionKind.ROWS
        if spread in (STRIDED, STRIDED_COLUMN):
            self._strided.add(operand)
            return region.kind in _BY_STRIDES
        if region.kind is RegionKind.COLUMNS and spread == COLUMN:
            return False  # a number for each matrix of a stack
        return spread == SCALAR if region.kind is RegionKind.RANDOM else spread is not None

    def _reads_register(self, operand: Node, by_element: bool, region: Region) -> bool:
        """Whether the kernel can take an operand from where it computed it."""
        if not self.layouts.is_whole(operand):
            return False
        if self.layouts.bases[operand] in region.numbers and region.kind is RegionKind.ROWS:
            own = operand.shape == (*region.rows, 1) or not operand.shape
            return own or (not by_element and operand.shape == region.rows)
        return by_element and self._is_element(operand, region)

    def _join(self, node: Node, region: Region) -> None:
        self.growth.join(node, region)
        if not self._is_element(node, region):
            region.numbers.add(node)

    # --- reductions and contractions --------------------------------------------------------------

    def _take_reduction(self, node: Node) -> None:
        source, kind = node.inputs[0], self._reduced_as(node)
        if kind is RegionKind.CALL:
            self._begin(RegionKind.CALL, node)
        elif kind is RegionKind.COLUMNS:
            self._take_column_reduction(node)
        elif node.attributes["axis"] == (source.ndim - 1,):
            self._take_row_reduction(node, source)
        else:
            made = self._private.of(node)
            first, *rest = (*made, node)
            region = self._begin(RegionKind.ROWS, first, (product(source.shape),))
            for member in rest:
                self.growth.join(member, region)
            region.elements.update(made)
            region.numbers.add(node)

    def _reduced_as(self, node: Node) -> RegionKind:
        """What kind of region a reduction is for."""
        source, axes = node.inputs[0], node.attributes.get("axis")
        known = (*COMBINED, DEVIATIONS) if reduces_rows(node) else COMBINED
        if combined_by(node) not in known or not isinstance(axes, tuple) or not axes:
            return RegionKind.CALL
        if combined_by(node) in CHOOSING and any(source.shape[a] == 0 for a in axes):
            return RegionKind.CALL  # which says that there is nothing to choose from
        if axes == (source.ndim - 1,) or self._is_single(source, axes):
            return RegionKind.ROWS
        down = axes in (tuple(range(source.ndim - 1)), (source.ndim - 2,))
        return (
            RegionKind.COLUMNS
            if down and is_walked(axes, source, self.layouts)
            else RegionKind.CALL
        )

    def _is_of_all(self, node: Node) -> bool:
        """Whether a reduction of several axes walks over all elements as one row."""
        alone = node.attributes.get("axis") == (node.inputs[0].ndim - 1,)
        return not alone and self._reduced_as(node) is RegionKind.ROWS

    def _take_column_reduction(self, node: Node) -> None:
        """With what is made for it only; in a region that reads the same matrix already, if there is one."""
        source, made = node.inputs[0], self._private.of(node)
        first, *rest = (*made, node)
        region = self._reading_the_same(node, made)
        if region is None:
            leading = () if reduces_rows(node) else source.shape[:-2]
            region = self._begin(RegionKind.COLUMNS, first, (*leading, source.shape[-1]))
        else:
            self.growth.join(first, region)
        region.elements.update(made)
        for member in rest:
            self.growth.join(member, region)
        if reduces_rows(node):
            for base in self._private.streams(node):
                self._reduced.setdefault(base, []).append(node)

    def _reading_the_same(self, node: Node, made: list[Node]) -> Region | None:
        """A region that reduces over the rows of a matrix that this reduction reads too, and may join."""
        if not reduces_rows(node):
            return None
        streams, shape = self._private.streams(node), node.inputs[0].shape
        inputs = {self.layouts.bases[i] for member in (*made, node) for i in member.inputs}
        needed = {self.of[base] for base in inputs - set(made) if base in self.of}
        for other in dict.fromkeys(r for base in streams for r in self._reduced.get(base, ())):
            region = self.of[other]
            members = [n for n in region.nodes if reduces_rows(n)]
            read = {base for n in members for base in self._private.streams(n)}
            fits = (
                is_same_matrix(matrix_of(other.inputs[0].shape), matrix_of(shape))
                and len(read | streams) <= MOST_STREAMS
                and len(members) < _MOST_REDUCTIONS
                and region not in needed
                and not any(self.growth.order.reaches(r, {region}) for r in needed)
            )
            if fits:
                return region
        return None

    def _is_single(self, source: Node, axes: tuple[int, ...]) -> bool:
        """Whether a reduction gives a single number, of elements that lie one after the other."""
        kept = [size for axis, size in enumerate(source.shape) if axis not in axes]
        flags = self.layouts.arrays[source].flags
        return all(size == 1 for size in kept) and bool(flags.c_contiguous)

    def _take_row_reduction(self, node: Node, source: Node) -> None:
        base = self.layouts.bases[source]
        region = self.of.get(base)
        fits = (
            region is not None
            and region.kind is RegionKind.ROWS
            and region.domain == matrix_of(source.shape)
            and base not in region.numbers
            and self.layouts.is_whole(source)
            and self.growth.is_short_with(node, region)
            and self.growth.walks_once_with(node, region)
        )
        if region is None or not fits:
            if source in self.layouts.padded:
                self._padded.add(source)
            readable = self.layouts.spread(source, *matrix_of(source.shape)) is not None
            kind = RegionKind.ROWS if readable else RegionKind.CALL
            self._begin(kind, node, source.shape).numbers.add(node)
        else:
            self.growth.join(node, region)
            region.numbers.add(node)

    def _is_gemm(self, node: Node) -> bool:
        """Whether it is a product of matrices, or stacks of them, with contiguous rows or columns."""
        return is_product(node) and all(map(self.layouts.is_factor, node.inputs))

    # --- merging ----------------------------------------------------------------------------------

    def _merged(self, one: Region, other: Region) -> Region | None:
        """What two regions become as one; None where they cannot be one kernel."""
        kinds = [one.kind, other.kind]
        apart = RegionKind.RANDOM in kinds or any(kind in ALONE for kind in kinds)
        if not is_same_matrix(one.domain, other.domain) or apart or RegionKind.ROWS not in kinds:
            return None
        if one.domain != other.domain and (one.numbers or other.numbers):
            return None  # whose shapes are those of the rows
        if kinds.count(RegionKind.ROWS) < 2 and (one.numbers or other.numbers):
            return None
        special = other if one.kind is RegionKind.ROWS else one
        nodes = sorted([*one.nodes, *other.nodes], key=self.position.__getitem__)
        rows = special.rows if special.kind is RegionKind.COLUMNS else one.rows
        merged = Region(
            special.kind,
            rows,
            one.columns,
            nodes,
            one.numbers | other.numbers,
            one.elements | other.elements,
        )
        own = set() if merged.kind in _BY_STRIDES else self._strided
        own = own if merged.kind is RegionKind.ROWS else own | self._padded
        if own and any(operand in own for node in nodes for operand in node.inputs):
            return None
        if merged.kind is RegionKind.COLUMNS and not all(
            map(partial(self._follows, merged), nodes)
        ):
            return None
        inside = {one, other}
        streams = self.growth.streams_of_both(merged, one, other)
        if len(streams) > _MOST_OPERANDS or not self.growth.are_short(merged):
            return None
        around = (self.growth.order.needs[region] - inside for region in inside)
        if any(
            self.growth.order.reaches(outside, inside) for regions in around for outside in regions
        ):
            return None
        return merged if all(self._reads_inside(n, merged, inside) for n in nodes) else None

    def _follows(self, region: Region, node: Node) -> bool:
        """Whether a node of a region of columns is its reduction, or can be computed of its results."""
        pointwise = isinstance(node.op, Op) and node.op.kind is OpKind.POINTWISE
        return not pointwise or node in region.elements or self._readable(node, region)

    def merge(self, one: Region, other: Region) -> Region | None:
        """Make one of two regions, if they can be one kernel."""
        merged = self._merged(one, other)
        if merged is not None:
            self.growth.replace(merged, one, other)
        return merged

    def gather_scalars(self, program: Program, ordered: list[Region]) -> None:
        """Make one of the regions of single numbers that are ready at the same time.

        Those that outputs need stay apart from the others, which may write variables.
        """
        needed: set[Region] = set()
        for region in reversed(ordered):
            outputs = any(self.of.get(self.layouts.bases[o]) is region for o in program.outputs)
            if outputs or region in needed:
                needed |= {region, *self.growth.order.needs[region]}
        depths: dict[Region, int] = {}
        groups: dict[tuple[bool, int], Region] = {}
        for region in ordered:
            depths[region] = max(
                (depths[r] + 1 for r in self.growth.order.needs[region]), default=0
            )
            if region.kind is RegionKind.ROWS and region.domain == matrix_of(()):
                key = (region in needed, depths[region])
                known = groups.get(key)
                groups[key] = (self.merge(known, region) if known else None) or region
                depths[groups[key]] = depths[region]

    def lengthen(self) -> None:
        """Make one row of matrices of a few columns that are only computed element by element.

        A row shorter than a vector takes as long as a whole one.
        """
        for region in set(self.of.values()):
            if region.kind is RegionKind.ROWS and _is_narrow(region) and not region.numbers:
                length = product((*region.rows, region.columns))
                if all(self._reads_run(n, region, length) for n in region.nodes):
                    region.rows, region.columns = (), length

    def _reads_run(self, node: Node, region: Region, length: Size) -> bool:
        """Whether all that a node reads from outside is a scalar, or lies in the order of its elements."""
        outside = (i for i in node.inputs if self.of.get(self.layouts.bases[i]) is not region)
        return all(
            self.layouts.is_run(i, (), length) or self.layouts.spread(i, *region.domain) == SCALAR
            for i in outside
        )

    def _reads_inside(self, node: Node, region: Region, inside: set[Region]) -> bool:
        """Whether a node can read what a merged kernel would have in registers."""
        op = node.op
        own = [i for i in node.inputs if self.of.get(self.layouts.bases[i]) in inside]
        if node in region.elements or (region.elements and is_reduction(node)):
            return region.elements.issuperset(self.layouts.bases[i] for i in own)  # and no result
        if isinstance(op, Op) and op.kind is OpKind.POINTWISE:
            element = self._is_element(node, region)
            return all(self._reads_register(i, element, region) for i in own)
        if region.kind is not RegionKind.ROWS:
            return not own  # a product, or a reduction over rows, needs all of its operand
        numbers = {self.layouts.bases[i] for i in own} & region.numbers
        return not numbers and all(self.layouts.is_whole(i) for i in own)

    def _comes_between(self, node: Node, region: Region) -> bool:
        """Whether an operand outside of the region depends on it."""
        bases = [self.layouts.bases[i] for i in node.inputs]
        outside = {self.of[b] for b in bases if b in self.of} - {region}
        return any(self.growth.order.reaches(r, {region}) for r in outside)


def _takes_whole(node: Node) -> bool:
    """Whether a library's function takes whole arrays."""
    return isinstance(node.op, Op) and node.op.library is not None and node.op.library.whole


def _is_narrow(region: Region) -> bool:
    return bool(region.rows) and is_below(region.columns, NARROW_ROW)


def fuse(
    program: Program, compilable: Callable[[Node], bool], *, rounding: bool = True
) -> tuple[list[Region], Layouts]:
    """The regions of a program in an order in which they can run, and how its values lie in memory.

    Args:
        program: what is compiled.
        compilable: whether compiled code can do a node: its dtypes and its formula are known.
        rounding: whether kernels round to half precision as they read.
    """
    fusion = Fusion(program, compilable, rounding)
    fusion.gather_scalars(program, _in_order(program, fusion))
    gather_beside(fusion, _in_order(program, fusion))
    fusion.lengthen()
    return _in_order(program, fusion), fusion.layouts


def _in_order(program: Program, fusion: Fusion) -> list[Region]:
    ordered: list[Region] = []
    placed: set[Region] = set()
    for node in program.nodes():
        if node in fusion.of:
            _place(fusion.of[node], fusion, placed, ordered)
    return ordered


def _place(region: Region, fusion: Fusion, placed: set[Region], ordered: list[Region]) -> None:
    """Put a region after all that it needs."""
    stack = [(region, False)]
    while stack:
        one, ready = stack.pop()
        if ready:
            ordered.append(one)
        elif one not in placed:
            placed.add(one)
            stack.append((one, True))
            needed = fusion.growth.order.needs[one]
            order = sorted(needed, key=lambda r: fusion.position[r.nodes[0]], reverse=True)
            stack.extend((r, False) for r in order if r not in placed)
