"""Places in memory of the values of a plan, for given sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from magmadnn.graph.node import Node


@dataclass(frozen=True)
class Life:
    """A value's place in memory and in time.

    Attributes:
        node: the value.
        start: its offset,
        nbytes: and how large it is.
        first: the phase in which it is computed,
        last: and the last in which it is read.
    """

    node: Node
    start: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """Lives of all values that a plan stores outside of variables.

    Attributes:
        lives: in the order of computation.
        rooms: places of partial results, each by a node of the step that makes and combines them.
        nbytes: size of the memory,
        apart: and what it would be if no two values shared any.
    """

    lives: tuple[Life, ...]
    nbytes: int
    apart: int
    rooms: tuple[Life, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{life.start:12} {life.nbytes:12} bytes  phases {life.first} to {life.last}  "
            f"{life.node.label}: {life.node.spec}"
            for life in self.lives
        ]
        lines += [
            f"{room.start:12} {room.nbytes:12} bytes  phase {room.last}  partial results of "
            f"{room.node.label}"
            for room in self.rooms
        ]
        saved = self.apart - self.nbytes
        lines.append(f"# arena of {self.nbytes} bytes; {saved} fewer than if nothing were shared")
        return "\n".join(lines)


def bytes_alive(lives: Sequence[Life]) -> list[int]:
    """How many bytes of values are alive in each phase, from phase 0 to the last in which one is."""
    changes = [0] * (max((life.last for life in lives), default=0) + 2)
    for life in lives:
        changes[life.first] += life.nbytes
        changes[life.last + 1] -= life.nbytes
    return list(accumulate(changes[:-1]))
