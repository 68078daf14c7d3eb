"""Variables that lie elsewhere now: graphs are made with their new addresses, nothing is chosen anew."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

from magmadnn.backends.cuda.engine import Graph
from magmadnn.runtime.cuda.schedule.hazards import Span

_ALIGNMENT = 256  # bytes: kernels are chosen by what an address is divisible by, at most by this


class Relocation:
    """From where variables were to where they are.

    Args:
        spans: memory of theirs that was, in order, none within another one.
        moves: how many bytes further each lies now.
    """

    def __init__(self, spans: Sequence[Span], moves: Sequence[int]) -> None:
        self._starts = [start for start, _ in spans]
        self._ends = [end for _, end in spans]
        self._moves = moves

    @classmethod
    def between(cls, before: Sequence[Span], after: Sequence[Span]) -> Relocation | None:
        """That of variables; None where kernels that were chosen for the one may not suit the other.

        Args:
            before: memory of each variable,
            after: and what it has now.
        """
        goals = dict(zip(before, after, strict=True))
        if list(map(goals.__getitem__, before)) != list(after) or len(set(after)) != len(goals):
            return None  # what were one are two now, or the other way round
        if _overlap(before) or _overlap(after):
            return None
        spans = sorted(goals)
        moves = [goals[span][0] - span[0] for span in spans]
        return None if any(move % _ALIGNMENT for move in moves) else cls(spans, moves)

    def __call__(self, argument: int) -> int:
        """What a kernel is given in place of an argument: another address, if it is one of these."""
        place = bisect_right(self._starts, argument) - 1
        if place < 0 or argument >= self._ends[place]:
            return argument
        return argument + self._moves[place]

    def graphs(self, graphs: Sequence[Graph]) -> list[Graph] | None:
        """Such graphs; None where one has anything but kernels."""
        found = list[Graph]()
        for graph in graphs:
            moved = graph.moved(self)
            if moved is None:
                return None
            found.append(moved)
        return found


def _overlap(spans: Sequence[Span]) -> bool:
    """Whether two different ones share memory."""
    ordered = sorted(set(spans))
    return any(a[1] > b[0] for a, b in itertools.pairwise(ordered))
