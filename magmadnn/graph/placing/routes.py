"""From one placement to another of any other ranks: which rows of parts go from whom to whom.

A rank that has a part cuts it into rows of equal size, one behind the other along a new leading axis. Rows go
to other ranks, or stay, and lie along a leading axis there too; then they are joined, or added up. For k
ranks that have the value before and h that get it, writing n for an axis and lcm for L::

    from -> to              cut into                 a rank that gets it has       what becomes of them
    Shard(a) -> Shard(a)    L / k rows along a       L / h rows of n / L places    joined along a
    Shard(a) -> Shard(b)    h rows along b           k rows, one of each           joined along a
    Shard(a) -> Replicate   1                        k rows, one of each           joined along a
    Replicate -> Shard(b)   h rows along b           1 row, of one of them         itself
    Replicate -> Replicate  1                        1 row, of one of them         itself
    Partial -> Shard(b)     h rows along b           k rows, one of each           added up
    Partial -> Replicate    1                        k rows, one of each           added up
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING

from .placement import Partial, Placement, Replicate, Shard, ranks_on

if TYPE_CHECKING:
    from magmadnn.comm.gpu.moving import Moves


@dataclass(frozen=True)
class Routes:
    """What goes where.

    Attributes:
        cut: the axis along which a part is cut into rows; None where it is one row.
        pieces: how many rows of a part there are.
        moves: rows from whom to whom; one at most between two ranks.
        rows: how many a rank gets.
        join: the axis along which these are joined; None where they are not.
        adds: whether these are added up.
    """

    cut: int | None
    pieces: int
    moves: Moves
    rows: int
    join: int | None = None
    adds: bool = False

    @property
    def sent(self) -> float:
        """The most that a rank sends, in parts of what it has."""
        return max(sent_rows(self.moves).values(), default=0) / self.pieces


def sent_rows(moves: Moves) -> dict[int, int]:
    """How many rows each rank sends to others."""
    found: dict[int, int] = {}
    for source, first, end, target, _ in moves:
        if source != target:
            found[source] = found.get(source, 0) + end - first
    return found


@lru_cache(maxsize=4096)
def routed(before: Placement, after: Replicate | Shard, ranks: int) -> Routes:
    """How a value that is placed in one way comes to be placed in the other.

    Args:
        before: where it lies.
        after: where it shall lie.
        ranks: how many there are in all.
    """
    have, get = ranks_on(before.on, ranks), ranks_on(after.on, ranks)
    k, h = len(have), len(get)
    if isinstance(before, Replicate):
        return _of_copies(have, get, after)
    if isinstance(before, Shard) and isinstance(after, Shard) and before.axis == after.axis:
        return _of_runs(have, get, before.axis)
    adds, join = isinstance(before, Partial), None if isinstance(before, Partial) else before.axis
    if isinstance(after, Shard):
        moves = [(one, j, j + 1, to, i) for i, one in enumerate(have) for j, to in enumerate(get)]
        return Routes(after.axis, h, tuple(moves), k, join, adds)
    moves = [(one, 0, 1, to, i) for i, one in enumerate(have) for to in get]
    return Routes(None, 1, tuple(moves), k, join, adds)


def _of_copies(have: tuple[int, ...], get: tuple[int, ...], after: Replicate | Shard) -> Routes:
    """A rank that has a copy takes its own; the others get one from these in turns."""
    others = [to for to in get if to not in have]
    of = {to: to for to in get if to in have}
    of |= {to: have[number % len(have)] for number, to in enumerate(others)}
    if isinstance(after, Replicate):
        return Routes(None, 1, tuple((of[to], 0, 1, to, 0) for to in get), 1)
    moves = [(of[to], j, j + 1, to, 0) for j, to in enumerate(get)]
    return Routes(after.axis, len(get), tuple(moves), 1)


def _of_runs(have: tuple[int, ...], get: tuple[int, ...], axis: int) -> Routes:
    """Runs of an axis that become longer or shorter runs of it."""
    pieces = lcm(len(have), len(get))
    own, wanted = pieces // len(have), pieces // len(get)
    moves = []
    for i, one in enumerate(have):
        for j, to in enumerate(get):
            first, end = max(i * own, j * wanted), min((i + 1) * own, (j + 1) * wanted)
            if first < end:
                moves.append((one, first - i * own, end - i * own, to, first - j * wanted))
    return Routes(axis, own, tuple(moves), wanted, axis)
