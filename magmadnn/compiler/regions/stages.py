"""What a region computes in which order: its product, its reductions, its walks over a row."""

from __future__ import annotations

from collections.abc import Mapping

from magmadnn.compiler.formulas import is_contraction
from magmadnn.compiler.layout import Layouts
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind

from .region import Region


def is_reduction(node: Node) -> bool:
    """Whether the node combines elements along axes."""
    return isinstance(node.op, Op) and node.op.kind is OpKind.REDUCTION


def combined_by(node: Node) -> str:
    """How a reduction combines elements; empty where that has no name."""
    return str(node.op.contracts or "") if isinstance(node.op, Op) else ""


def reduced_by(region: Region) -> Node:
    """A reduction of a region of columns: all of them reduce matrices of as many rows."""
    return next(n for n in region.nodes if is_reduction(n))


def product_of(region: Region) -> Node:
    """The contraction of a region of a matrix product."""
    return next(n for n in region.nodes if is_contraction(n))


def walk_length(region: Region, values: Mapping[str, int]) -> int:
    """Operations of a kernel of its own for each element that it walks over; `values`: of its slots."""
    op = region.nodes[0].op
    assert isinstance(op, Op) and op.kernel is not None
    return values[op.kernel.work] if op.kernel.work else 1


class Stages:
    """When each member of a region of rows is computed.

    An element that needs no reduction is of stage 0; a reduction is known after the stage in which its
    elements are; and so on.
    """

    def __init__(self, region: Region, layouts: Layouts) -> None:
        self.region, self.layouts = region, layouts
        self.stage: dict[Node, int] = {}  # of elements and of reductions: in which walk
        self.known: dict[Node, int] = {}  # of numbers: from which stage on
        for node in region.nodes:
            self._place(node)

    def _place(self, node: Node) -> None:
        bases = [self.layouts.bases[i] for i in node.inputs]
        first = max(
            [0]
            + [self.known[b] for b in bases if b in self.known]
            + [self.stage[b] for b in bases if b in self.stage and b not in self.known]
        )
        if is_reduction(node):
            self.stage[node], self.known[node] = first, first + 1
        elif node in self.region.numbers:
            self.known[node] = first
        else:
            self.stage[node] = first

    @property
    def count(self) -> int:
        """How many stages there are."""
        last = [*self.stage.values(), *(k - 1 for k in self.known.values()), 0]
        return max(last) + 1


def walks_of(region: Region, layouts: Layouts) -> dict[Node, int]:
    """In which walk over a row a region of rows computes each of its elements and reductions."""
    return Stages(region, layouts).stage
