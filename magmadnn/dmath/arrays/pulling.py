"""Changes of layout by copies that the receiving workers make of the others' memory: nothing is packed that
needs no cast, and on GPUs the multiprocessors stay free.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.casting import cast
from magmadnn.dmath.arrays.parts import Parts, empty
from magmadnn.dmath.arrays.team import Array, Peers, Team
from magmadnn.dmath.arrays.tracing import MESSAGE, span
from magmadnn.dmath.layouts.layout import Box, Layout, elements, even_cuts
from magmadnn.dmath.layouts.moves import Move, schedules, within

_STRIPS = 4  # in which a cast and its copies alternate


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
        found = peers.share([x.blocks[n] for n in held[x.team.rank]])
        x.data.shared[key] = found
    return [dict(zip(held[w], found[w], strict=True)) for w in range(x.team.size)]


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
    peers.begin()
    fetch.copy(own=False)
    fetch.copy_own()
    peers.end()
    return Parts(x.team, target, dtype, fetch.blocks)


class Fetch:
    """Blocks of an array in another layout, which come by copies.

    Args:
        x: the array.
        layout: the other layout.
        blocks: what is filled; None for new arrays, or (parts of) blocks of `x` itself where they serve.
    """

    def __init__(self, x: Parts, layout: Layout, blocks: dict[int, Array] | None = None) -> None:
        self.layout, self._x = layout, x
        self._from = shared_blocks(x)
        self._moves: dict[int, list[Move]] = {}
        self.blocks: dict[int, Array] = {} if blocks is None else blocks
        arrivals = schedules(x.layout, layout)[x.team.rank].arrivals
        for move in sorted(arrivals, key=lambda move: distance(x.team, move.source)):
            box = layout.boxes[move.put]
            if blocks is None:
                if move.source == x.team.rank and move.box == box:
                    part = within(box, x.layout.boxes[move.taken])
                    self.blocks[move.put] = x.blocks[move.taken][part]
                    continue
                if move.put not in self.blocks:
                    self.blocks[move.put] = self._like(move, box)
            self._moves.setdefault(move.put, []).append(move)

    def _like(self, move: Move, box: Box) -> Array:
        """A new block whose elements lie in the order of those that come: copy engines do not transpose."""
        source = self._from[move.source][move.taken]
        turned = source.ndim == 2 and source.strides[0] < source.strides[1]
        made = self._x.team.xp.empty(_shape(box)[::-1] if turned else _shape(box), self._x.dtype)
        return made.T if turned else made

    def farthest(self, block: int) -> int | None:
        """The greatest distance of a worker that has a part of a block; None if the block is there."""
        moves = self._moves.get(block)
        return max(distance(self._x.team, move.source) for move in moves) if moves else None

    def copy_own(self) -> None:
        """Copy what this worker has itself, on the current stream, beside what comes from others."""
        for put, moves in self._moves.items():
            for move in moves:
                if move.source == self._x.team.rank:
                    into, piece = self._ends(put, move.source, move.taken, move.box)
                    into[...] = piece

    def _ends(self, put: int, source: int, taken: int, box: Box) -> tuple[Array, Array]:
        """Where a box goes to, and comes from."""
        piece = self._from[source][taken][within(box, self._x.layout.boxes[taken])]
        return self.blocks[put][within(box, self.layout.boxes[put])], piece

    def copy(
        self, block: int | None = None, last: tuple[int, int] | None = None, own: bool = True
    ) -> None:
        """Begin to copy a block, or all.

        Args:
            block: number of the block; None for all.
            last: first index and the one after the last along the last axis, of the whole array; None for
                all.
            own: whether what this worker has itself is copied too; else `copy_own` does that.
        """
        team, peers = self._x.team, _peers(self._x)
        chosen = list(self._moves) if block is None else [block]
        for put in chosen:
            for move in self._moves.get(put, ()):
                box = move.box if last is None else _clipped(move.box, last)
                if not elements(box) or (move.source == team.rank and not own):
                    continue
                into, piece = self._ends(put, move.source, move.taken, box)
                with span(team, MESSAGE, f"{piece.nbytes} bytes from {move.source}", copies=True):
                    peers.copy(into, piece)
                if move.source != team.rank:
                    _count(self._x, piece.nbytes)


def distance(team: Team, source: int) -> int:
    """In the order in which workers copy from others, each from another one at a time and around the ring;
    0 for itself.
    """
    ring = team.ring
    return (ring.index(source) - ring.index(team.rank)) % team.size


def _pull_cast(x: Parts, made: Parts) -> Parts:
    """To a smaller dtype: what others take is cast strip by strip, and they copy one strip meanwhile."""
    team, peers, target = x.team, _peers(x), made.layout
    plans = schedules(x.layout, target)
    mine, everyone = _cast_buffers(x, target, made.dtype)
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
            with span(team, MESSAGE, f"{came[rows].nbytes} bytes from {source}", copies=True):
                peers.copy(into[rows], came[rows])
            _count(x, came[rows].nbytes)
    for move in plans[team.rank].arrivals:
        if move.source == team.rank:
            into = made.blocks[move.put][within(move.box, target.boxes[move.put])]
            own_piece = x.blocks[move.taken][within(move.box, x.layout.boxes[move.taken])]
            cast(team.xp, into, own_piece)
    peers.end()
    return made


def _cast_buffers(
    x: Parts, target: Layout, dtype: np.dtype[Any]
) -> tuple[list[Array], list[list[Array]]]:
    """Where casts for others go, and all workers' such buffers: the last ones are kept for the next call.

    Collective. Nobody reads them any more where a phase of copies has ended.
    """
    team, key = x.team, (x.layout, target, dtype)
    if key not in team.cast_buffers:
        team.cast_buffers.clear()
        sends = schedules(x.layout, target)[team.rank].sends
        mine = [team.xp.empty(_shape(move.box), dtype) for to in sends for move in to]
        team.cast_buffers[key] = mine, _peers(x).share(mine)
    return team.cast_buffers[key]


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


def _clipped(box: Box, last: tuple[int, int]) -> Box:
    low, high = max(box[-1][0], last[0]), min(box[-1][1], last[1])
    return (*box[:-1], (low, max(low, high)))


def _count(x: Parts, nbytes: int) -> None:
    x.team.count.sent_bytes += nbytes
    x.team.count.messages += 1


def _peers(x: Parts) -> Peers:
    assert x.team.peers is not None
    return x.team.peers
