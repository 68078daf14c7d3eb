"""A sum over the GPUs of several processes, as a node of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class SummingGpus(Protocol):
    """GPUs that add arrays up, one of each of some ranks.

    Attributes:
        size: how many there are.
    """

    size: int

    def prepare_sum(self, count: int, dtype: str) -> None:
        """Make all that a sum of so many elements wants, before one is captured; all ranks call it."""
        ...

    def sum_on(self, stream: int, source: int, result: int, count: int, dtype: str) -> None:
        """Give a stream the sum of the arrays that lie at `source` on each of the GPUs."""
        ...


@dataclass(frozen=True)
class SumNode:
    """The sum over all GPUs of a group, on each of them.

    Nodes of a group come one after the other, in one order on all ranks: see `SUMS_IN_ORDER`.

    Attributes:
        gpus: the group.
        count, dtype: elements.
        source: address of this GPU's array.
        result: address of the sum.
        workspace: 0: the library has its own.
        after: as for `KernelNode`.
    """

    gpus: SummingGpus
    count: int
    dtype: str
    source: int
    result: int
    workspace: int = 0
    after: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """What it computes, without addresses."""
        return f"library sum of {self.count} {self.dtype} over {self.gpus.size} GPUs"

    @property
    def addresses(self) -> tuple[int, ...]:
        """All memory that it is given."""
        return (self.source, self.result)
