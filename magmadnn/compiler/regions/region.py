"""Regions: groups of nodes that become one kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from magmadnn.graph.dim import product
from magmadnn.graph.node import Node


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
