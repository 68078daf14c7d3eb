"""plan_memory: where the values of a native plan lie in one piece of memory, for given sizes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from magmadnn.compiler.lower.row_blocks import partial_bytes
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import Node

if TYPE_CHECKING:
    from .native_plan import NativePlan

_ALIGNMENT = 64  # of every value, as kernels read whole vectors


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
            f"{room.start:12} {room.nbytes:12} bytes  phase {room.first}  partial results of "
            f"{room.node.label}"
            for room in self.rooms
        ]
        saved = self.apart - self.nbytes
        lines.append(f"# arena of {self.nbytes} bytes; {saved} fewer than if nothing were shared")
        return "\n".join(lines)


def arena_of(plan: NativePlan, sizes: Mapping[str, int]) -> Arena:
    """Places of all values; memory is used again in the phase after its last reader's."""
    last = _last_phases(plan)
    lives: list[Life] = []
    rooms: list[Life] = []
    alive: list[tuple[int, int, int]] = []  # last phase, start and room of values, as a heap
    free = _Free()
    for work in plan.work:  # in the order of phases
        while alive and alive[0][0] < work.phase:
            free.give(*heappop(alive)[1:])
        for node in work.placed:
            if node in plan.in_place:
                continue
            nbytes = _nbytes(node, sizes)
            start = free.take(_room(nbytes))
            life = Life(node, start, nbytes, work.phase, last.get(node, work.phase))
            lives.append(life)
            heappush(alive, (life.last, start, _room(nbytes)))
        if nbytes := partial_bytes(work, sizes):
            start = free.take(_room(nbytes))
            rooms.append(Life(work.needed[0], start, nbytes, work.phase, work.phase))
            heappush(alive, (work.phase, start, _room(nbytes)))
    taken = (*lives, *rooms)
    end = max((life.start + _room(life.nbytes) for life in taken), default=0)
    apart = sum(_room(life.nbytes) for life in taken)
    return Arena(tuple(lives), end, apart, tuple(rooms))


def _nbytes(node: Node, sizes: Mapping[str, int]) -> int:
    return math.prod(bind_shape(node.shape, sizes)) * node.dtype.itemsize


def _room(nbytes: int) -> int:
    """What a value takes; an empty one has a place of its own all the same."""
    return -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT


class _Free:
    """Stretches of memory that no value lies in, in order; the last has no end."""

    def __init__(self) -> None:
        self._starts: list[float] = [0]
        self._ends: list[float] = [math.inf]

    def take(self, room: int) -> int:
        """The start of the first stretch with so many bytes, which are taken from it."""
        number = next(
            k
            for k, (a, b) in enumerate(zip(self._starts, self._ends, strict=True))
            if b - a >= room
        )
        start = int(self._starts[number])
        self._starts[number] += room
        if self._starts[number] == self._ends[number]:
            del self._starts[number], self._ends[number]
        return start

    def give(self, start: int, room: int) -> None:
        """So many bytes from there are free again; with free neighbours they are one stretch."""
        number = bisect_left(self._starts, start)
        self._starts.insert(number, start)
        self._ends.insert(number, start + room)
        for left in (number, number - 1):
            if left >= 0 and self._ends[left] == self._starts[left + 1]:
                del self._ends[left], self._starts[left + 1]


def _last_phases(plan: NativePlan) -> dict[Node, int]:
    """The last phase that reads each stored value; what is wanted at the end is never given up."""
    bases = plan.layouts.bases
    last: dict[Node, int] = {}
    for work in plan.work:  # in the order of phases
        for node in work.region.nodes:
            for operand in node.inputs:
                last[bases[operand]] = work.phase
    for root in plan.program.roots:
        last[bases[root]] = len(plan.work)
    return last
