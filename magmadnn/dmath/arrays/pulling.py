"""Changes of layout by copies that the receiving workers make of the others' memory: nothing is packed that
needs no cast, and on GPUs the multiprocessors stay free.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from magmadnn.dmath.arrays.casting import cast
from magmadnn.dmath.arrays.parts import Parts, empty
from magmadnn.dmath.arrays.replaying import run_phase
from magmadnn.dmath.arrays.team import Array, Peers, Team
from magmadnn.dmath.arrays.tracing import MESSAGE, span
from magmadnn.dmath.layouts.layout import Box, Layout, elements, even_cuts
from magmadnn.dmath.layouts.moves import Index, Move, schedules, traffic, within

_STRIPS = 4  # in which a cast and its copies alternate
_ALIGNED = 256  # bytes


def can_pull(x: Parts, dtype: np.dtype[Any], sent_as: np.dtype[Any]) -> bool:
    """Whether `pull` can bring an array as `dtype`; the same on all workers."""
    if x.team.peers is None or x.layout.partial or sent_as != dtype or not x.ndim:
        return False
    return x.dtype == dtype or dtype.itemsize < x.dtype.itemsize


def shared_blocks(x: Parts) -> list[dict[int, Array]]:
    """The blocks of each worker, by number, as arrays here; the workers tell each other where once.

    Collective.
    """
    peers, held = _peers(x), x.layout.held
    key = (x.view, x.layout)
    found = x.data.shared.get(key)
    if found is None:
        told = peers.share([x.blocks[n] for n in held[x.team.rank]])
        found = [dict(zip(held[w], told[w], strict=True)) for w in range(x.team.size)]
        x.data.shared[key] = found
    return found


def pull(x: Parts, target: Layout, dtype: np.dtype[Any], share: bool = False) -> Parts:
    """The array in another layout, and as a smaller dtype. Collective.

    Args:
        x: the array.
        target: the other layout.
        dtype: that of `x`, or a smaller one.
        share: whether the result may hold blocks of `x` itself.
    """
    if x.dtype != dtype:
        return _pull_cast(x, empty(x.team, target, dtype))
    peers = _peers(x)
    blocks = None if share else empty(x.team, target, dtype).blocks
    fetch = Fetch(x, target, blocks)

    def phase() -> None:
        peers.begin()
        fetch.copy(own=False)
        fetch.copy_own()
        peers.end()

    def key() -> Hashable:
        own = tuple(place(block) for block in fetch.blocks.values())
        return "pull", dtype, x.layout, target, share, own, places_of(x)

    run_phase(x.team, key, phase)
    return Parts(x.team, target, dtype, fetch.blocks)


class Step(NamedTuple):
    """A box that comes to this worker.

    Attributes:
        move: the box, from which block and to which.
        into: where it goes to in the block.
        piece: where it lies in the other one.
        far: the distance of the worker that has it.
    """

    move: Move
    into: Index
    piece: Index
    far: int


@dataclass(frozen=True)
class Arrivals:
    """What comes to a worker, found out once for two layouts.

    Attributes:
        steps: by block, those of near workers first; what is shared is not among them.
        shared: blocks that are, or are part of, own ones: the number of the block, of the own one, and where.
        first: of each block that has to be made a move to it, and its shape.
        far: of each block the greatest distance of a worker that has a part of it.
    """

    steps: dict[int, tuple[Step, ...]]
    shared: tuple[tuple[int, int, Index], ...]
    first: dict[int, tuple[Move, list[int]]]
    far: dict[int, int]


@lru_cache(maxsize=512)
def arrivals(
    source: Layout, target: Layout, rank: int, ring: tuple[int, ...], share: bool
) -> Arrivals:
    """What comes to worker `rank`; with `share` own blocks serve where they hold a whole one."""
    steps: dict[int, list[Step]] = {}
    shared, first = [], dict[int, tuple[Move, list[int]]]()
    place = ring.index(rank)
    far = {worker: (at - place) % len(ring) for at, worker in enumerate(ring)}
    coming = schedules(source, target)[rank].arrivals
    for move in sorted(coming, key=lambda move: far[move.source]):
        box = target.boxes[move.put]
        piece = within(move.box, source.boxes[move.taken])
        if share and move.source == rank and move.box == box:
            shared.append((move.put, move.taken, piece))
            continue
        first.setdefault(move.put, (move, _shape(box)))
        step = Step(move, within(move.box, box), piece, far[move.source])
        steps.setdefault(move.put, []).append(step)
    greatest = {put: max(step.far for step in one) for put, one in steps.items()}
    fixed = {put: tuple(one) for put, one in steps.items()}
    return Arrivals(fixed, tuple(shared), first, greatest)


@lru_cache(maxsize=512)
def own_elements(source: Layout, target: Layout, worker: int) -> int:
    """Elements that a worker copies within its own memory where its blocks do not serve as they lie."""
    found = arrivals(source, target, worker, tuple(range(source.workers)), True)
    own = [step.move for one in found.steps.values() for step in one if step.move.source == worker]
    return sum(elements(move.box) for move in own)


class Arena:
    """Memory of which arrays are made that live and end together.

    Args:
        team: this worker.
        nbytes: in all; see `arena_bytes`.

    Attributes:
        memory: all of it.
        taken: bytes of it that arrays have been made of, from its beginning.
    """

    def __init__(self, team: Team, nbytes: int) -> None:
        self.memory, self.taken = team.xp.empty(nbytes, np.uint8), 0

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """A new array, whose elements are not set yet."""
        size = prod(shape) * dtype.itemsize
        made = self.memory[self.taken : self.taken + size].view(dtype).reshape(shape)
        self.taken += aligned(size)
        return made


def arena_bytes(x: Parts, layout: Layout) -> int:
    """Bytes that `Fetch` takes of an `Arena` where blocks of `x` itself may serve."""
    return _arena_bytes(x.layout, layout, x.team.rank, x.team.ring, x.dtype.itemsize)


@lru_cache(maxsize=512)
def _arena_bytes(
    source: Layout, target: Layout, rank: int, ring: tuple[int, ...], itemsize: int
) -> int:
    first = arrivals(source, target, rank, ring, True).first
    return sum(aligned(prod(shape) * itemsize) for _, shape in first.values())


def like(
    source: Array, shape: Sequence[int], dtype: np.dtype[Any], make: Callable[..., Array]
) -> Array:
    """A new array whose elements lie in the order of those of another: copy engines do not transpose."""
    turned = source.ndim == 2 and source.strides[0] < source.strides[1]
    made = make(shape[::-1] if turned else shape, dtype)
    return made.T if turned else made


def aligned(size: int) -> int:
    """Bytes of an arena that an array of so many takes."""
    return -(-size // _ALIGNED) * _ALIGNED


def places_of(x: Parts) -> tuple[Any, ...]:
    """Where the blocks of all workers lie here, and in which order their elements, as a value. Collective
    as `shared_blocks` is.
    """
    key = (x.view, x.layout)
    found = x.data.places.get(key)
    if found is None:
        found = tuple(place(block) for one in shared_blocks(x) for block in one.values())
        x.data.places[key] = found
    return found


def place(array: Array) -> tuple[int, tuple[int, ...]]:
    """Where an array's first element lies, and the steps to the others."""
    at = array.ctypes.data if type(array) is np.ndarray else array.data.ptr
    return int(at), array.strides


