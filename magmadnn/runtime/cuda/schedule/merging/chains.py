"""Launches that become one because one block has at hand what several of them need.

In a chain each needs only those rows of the one before that its own block made: the last layer of a
classifier, its loss, and the gradient of the layer below; see `cuda/fused/chained.py`. And a weight gradient
has all rows of the columns whose sums are the bias' gradient; see `cuda/fused/summed.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from magmadnn.compiler.cuda.fused.chained import chain
from magmadnn.compiler.cuda.fused.columns import ColumnsVariant
from magmadnn.compiler.cuda.fused.rows import RowsVariant
from magmadnn.compiler.cuda.fused.summed import fold
from magmadnn.compiler.cuda.gemm.gemm import GemmVariant
from magmadnn.compiler.cuda.text.variant import Chip, Launch
from magmadnn.runtime.cuda.schedule.hazards import Edges, readers_of

Unit = tuple[int, ...]


def chains_of(
    launches: Sequence[Launch], edges: Edges, chip: Chip, sums: bool = False
) -> list[Unit]:
    """All launches, those of a chain together, each unit after all that it waits for.

    Args:
        launches: in an order in which they can run.
        edges: for each those that it waits for; see `edges_of`.
        chip: what they run on.
        sums: whether weight gradients make the sums of columns too.
    """
    readers = readers_of(edges)
    chains: list[Unit] = []
    used: set[int] = set()
    for unit in _candidates(launches, readers):
        parts = [launches[k] for k in unit]
        free = used.isdisjoint(unit) and not _is_left(unit, edges)
        if free and chain(parts, chip) is not None:
            chains.append(unit)
            used.update(unit)
    for unit in _sums(launches) if sums else ():
        if used.isdisjoint(unit) and unit[0] not in edges[unit[1]] and not _is_left(unit, edges):
            chains.append(unit)
            used.update(unit)
    alone = [(k,) for k in range(len(launches)) if k not in used]
    return _in_order([*alone, *chains], edges)


def joined(unit: Unit, parts: Sequence[Launch], chip: Chip) -> Launch:
    """The launch of a unit, whose parts these are."""
    if len(unit) == 1:
        return parts[0]
    made = chain(parts, chip) if len(unit) > 2 else fold(*parts) or fold(*reversed(parts))
    assert made is not None
    return made


def _sums(launches: Sequence[Launch]) -> Iterator[Unit]:
    """Weight gradients with the sums of columns of the same operand."""
    columns = [k for k, one in enumerate(launches) if isinstance(one.variant, ColumnsVariant)]
    at: dict[int, list[int]] = {}
    for k, one in enumerate(launches):
        if isinstance(one.variant, GemmVariant) and one.variant.cut.whole_k:
            at.setdefault(one.arguments[one.variant.slots.index("b")], []).append(k)
    for k in columns:
        for address in set(launches[k].arguments) & at.keys():
            product = min(at[address], key=lambda other: abs(other - k))  # of the same step
            if fold(launches[product], launches[k]) is not None:
                yield (product, k) if product < k else (k, product)


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
    readers = readers_of([tuple(some) for some in wanted])
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
