"""Which launches must wait for which: from what they read and write."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

Span = tuple[int, int]
Edges = Sequence[tuple[int, ...]]  # for each launch those that it waits for


@dataclass
class _Atom:
    """A piece of memory that launches touch as a whole: the last that wrote it, and its readers since."""

    writer: int | None = None
    readers: list[int] = field(default_factory=list)


def edges_of(touched: Sequence[tuple[Sequence[Span], Sequence[Span]]]) -> list[tuple[int, ...]]:
    """For each of a row of launches the earlier ones that it waits for.

    A launch waits for the last writers of all that it reads or writes, and for the readers of what it
    writes; but not for one that another it waits for has waited for.

    Args:
        touched: (spans read, spans written) of each launch, as first and last address.
    """
    cuts = sorted({at for reads, writes in touched for span in (*reads, *writes) for at in span})
    atoms = [_Atom() for _ in cuts]
    before: list[int] = []  # as bits: all that are done when a launch begins
    result: list[tuple[int, ...]] = []
    for number, (reads, writes) in enumerate(touched):
        wanted = _wanted(number, reads, writes, cuts, atoms)
        known, kept = 0, []
        for other in sorted(wanted, reverse=True):
            if not known >> other & 1:
                kept.append(other)
                known |= before[other] | 1 << other
        before.append(known)
        result.append(tuple(sorted(kept)))
    return result


def readers_of(edges: Edges) -> list[list[int]]:
    """For each launch those that wait for it."""
    found: list[list[int]] = [[] for _ in edges]
    for number, after in enumerate(edges):
        for other in after:
            found[other].append(number)
    return found


def slack_of(edges: Edges) -> list[int]:
    """For each launch how many levels later it could run without any other, or the end, being later."""
    first: list[int] = []
    for after in edges:
        first.append(1 + max((first[k] for k in after), default=-1))
    last = [max(first, default=0)] * len(edges)
    for number in reversed(range(len(edges))):
        for other in edges[number]:
            last[other] = min(last[other], last[number] - 1)
    return [b - a for a, b in zip(first, last, strict=True)]


def _wanted(
    number: int,
    reads: Sequence[Span],
    writes: Sequence[Span],
    cuts: list[int],
    atoms: list[_Atom],
) -> set[int]:
    """All earlier launches that a launch must come after; notes what it touches."""
    wanted: set[int] = set()
    read = {k for span in reads for k in _pieces(span, cuts)}
    written = {k for span in writes for k in _pieces(span, cuts)}
    for k in read | written:
        if (writer := atoms[k].writer) is not None:
            wanted.add(writer)
    for k in written:
        wanted.update(atoms[k].readers)
    for k in read - written:
        atoms[k].readers.append(number)
    for k in written:
        atoms[k].writer, atoms[k].readers = number, []
    return wanted - {number}


def _pieces(span: Span, cuts: list[int]) -> range:
    return range(bisect_left(cuts, span[0]), bisect_left(cuts, span[1]))
