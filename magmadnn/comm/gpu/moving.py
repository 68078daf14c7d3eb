"""Rows that go from GPU to GPU as a table says, within graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from magmadnn.backends.cuda.nodes.among_gpus import Kind, OwnKernel

Moves = tuple[tuple[int, int, int, int, int], ...]
"""Rank that has rows, the first of them and the one behind the last, rank that gets them, its first row."""


class MovingGpus(Protocol):
    """GPUs that send rows to each other: one of each rank of a group.

    Attributes:
        size: how many ranks there are.
    """

    size: int

    def prepare_moves(self, moves: Moves, count: int, dtype: str) -> None:
        """Make all that calls with rows of `count` elements want, before one is captured.

        All ranks call it.
        """
        ...

    def move_on(
        self, stream: int, moves: Moves, source: int, result: int, count: int, dtype: str
    ) -> None:
        """Give a stream the messages that this rank sends and gets.

        Args:
            stream: CUDA's.
            moves: which rows go where.
            source: address of the rows that this rank has.
            result: address of those that it gets.
            count: elements of a row.
            dtype: of these.
        """
        ...


@dataclass(frozen=True)
class Moving:
    """GPUs of which some send rows to others: a group as nodes of graphs have it; see `Gpus`.

    Attributes:
        gpus: all of them.
        moves: which rows go where.
    """

    gpus: MovingGpus
    moves: Moves

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.gpus.size

    def can_add(self, dtype: str, stored: str) -> bool:
        """False for every dtype: rows are moved, and none are added up."""
        return False

    def prepare(self, kind: Kind, count: int, dtype: str, stored: str) -> None:
        """Make all that a call with rows of so many elements wants; all ranks call it."""
        self.gpus.prepare_moves(self.moves, count, dtype)

    def own_kernel(
        self, kind: Kind, source: int, result: int, count: int, dtype: str, stored: str
    ) -> OwnKernel | None:
        """None: rows are moved by NCCL, which is no kernel of our own."""
        return None

    def call_on(
        self, stream: int, kind: Kind, source: int, result: int, count: int, dtype: str, stored: str
    ) -> None:
        """Give a stream the messages of this rank; arguments as for `MovingGpus.move_on`."""
        self.gpus.move_on(stream, self.moves, source, result, count, dtype)
