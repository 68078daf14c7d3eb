"""What has to be sent for an array to get from one layout to another: index arithmetic, no data.

Every worker computes the same list from the two layouts, so that no worker has to tell another what comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from magmadnn.dmath.layouts.layout import Box, Layout, elements

Index = tuple[Any, ...]


class Move(NamedTuple):
    """A box that goes from a block on one worker to a block on another, or the same.

    Attributes:
        source: worker that has it.
        target: worker that gets it.
        taken: number of the block that it is part of, in the source layout.
        put: number of the block that it becomes part of.
        box: what it covers of the array.
        first: whether it is written; else it is added to what is there.
    """

    source: int
    target: int
    taken: int
    put: int
    box: Box
    first: bool


def _segments(a: Sequence[int], b: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Where an axis is cut by either: first index, the one after the last, block in a, block in b."""
    found, i, j = [], 0, 0
    while i < len(a) - 1 and j < len(b) - 1:
        low, high = max(a[i], b[j]), min(a[i + 1], b[j + 1])
        if low < high:
            found.append((low, high, i, j))
        if a[i + 1] <= b[j + 1]:
            i += 1
        else:
            j += 1
    return found


@lru_cache(maxsize=256)
def moves(source: Layout, target: Layout) -> tuple[Move, ...]:
    """All moves from one layout to another, in the order in which each pair of workers sends them.

    Of several copies the target's own is taken, else the copies take turns by the target's number. Of
    partial sums all terms go to the target, which adds them in the order of the holders.
    """
    assert source.shape == target.shape, (source.shape, target.shape)
    assert not target.partial
    found = []
    axes = [_segments(a, b) for a, b in zip(source.cuts, target.cuts, strict=True)]
    for parts in product(*axes):
        box = tuple((low, high) for low, high, _, _ in parts)
        taken = source.block_at([i for _, _, i, _ in parts])
        put = target.block_at([j for _, _, _, j in parts])
        holders = source.holders[taken]
        for worker in target.holders[put]:
            if source.partial:
                terms = holders
            elif worker in holders:
                terms = (worker,)
            else:
                terms = (holders[worker % len(holders)],)
            for number, holder in enumerate(terms):
                found.append(Move(holder, worker, taken, put, box, number == 0))
    return tuple(found)


@dataclass(frozen=True)
class Schedule:
    """The moves of one worker.

    Attributes:
        sends: for each other worker, the moves that it gets, in order.
        counts: elements that come from each worker; 0 for this worker itself.
        arrivals: all moves to this worker, in the order in which they are written or added.
        traffic: whether any worker sends anything to another.
    """

    sends: tuple[tuple[Move, ...], ...]
    counts: tuple[int, ...]
    arrivals: tuple[Move, ...]
    traffic: bool


@lru_cache(maxsize=256)
def schedules(source: Layout, target: Layout) -> tuple[Schedule, ...]:
    """The moves by worker."""
    workers = source.workers
    sends: list[list[list[Move]]] = [[[] for _ in range(workers)] for _ in range(workers)]
    counts = [[0] * workers for _ in range(workers)]
    arrivals: list[list[Move]] = [[] for _ in range(workers)]
    traffic = False
    for move in moves(source, target):
        arrivals[move.target].append(move)
        if move.source != move.target:
            traffic = True
            sends[move.source][move.target].append(move)
            counts[move.target][move.source] += elements(move.box)
    return tuple(
        Schedule(tuple(map(tuple, sends[r])), tuple(counts[r]), tuple(arrivals[r]), traffic)
        for r in range(workers)
    )


@lru_cache(maxsize=4096)
def traffic(source: Layout, target: Layout) -> NDArray[np.int64]:
    """Elements that each worker sends to each other, [sender, receiver]; those of `moves`, without listing
    them.
    """
    table = np.zeros((source.workers, source.workers), np.int64)
    taken = put = np.zeros(1, np.int64)
    volume = np.ones(1, np.int64)
    for axis, (a, b) in enumerate(zip(source.cuts, target.cuts, strict=True)):
        parts = np.array(_segments(a, b), np.int64).reshape(-1, 4)
        taken = (taken[:, None] * source.grid[axis] + parts[:, 2]).ravel()
        put = (put[:, None] * target.grid[axis] + parts[:, 3]).ravel()
        volume = (volume[:, None] * (parts[:, 1] - parts[:, 0])).ravel()
    have, counts = _padded(source)
    want, _ = _padded(target)
    for column in range(want.shape[1]):
        worker = want[put, column]
        if source.partial:
            senders = [have[taken, term] for term in range(have.shape[1])]
        else:
            own = (have[taken] == worker[:, None]).any(axis=1)
            turn = have[taken, worker % counts[taken]]
            senders = [np.where(own, worker, turn)]
        for sender in senders:
            real = (worker >= 0) & (sender >= 0) & (worker != sender)
            np.add.at(table, (sender[real], worker[real]), volume[real])
    table.setflags(write=False)
    return table


def _padded(layout: Layout) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Holders of each block, [blocks, most], filled up with -1; and how many each has."""
    counts = np.array([len(h) for h in layout.holders], np.int64)
    most = int(counts.max(initial=1))
    rows = [(*h, *[-1] * (most - len(h))) for h in layout.holders]
    return np.array(rows, np.int64).reshape(len(rows), most), counts


def within(box: Box, block: Box) -> Index:
    """The index of a block that a box inside it covers; the dots keep a view where there are no axes."""
    slices = [
        slice(low - start, high - start) for (low, high), (start, _) in zip(box, block, strict=True)
    ]
    return (*slices, ...)