class Fetch:
    """Blocks of an array in another layout, which come by copies.

    Args:
        x: the array.
        layout: the other layout.
        blocks: what is filled; None for new arrays, or (parts of) blocks of `x` itself where they serve.
        arena: of which new arrays are made.
    """

    def __init__(
        self,
        x: Parts,
        layout: Layout,
        blocks: dict[int, Array] | None = None,
        arena: Arena | None = None,
    ) -> None:
        self.layout, self._x, self._arena = layout, x, arena
        self._from = shared_blocks(x)
        self._plan = arrivals(x.layout, layout, x.team.rank, x.team.ring, blocks is None)
        self.blocks: dict[int, Array] = {} if blocks is None else blocks
        if blocks is None:
            for put, taken, part in self._plan.shared:
                self.blocks[put] = x.blocks[taken][part]
            for put, (move, shape) in self._plan.first.items():
                self.blocks[put] = self._like(move, shape)

    def _like(self, move: Move, shape: list[int]) -> Array:
        """A new block whose elements lie in the order of those that come."""
        make = self._x.team.xp.empty if self._arena is None else self._arena.array
        return like(self._from[move.source][move.taken], shape, self._x.dtype, make)

    def is_own(self, block: int) -> bool:
        """Whether a block is, or is part of, one of the array's own."""
        return any(put == block for put, _, _ in self._plan.shared)

    def pieces(self, layout: Layout) -> tuple[Fetch, dict[int, Array], list[int]]:
        """Blocks of a layout that is cut more often, within these.

        Returns:
            What brings them; own ones as they lie; and which of those are not within an own block, so that
            they have to be copied for it to be whole.
        """
        rank, views, missing = self._x.team.rank, dict[int, Array](), list[int]()
        found = arrivals(self._x.layout, layout, rank, self._x.team.ring, True)
        own = {put: self._x.blocks[taken][part] for put, taken, part in found.shared}
        for whole in self.layout.held[rank]:
            outer = self.layout.boxes[whole]
            for n in layout.held[rank]:
                box = layout.boxes[n]
                if all(o[0] <= i[0] and i[1] <= o[1] for o, i in zip(outer, box, strict=True)):
                    views[n] = self.blocks[whole][within(box, outer)]
                    missing += [n] if n in own and not self.is_own(whole) else []
        return Fetch(self._x, layout, views), own, missing

    def farthest(self, block: int) -> int | None:
        """The greatest distance of a worker that has a part of a block; None if the block is there."""
        return self._plan.far.get(block)

    def copy_own(self) -> None:
        """Copy what this worker has itself, on the current stream, beside what comes from others."""
        rank = self._x.team.rank
        for put, steps in self._plan.steps.items():
            for move, into, piece, _ in steps:
                if move.source == rank:
                    self.blocks[put][into] = self._from[rank][move.taken][piece]

    def copy(
        self, block: int | None = None, piece: tuple[int, int] | None = None, own: bool = True,
        axis: int = -1,
    ) -> None:  # fmt: skip
        """Begin to copy a block, or all.

        Args:
            block: number of the block; None for all.
            piece: first index and the one after the last along `axis`, of the whole array; None for all.
            own: whether what this worker has itself is copied too; else `copy_own` does that.
            axis: of the piece.
        """
        team = self._x.team
        for put in self._plan.steps if block is None else (block,):
            for move, into, there, _ in self._plan.steps.get(put, ()):
                if not own and move.source == team.rank:
                    continue
                if piece is not None:
                    box = _clipped(move.box, piece, axis % self._x.ndim)
                    if not elements(box):
                        continue
                    into = within(box, self.layout.boxes[put])
                    there = within(box, self._x.layout.boxes[move.taken])
                source = self._from[move.source][move.taken][there]
                copied(team, self.blocks[put][into], source, move.source)


