"""A call among the GPUs of several processes, as a node of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

Kind = Literal["sum", "gather", "scatter", "exchange"]

# kind: elements of a call, and what each rank has afterwards
KINDS: Final = {
    "sum": "the sum of all ranks' n elements",
    "gather": "the n elements of all ranks, one after the other",
    "scatter": "its n elements of the sum of all ranks' P n",
    "exchange": "of the P n elements of each rank the n that are for it, one after the other",
}


class Gpus(Protocol):
    """GPUs that call each other, one of each of some ranks.

    Attributes:
        size: how many there are.
    """

    size: int

    def prepare(self, kind: Kind, count: int, dtype: str) -> None:
        """Make all that a call of so many elements wants, before one is captured; all ranks call it."""
        ...

    def call_on(
        self, stream: int, kind: Kind, source: int, result: int, count: int, dtype: str
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
        workspace: 0: the library has its own.
        after: as for `KernelNode`.
    """

    gpus: Gpus
    kind: Kind
    count: int
    dtype: str
    source: int
    result: int
    workspace: int = 0
    after: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """What it computes, without addresses."""
        return f"library {self.kind} of {self.count} {self.dtype} over {self.gpus.size} GPUs"

    @property
    def addresses(self) -> tuple[int, ...]:
        """All memory that it is given."""
        return (self.source, self.result)
