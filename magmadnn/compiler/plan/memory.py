"""plan_memory: where the values of a native plan lie in one piece of memory, for given sizes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from operator import itemgetter

from magmadnn.compiler.lower.row_blocks import partial_bytes
from magmadnn.compiler.regions.draft import Places, Sizes
from magmadnn.compiler.regions.open_sizes import check_choices
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import Node

from .arena import Arena, Life, bytes_alive
from .native_plan import NativePlan
from .verify_memory import verify_memory

_ALIGNMENT = 64  # of every value, as kernels read whole vectors
# From so many bytes on places by size are tried, where these are so many times what is alive at once.
_LARGE, _WASTE = 1 << 28, 1.05
_MOST_BY_SIZE = 500  # values: the time grows with the square of their number
_KEPT = 4  # arenas of a plan: what asks how large one is comes before what lays it out


def arena_of(plan: NativePlan, sizes: Mapping[str, int]) -> Arena:
    """Places of all values; memory is used again in the phase after its last reader's.

    Raises:
        GraphError: if a check of them fails.
        ShapeError: for a maximum or minimum of no elements.
    """
    kept, key = plan.arenas, tuple(sorted(sizes.items()))
    if key in kept:
        return kept[key]
    check_choices(plan.choices, sizes)
    found = _of_alike(plan, key)
    if found is None:
        found = _laid_out(plan, sizes)
        _note_for_alike(plan, key, found)
    if plan.verified:
        owners = {node: plan.owner(node) for node in plan.layouts.bases}
        verify_memory(found.lives, plan.work, owners, name="plan_memory", rooms=found.rooms)
    while len(kept) >= _KEPT:
        kept.pop(next(iter(kept)), None)
    kept[key] = found
    return found


def _of_alike(plan: NativePlan, key: Sizes) -> Arena | None:
    """The places that the values of a plan that is alike have; None where nobody noted them."""
    note = None if plan.alike is None else plan.alike.places.get(key)
    if note is None:
        return None
    nodes = plan.program.nodes()
    lives = [Life(nodes[number], *place) for number, *place in note.places]
    return Arena(tuple(lives[: note.lives]), note.nbytes, note.apart, tuple(lives[note.lives :]))


def _note_for_alike(plan: NativePlan, key: Sizes, arena: Arena) -> None:
    """Note the places by numbers of nodes, so that no value of this plan is kept alive."""
    if plan.alike is None or not plan.alike.has_others:
        return
    order = {node: number for number, node in enumerate(plan.program.nodes())}
    places = tuple(
        (order[life.node], life.start, life.nbytes, life.first, life.last)
        for life in (*arena.lives, *arena.rooms)
    )
    kept = plan.alike.places
    while len(kept) >= _KEPT:
        kept.pop(next(iter(kept)), None)
    kept[key] = Places(places, len(arena.lives), arena.nbytes, arena.apart)


def _laid_out(plan: NativePlan, sizes: Mapping[str, int]) -> Arena:
    last = plan.last_phases
    lives: list[Life] = []
    rooms: list[Life] = []
    alive: list[tuple[int, int, int]] = []  # last phase, start and room of values, as a heap
    free, known = _Free(), set[Node]()
    coming = deque((work, n) for work in plan.work if (n := partial_bytes(work, sizes)))
    for work in plan.work:  # in the order of phases
        while alive and alive[0][0] < work.phase:
            free.give(*heappop(alive)[1:])
        # A phase early, apart from what the step before still reads: a device may make them one.
        while coming and coming[0][0].phase <= work.phase + 1:
            one, nbytes = coming.popleft()
            start = free.take(_room(nbytes))
            first = min(work.phase, one.phase)
            rooms.append(Life(one.needed[0], start, nbytes, first, one.phase))
            heappush(alive, (one.phase, start, _room(nbytes)))
        for node in dict.fromkeys(map(plan.owner, work.placed)):
            if node in plan.in_place or node in known:  # by what is computed inside of it
                continue
            known.add(node)
            nbytes = nbytes_of(node, sizes)
            start = free.take(_room(nbytes))
            life = Life(node, start, nbytes, work.phase, last.get(node, work.phase))
            lives.append(life)
            heappush(alive, (life.last, start, _room(nbytes)))
    taken = [*lives, *rooms]
    end = _end_of(taken)
    if end > _LARGE and len(taken) <= _MOST_BY_SIZE and end > _WASTE * max(bytes_alive(taken)):
        packed = by_size(taken)
        taken, end = min((taken, end), (packed, _end_of(packed)), key=itemgetter(1))
        lives, rooms = taken[: len(lives)], taken[len(lives) :]
    apart = sum(_room(life.nbytes) for life in taken)
    return Arena(tuple(lives), end, apart, tuple(rooms))


def by_size(lives: Sequence[Life]) -> list[Life]:
    """The same with other places: the largest first, each at the lowest that is free while it lives.

    Most often less memory than with places in the order of computation, in a time that grows with the square
    of their number.
    """
    placed: dict[int, Life] = {}
    for number in sorted(range(len(lives)), key=lambda k: -lives[k].nbytes):
        life, start = lives[number], 0
        beside = (p for p in placed.values() if p.first <= life.last and life.first <= p.last)
        for other in sorted(beside, key=lambda p: p.start):
            if other.start - start >= _room(life.nbytes):
                break
            start = max(start, other.start + _room(other.nbytes))
        placed[number] = replace(life, start=start)
    return [placed[number] for number in range(len(lives))]


def _end_of(lives: Iterable[Life]) -> int:
    return max((life.start + _room(life.nbytes) for life in lives), default=0)


def nbytes_of(node: Node, sizes: Mapping[str, int]) -> int:
    """Bytes of a value, for sizes that are known."""
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
