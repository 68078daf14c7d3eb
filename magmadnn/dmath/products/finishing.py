"""From the terms of a product to its elements, in the phase in which they are made: terms of several workers
are copied and added up where the result lies, and sums are rounded.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.casting import cast
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.pulling import Arena, aligned, copied, place
from magmadnn.dmath.arrays.team import Array, Team
from magmadnn.dmath.layouts.layout import Layout, elements
from magmadnn.dmath.layouts.moves import Move, schedules, traffic, within


class Results:
    """The blocks that products write to, and what becomes of them.

    Terms of sums that several workers make lie where the others can read them, and each worker brings those
    of its part of the result and adds them in the order of the workers. Sums are rounded where they stay.
    What has whole terms of the right dtype, or still has to go elsewhere, is left as it is.

    Args:
        team: the workers, with peers.
        made: where the terms come into being.
        target: where the result goes.
        sums: dtype that products are made in.
        dtype: of the result.
        turned: whether blocks are stored by columns.

    Attributes:
        terms: this worker's blocks of `made`, for products to write to.
        parts_of_terms: of a block what is made of terms, where the library makes the rest of whole sums that
            it writes to `whole`.
    """

    def __init__(
        self, team: Team, made: Layout, target: Layout, sums: np.dtype[Any], dtype: np.dtype[Any],
        turned: bool = False,
    ) -> None:  # fmt: skip
        self._team, self._made, self._sums = team, made, sums
        self._everyone: list[dict[int, Array]] = []
        self._arena: Arena | None = None
        self.parts_of_terms: dict[int, tuple[slice, slice]] = {}
        if not made.partial and (made != target or dtype == sums):
            self._target, self._dtype = made, sums
            self.terms = self._blocks = self._new(made, sums, turned)
            return
        self._target, self._dtype = target, dtype
        self._blocks = self._new(target, dtype, turned)
        if not made.partial:
            self.terms = self._new(made, sums, turned)
            return
        self.terms = self._shared(turned)
        team.count.planned_bytes += _incoming(made, target, team.rank) * sums.itemsize
        room = [move.box for move in self._arrivals if move.source != team.rank]
        if dtype != sums:
            room += [target.boxes[n] for n in target.held[team.rank]]
        self._arena = Arena(team, sum(aligned(elements(box) * sums.itemsize) for box in room))

    @property
    def _arrivals(self) -> tuple[Move, ...]:
        return schedules(self._made, self._target)[self._team.rank].arrivals

    def _new(self, layout: Layout, dtype: np.dtype[Any], turned: bool) -> dict[int, Array]:
        found = {}
        for n in layout.held[self._team.rank]:
            rows, columns = (high - low for low, high in layout.boxes[n])
            empty = self._team.xp.empty
            found[n] = empty((columns, rows), dtype).T if turned else empty((rows, columns), dtype)
        return found

    def _shared(self, turned: bool) -> dict[int, Array]:
        """Terms for others to read. Collective."""
        made, sums = self._made, self._sums

        def make() -> list[Array]:
            return list(self._new(made, sums, turned).values())

        most = made.most * sums.itemsize
        mine, everyone = self._team.shared_buffers(("terms", made, sums, turned), most, make)
        self._everyone = [
            dict(zip(held, one, strict=True)) for held, one in zip(made.held, everyone, strict=True)
        ]
        return dict(zip(made.held[self._team.rank], mine, strict=True))

    @property
    def whole(self) -> dict[int, Array]:
        """Blocks of the result, where none has to go elsewhere."""
        return self._blocks

    def places(self) -> Hashable:
        """Where all lies that `finish` reads and writes, as a value."""
        near = [*self.terms.values(), *self._blocks.values()]
        near += [] if self._arena is None else [self._arena.memory]
        far = [block for one in self._everyone for block in one.values()]
        return tuple(place(x) for x in (*near, *far))

    def finish(self) -> None:
        """Give the streams all that makes the result of the terms, between `Peers.begin` and `Peers.end`."""
        if self._blocks is self.terms:
            return
        if self._arena is None:
            for n, block in self._blocks.items():
                part = self.parts_of_terms.get(n, (slice(None),) * 2)
                cast(self._team.xp, block[part], self.terms[n][part])
        else:
            self._add(self._arena)

    def _add(self, arena: Arena) -> None:
        team, peers = self._team, self._team.peers
        assert peers is not None
        arena.taken = 0
        sums = self._blocks
        if self._dtype != self._sums:
            sums = {n: arena.array(x.shape, self._sums) for n, x in self._blocks.items()}
        peers.begin()  # all have made their terms
        came: dict[Move, tuple[Array, Any]] = {}
        for move in self._by_distance():
            piece = self._piece(move)
            into = arena.array(piece.shape, self._sums)
            copied(team, into, piece, move.source)
            came[move] = into, peers.mark()
        for move in self._arrivals:
            if move in came:
                piece, mark = came[move]
                peers.wait(mark)
            else:
                piece = self._piece(move)
            into = sums[move.put][within(move.box, self._target.boxes[move.put])]
            if move.first:
                into[...] = piece
            else:
                team.xp.add(into, piece, out=into)
        if sums is not self._blocks:
            for n, block in self._blocks.items():
                cast(team.xp, block, sums[n])

    def _by_distance(self) -> list[Move]:
        """What others have, those of near workers first: not all copy from the same one."""
        ring, rank = self._team.ring, self._team.rank
        far = {w: (at - ring.index(rank)) % len(ring) for at, w in enumerate(ring)}
        coming = [move for move in self._arrivals if move.source != rank]
        return sorted(coming, key=lambda move: far[move.source])

    def _piece(self, move: Move) -> Array:
        block = self._everyone[move.source][move.taken]
        return block[within(move.box, self._made.boxes[move.taken])]

    def parts(self) -> Parts:
        """The result, in its own layout or that of the terms."""
        return Parts(self._team, self._target, self._dtype, self._blocks)


def _incoming(made: Layout, target: Layout, rank: int) -> int:
    return int(traffic(made, target)[:, rank].sum())