def copied(team: Team, into: Array, piece: Array, source: int) -> None:
    """Begin to copy what a worker has, counted where that is another one; a span of the trace, if there is
    one.
    """
    peers = team.peers
    assert peers is not None
    if source != team.rank:
        team.count.sent_bytes += piece.nbytes
        team.count.messages += 1
    if team.trace is None:
        peers.copy(into, piece)
        return
    with span(team, MESSAGE, f"{piece.nbytes} bytes from {source}", copies=True):
        peers.copy(into, piece)


def _pull_cast(x: Parts, made: Parts) -> Parts:
    """To a smaller dtype."""
    buffers = _cast_buffers(x, made.layout, made.dtype)

    def key() -> Hashable:
        near = tuple(place(block) for one in (x, made) for block in one.blocks.values())
        sent = tuple(place(buffer) for one in buffers[1] for buffer in one)
        return "cast", x.dtype, made.dtype, x.layout, made.layout, near, sent

    run_phase(x.team, key, lambda: _cast_and_pull(x, made, *buffers))
    return made


def _cast_and_pull(x: Parts, made: Parts, mine: list[Array], everyone: list[list[Array]]) -> None:
    """What others take is cast strip by strip, and they copy one strip meanwhile."""
    team, peers, target = x.team, _peers(x), made.layout
    plans = schedules(x.layout, target)
    own = [move for to in plans[team.rank].sends for move in to]
    for strip in range(_STRIPS):
        for buffer, move in zip(mine, own, strict=True):
            rows = _strip(buffer, strip)
            piece = x.blocks[move.taken][within(move.box, x.layout.boxes[move.taken])]
            cast(team.xp, buffer[rows], piece[rows])
        peers.begin()
        for source, move, number in _incoming(x, target):
            into = made.blocks[move.put][within(move.box, target.boxes[move.put])]
            came = everyone[source][number]
            rows = _strip(came, strip)
            copied(team, into[rows], came[rows], source)
    for move in plans[team.rank].arrivals:
        if move.source == team.rank:
            into = made.blocks[move.put][within(move.box, target.boxes[move.put])]
            own_piece = x.blocks[move.taken][within(move.box, x.layout.boxes[move.taken])]
            cast(team.xp, into, own_piece)
    peers.end()


def _cast_buffers(
    x: Parts, target: Layout, dtype: np.dtype[Any]
) -> tuple[list[Array], list[list[Array]]]:
    """Where casts for others go, and all workers' such buffers. Collective."""
    sends = schedules(x.layout, target)[x.team.rank].sends
    most = int(traffic(x.layout, target).sum(axis=1).max()) * dtype.itemsize

    def make() -> list[Array]:
        return [x.team.xp.empty(_shape(move.box), dtype) for to in sends for move in to]

    return x.team.shared_buffers(("cast", x.layout, target, dtype), most, make)


def _incoming(x: Parts, target: Layout) -> Iterator[tuple[int, Move, int]]:
    """Who sends this worker something, each move, and its number among all that the sender gives."""
    plans, rank, ring = schedules(x.layout, target), x.team.rank, x.team.ring
    for step in range(1, x.team.size):  # not all from the same worker at first
        source = ring[(ring.index(rank) + step) % x.team.size]
        before = sum(len(to) for to in plans[source].sends[:rank])
        for number, move in enumerate(plans[source].sends[rank]):
            yield source, move, before + number


def _strip(array: Array, number: int) -> slice:
    cuts = even_cuts(array.shape[0], _STRIPS)
    return slice(cuts[number], cuts[number + 1])


def _shape(box: Box) -> list[int]:
    return [high - low for low, high in box]


def _clipped(box: Box, piece: tuple[int, int], axis: int) -> Box:
    low, high = max(box[axis][0], piece[0]), min(box[axis][1], piece[1])
    return (*box[:axis], (low, max(low, high)), *box[axis + 1 :])


def _peers(x: Parts) -> Peers:
    assert x.team.peers is not None
    return x.team.peers
