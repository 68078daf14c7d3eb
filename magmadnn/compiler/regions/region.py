"""Regions: groups of nodes that become one kernel; what a kernel computes in which walk over a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from magmadnn.compiler.formulas import is_contraction
from magmadnn.compiler.layout import Layouts
from magmadnn.graph.dim import product
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind


class RegionKind(Enum):
    """What kind of kernel a region becomes."""

    ROWS = (
        "rows"  # walks over the rows of a matrix: pointwise chains, reductions over the last axis
    )
    COLUMNS = "columns"  # reduces over the rows of a matrix, or of each of a stack of them
    GEMM = "gemm"  # a contraction, and what is done to its elements
    RANDOM = "random"  # draws random numbers, and computes from each of them alone
    MOVE = "move"  # a movement that is no view
    GATHER = "gather"  # rows by number
    SCATTER = "scatter"  # sums of rows by number
    OWN = "own kernel"  # of one op, whose record names it
    LIBRARY = "library"  # a library's function for each matrix of a stack
    LOOP = "loop"  # a plan of its own that runs once for each step
    COLLECTIVE = "collective"  # the NumPy function of an op on which other ranks wait
    CALL = "call"  # the NumPy function of one op


# What does not walk over a matrix element by element: nothing else joins it.
ALONE = (
    RegionKind.MOVE,
    RegionKind.GATHER,
    RegionKind.SCATTER,
    RegionKind.OWN,
    RegionKind.LIBRARY,
    RegionKind.LOOP,
    RegionKind.COLLECTIVE,
    RegionKind.CALL,
)
# What has no kernel: a loop is a plan of its own, the others are functions of NumPy.
BY_PYTHON = (RegionKind.CALL, RegionKind.LOOP, RegionKind.COLLECTIVE)


@dataclass(eq=False)
class Region:
    """Nodes that are computed together.

    Attributes:
        kind: what it becomes.
        rows: leading axes of the matrix that the kernel walks over (columns: of what it makes),
        columns: and its last axis.
        nodes: in order of computation.
        numbers: those of the nodes that are one value for each row.
        elements: of a region of columns: those that are computed for each element before it is reduced.
    """

    kind: RegionKind
    rows: tuple[Any, ...]
    columns: Any
    nodes: list[Node] = field(default_factory=list)
    numbers: set[Node] = field(default_factory=set)
    elements: set[Node] = field(default_factory=set)

    @property
    def domain(self) -> tuple[tuple[Any, ...], Any]:
        """The matrix: regions of one domain may become one."""
        return (self.rows, self.columns)

    @property
    def arrives(self) -> bool:
        """Whether it only waits for what another region has begun (`Op.arrives`)."""
        return self.kind is RegionKind.COLLECTIVE and bool(
            getattr(self.nodes[0].op, "arrives", False)
        )

    @property
    def read(self) -> list[Node]:
        """What its nodes read, each once; of a loop without the loop itself, of which it reads results."""
        read = dict.fromkeys(i for node in self.nodes for i in node.inputs)
        return [i for i in read if self.kind is not RegionKind.LOOP or i is not self.nodes[0]]

    def __str__(self) -> str:
        shape = ", ".join(map(str, (*self.rows, self.columns)))
        return f"{self.kind.value}[{shape}] {' '.join(n.label for n in self.nodes)}"


def matrix_of(shape: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """The leading axes and the last axis of a shape; a scalar is a matrix of one element."""
    return (shape[:-1], shape[-1]) if shape else ((), 1)


def is_same_matrix(one: tuple[tuple[Any, ...], Any], other: tuple[tuple[Any, ...], Any]) -> bool:
    """Whether two matrices have as many rows and columns, however their leading axes are divided."""
    alike = one[0] == other[0] or product(one[0]) == product(other[0])
    return bool(alike and one[1] == other[1])


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
