"""A call among the GPUs of several processes, as a node of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

Kind = Literal["sum", "gather", "scatter", "exchange", "move"]

# kind: elements of a call, and what each rank has afterwards
KINDS: Final = {
    "sum": "the sum of all ranks' n elements",
    "gather": "the n elements of all ranks, one after the other",
    "scatter": "its n elements of the sum of all ranks' P n",
    "exchange": "of the P n elements of each rank the n that are for it, one after the other",
    "move": "rows of n elements that others send it, as a table of the group says",
}


class OwnKernel(NamedTuple):
    """A launch of a kernel of this package that does a call.

    Attributes:
        function: CUDA's.
        grid: blocks,
        block: and threads of each.
        arguments: 8 bytes each.
    """

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[int, ...]


class Gpus(Protocol):
    """GPUs that call each other, one of each of some ranks.

    Attributes:
        size: how many there are.
    """

    size: int

    def can_add(self, dtype: str, stored: str) -> bool:
        """Whether elements of a dtype can be added up in one call and stored as another; all ranks ask."""
        ...

    def prepare(self, kind: Kind, count: int, dtype: str, stored: str) -> None:
        """Make all that a call of so many elements wants, before one is captured; all ranks call it."""
        ...

    def own_kernel(
        self, kind: Kind, source: int, result: int, count: int, dtype: str, stored: str
    ) -> OwnKernel | None:
        """The kernel that does a call which is prepared; None where it is a library's."""
        ...

    def call_on(
        self, stream: int, kind: Kind, source: int, result: int, count: int, dtype: str, stored: str
    ) -> None:
        """Give a stream the call on arrays that lie at `source` on each of the GPUs."""
        ...


@dataclass(frozen=True)
class AmongNode:
    """A call of all GPUs of a group.

    Nodes of a group come one after the other, in one order on all ranks: see `CALLS_IN_ORDER`.

    Attributes:
        gpus: the group.
        kind: what each of them gets.
        count, dtype: elements, as `KINDS` counts them.
        source: address of this GPU's array.
        result: address of what it gets.
        stored: the dtype of that; another one for sums alone, and what `can_add` knows.
        workspace: 0: the library has its own.
        after: as for `KernelNode`.
    """

    gpus: Gpus
    kind: Kind
    count: int
    dtype: str
    source: int
    result: int
    stored: str
    workspace: int = 0
    after: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """What it computes, without addresses."""
        stored = "" if self.stored == self.dtype else f", stored as {self.stored},"
        return (
            f"library {self.kind} of {self.count} {self.dtype}{stored} over {self.gpus.size} GPUs"
        )

    @property
    def addresses(self) -> tuple[int, ...]:
        """All memory that it is given."""
        return (self.source, self.result)
