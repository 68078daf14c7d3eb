"""Sums whose order does not depend on the number of ranks: a binary tree over numbered parts.

Part s is leaf s of the tree. Two neighbours of a level are added, the one with the lower numbers first,
whoever holds them; so the bits depend on the number of parts and on which are there, and on nothing else.
Each rank adds what it can of its own parts. What is left (one vector, or a few where ranks do not divide
parts evenly) is added by others: each rank gets a part of the elements of all, adds them up, and gives out
the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.errors import ArgumentError

Array = np.ndarray[Any, np.dtype[Any]]
Value = TypeVar("Value")
Block = tuple[int, int]  # level, and number within the level: leaves number << level and on
SMALL_BYTES = 1 << 15  # below, all ranks add all elements: one round of messages in place of two


def cuts(count: int, parts: int) -> list[int]:
    """Where `count` rows are cut into `parts` parts that differ by one row at most, [parts + 1]."""
    return [count * part // parts for part in range(parts + 1)]


class TreeSum:
    """Sums over `leaves` vectors that lie on the ranks of a communicator.

    Args:
        communicator: whose ranks hold vectors.
        leaves: number of vectors, at least the number of ranks.

    Attributes:
        rank: this one's number.
        first, last: the leaves of this rank, `range(first, last)`.

    Raises:
        ArgumentError: if there are more ranks than leaves.
    """

    def __init__(self, communicator: Communicator, leaves: int) -> None:
        rank, size = communicator.rank, communicator.size
        if size > leaves:
            raise ArgumentError(
                f"DataParallel: {size} ranks cannot share shards={leaves}: give shards={size}, or fewer ranks"
            )
        self._communicator, self._leaves, self.rank = communicator, leaves, rank
        self._top = max(leaves - 1, 0).bit_length()
        self._bounds = cuts(leaves, size)
        self.first, self.last = self._bounds[rank], self._bounds[rank + 1]

    def blocks(self, rank: int, there: Collection[int]) -> list[Block]:
        """The largest parts of the tree that a rank adds alone, of those in which there is a leaf."""
        start, end = self._bounds[rank], self._bounds[rank + 1]
        end = (
            1 << self._top if end == self._leaves else end
        )  # beyond the last leaf there is nothing
        found = []
        while start < end:
            level = self._top if start == 0 else (start & -start).bit_length() - 1
            while start + (1 << level) > end:
                level -= 1
            if any(start <= leaf < start + (1 << level) for leaf in there):
                found.append((level, start >> level))
            start += 1 << level
        return found

    def own(
        self,
        leaf: Callable[[int], list[Value]],
        there: Collection[int],
        added: Callable[[list[Value], list[Value]], list[Value]] | None = None,
    ) -> list[list[Value]]:
        """The sums of this rank's blocks; `leaf` gives the values of one.

        They are vectors that are added in place, or whatever `added` adds.
        """
        add: Callable[[Any, Any], Any] = _added if added is None else added

        def below(level: int, number: int) -> list[Value] | None:
            if level == 0:
                return leaf(number) if number in there else None
            left, right = below(level - 1, 2 * number), below(level - 1, 2 * number + 1)
            if left is None or right is None:
                return right if left is None else left
            return list(add(left, right))

        found = [below(*block) for block in self.blocks(self._communicator.rank, there)]
        return [one for one in found if one is not None]

    def all_sum(self, own: list[Array], like: Array, there: Collection[int]) -> Array:
        """The sum of all leaves, the same on all ranks.

        Args:
            own: one vector of each block of this rank.
            like: an array of the length and dtype of the vectors.
            there: the leaves that there are; at least one.
        """
        comm = self._communicator
        if comm.size == 1:
            return self._root(dict(zip(self.blocks(0, there), own, strict=True)))
        if like.nbytes <= SMALL_BYTES:
            counts = [len(self.blocks(rank, there)) for rank in range(comm.size)]
            return self._sum_of_rows(
                list(comm.all_gather(_stacked(own, like), counts=counts)), there
            )
        total, bounds = np.empty_like(like), cuts(len(like), comm.size)
        mine = total[bounds[comm.rank] : bounds[comm.rank + 1]]
        mine[...] = self.reduced_share(own, like, there)
        return np.asarray(comm.all_gather(mine, total, counts=np.diff(bounds).tolist()))

    def reduced_share(
        self,
        own: list[Array],
        like: Array,
        there: Collection[int],
        share: Sequence[int] | None = None,
    ) -> Array:
        """The sum of all leaves; rank r has elements `share[r]` to `share[r + 1]`, even parts for None."""
        comm = self._communicator
        share = cuts(len(like), comm.size) if share is None else share
        mine = share[comm.rank + 1] - share[comm.rank]
        parts = [
            _stacked([one[share[r] : share[r + 1]] for one in own], like[share[r] : share[r + 1]])
            for r in range(comm.size)
        ]
        out = [np.empty((len(self.blocks(r, there)), mine), like.dtype) for r in range(comm.size)]
        out[comm.rank] = parts[comm.rank]
        comm.all_to_all(parts, out)
        return self._sum_of_rows([row for rows in out for row in rows], there)

    def _sum_of_rows(self, rows: list[Array], there: Collection[int]) -> Array:
        """The sum of all blocks, one row each; in the memory of a row that may be written to."""
        of = [
            block for rank in range(self._communicator.size) for block in self.blocks(rank, there)
        ]
        return self._root(dict(zip(of, rows, strict=True)))

    def _root(self, values: dict[Block, Array]) -> Array:
        def at(level: int, number: int) -> list[Array] | None:
            if (level, number) in values:
                return [values[level, number]]
            if level == 0:
                return None
            return _added(at(level - 1, 2 * number), at(level - 1, 2 * number + 1))

        found = at(self._top, 0)
        assert found is not None
        return found[0]


def _stacked(vectors: list[Array], like: Array) -> Array:
    """Vectors as rows of one array; a single one is not copied, and may not be written to."""
    if len(vectors) == 1:
        row = vectors[0].reshape(1, -1)
        row.flags.writeable = False
        return row
    return np.stack(vectors) if vectors else np.empty((0, len(like)), like.dtype)


def _added(left: list[Array] | None, right: list[Array] | None) -> list[Array] | None:
    """left + right, in the memory of either; what is there of them where one is missing."""
    if left is None or right is None:
        return right if left is None else left
    return [
        np.add(one, other, out=one if one.flags.writeable else other)
        for one, other in zip(left, right, strict=True)
    ]
