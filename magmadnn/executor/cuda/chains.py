"""Launches that become one because each needs only those rows of the one before that its own block made.

These are the last layer of a classifier, its loss, and the gradient of the layer below; see
`emit/cuda/chained.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from magmadnn.compiler.emit.cuda.chained import chain
from magmadnn.compiler.emit.cuda.gemm import GemmVariant
from magmadnn.compiler.emit.cuda.rows import RowsVariant
from magmadnn.compiler.emit.cuda.variant import Chip, Launch

Unit = tuple[int, ...]
Edges = Sequence[tuple[int, ...]]


def chains_of(launches: Sequence[Launch], edges: Edges, chip: Chip) -> list[Unit]:
    """All launches, those of a chain together, each unit after all that it waits for.

    Args:
        launches: in an order in which they can run.
        edges: for each those that it waits for; see `edges_of`.
        chip: what they run on.
    """
    readers = _readers(edges)
    chains: list[Unit] = []
    used: set[int] = set()
    for unit in _candidates(launches, readers):
        parts = [launches[k] for k in unit]
        free = used.isdisjoint(unit) and not _is_left(unit, edges)
        if free and chain(parts, chip) is not None:
            chains.append(unit)
            used.update(unit)
    alone = [(k,) for k in range(len(launches)) if k not in used]
    return _in_order([*alone, *chains], edges)


def _readers(edges: Edges) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in edges]
    for number, after in enumerate(edges):
        for other in after:
            found[other].append(number)
    return found


def _candidates(launches: Sequence[Launch], readers: list[list[int]]) -> Iterator[Unit]:
    """A product, rows after it, and a product after those."""
    products = {k for k, one in enumerate(launches) if isinstance(one.variant, GemmVariant)}
    for first in sorted(products):
        for middle in readers[first]:
            if isinstance(launches[middle].variant, RowsVariant):
                yield from ((first, middle, last) for last in readers[middle] if last in products)


def _is_left(unit: Unit, edges: Edges) -> bool:
    """Whether another launch must come between two of a unit."""
    first, *_, last = unit
    behind = {first}
    for number in range(first + 1, last + 1):
        if not behind.isdisjoint(edges[number]):
            behind.add(number)
    others = behind - set(unit)
    return any(not others.isdisjoint(edges[k]) for k in unit)


def _in_order(units: list[Unit], edges: Edges) -> list[Unit]:
    """Each unit after all that it waits for; of several the one that began first."""
    unit_of = {k: number for number, unit in enumerate(units) for k in unit}
    wanted = [
        {unit_of[j] for k in unit for j in edges[k]} - {number} for number, unit in enumerate(units)
    ]
    readers = _readers([tuple(some) for some in wanted])
    ready = [(units[number][0], number) for number, some in enumerate(wanted) if not some]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, number = heapq.heappop(ready)
        ordered.append(units[number])
        for reader in readers[number]:
            wanted[reader].discard(number)
            if not wanted[reader]:
                heapq.heappush(ready, (units[reader][0], reader))
    return ordered
