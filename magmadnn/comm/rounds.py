"""Algorithms of collectives, as rounds of messages; what carries them out is an engine.

An algorithm is a generator: it yields a `Round`, is resumed when all messages of that round have been sent
and have arrived, and returns its result. So one text serves blocking and non-blocking calls, real messages
and simulated ones.

`everyone`, `direct` and `tree` take care of few bytes; `direct`, `ring` and `torus` of many. Their costs, for
P ranks, n bytes, a latency of a seconds and b seconds a byte (messages of one round overlap their latency)::

    everyone   a                    + b n (P - 1)         sums in rank order
    direct     2 a                  + 2 b n (P - 1) / P   sums in rank order, the same bits as everyone
    tree       a log2 P             + b n log2 P          pairs, pairs of pairs, ...; 2 rounds more unless P =
    2^k ring       2 a (P - 1)          + 2 b n (P - 1) / P   each share in an order of its own; neighbours
    only torus      2 a (A + B - 2)      + 2 b n (P - 1) / P   rows of B, then columns of A; A B = P

Sources: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH"
(2005), for tree, ring and their costs; Ying et al., "Image classification at supercomputer scale" (arXiv
1811.06992), for the torus in two dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from .arrays import Array, cast, cuts, empty, sum_dtype

Message: TypeAlias = tuple[Array, int]
"""An array and the rank it goes to or comes from."""
Combine: TypeAlias = Callable[..., Any]


@dataclass(slots=True)
class Round:
    """Messages that are under way at the same time."""

    sends: Sequence[Message] = ()
    receives: Sequence[Message] = field(default=())


Task: TypeAlias = Generator[Round, None, Any]


def others(rank: int, size: int) -> list[int]:
    """All other ranks, the next one first, so that not all send to the same."""
    return [(rank + step) % size for step in range(1, size)]


def everyone(rank: int, size: int, x: Array, combine: Combine, wire: Any) -> Task:
    """All-reduce of a flat `x`: each sends all to all, and sums in rank order."""
    pieces = empty((size, x.size), wire, x)
    pieces[rank] = cast(x, wire)
    mine = pieces[rank]
    yield Round(
        [(mine, other) for other in others(rank, size)],
        [(pieces[other], other) for other in others(rank, size)],
    )
    return cast(cast(in_order(pieces, combine, x.dtype), wire), x.dtype)


def in_order(pieces: Array, combine: Combine, dtype: Any) -> Array:
    """((p0 + p1) + p2) + ...: elements of 16 bits in float32."""
    if np.dtype(dtype).itemsize < 4:
        dtype = sum_dtype(np.dtype(dtype))
    total = pieces[0].astype(dtype)
    for piece in pieces[1:]:
        combine(total, cast(piece, dtype), out=total)
    return total


def direct_scatter(
    rank: int, size: int, x: Array, bounds: Sequence[int], combine: Combine, wire: Any
) -> Task:
    """Reduce-scatter of a flat `x`: every share goes straight to its rank, which sums in rank order."""
    sent = cast(x, wire)
    here = bounds[rank + 1] - bounds[rank]
    pieces = empty((size, here), wire, x)
    pieces[rank] = sent[bounds[rank] : bounds[rank + 1]]
    yield Round(
        [(sent[bounds[other] : bounds[other + 1]], other) for other in others(rank, size)],
        [(pieces[other], other) for other in others(rank, size)],
    )
    return in_order(pieces, combine, x.dtype)


def gather_shares(rank: int, size: int, out: Array, bounds: Sequence[int]) -> Task:
    """All-gather within a flat `out`: each sends its own share to all others."""
    mine = out[bounds[rank] : bounds[rank + 1]]
    yield Round(
        [(mine, other) for other in others(rank, size)],
        [(out[bounds[other] : bounds[other + 1]], other) for other in others(rank, size)],
    )


def direct(rank: int, size: int, x: Array, combine: Combine, wire: Any) -> Task:
    """All-reduce of a flat `x`: `direct_scatter`, then `gather_shares`."""
    bounds = cuts(x.size, size)
    share = yield from direct_scatter(rank, size, x, bounds, combine, wire)
    out = empty(x.size, wire, x)
    out[bounds[rank] : bounds[rank + 1]] = cast(share, wire)
    yield from gather_shares(rank, size, out, bounds)
    return cast(out, x.dtype)


def tree(rank: int, size: int, x: Array, combine: Combine, wire: Any) -> Task:
    """All-reduce by doubling: after round k, groups of 2^k ranks hold the same sum, the lower half's first.

    Of ranks beyond a power of two, pairs (0, 1), (2, 3), ... begin as one.
    """
    power = 1 << (size.bit_length() - 1)
    extra = size - power
    total = cast(x, sum_dtype(x.dtype)).copy()
    incoming = empty(x.size, wire, x)

    def narrowed() -> Array:
        return cast(total, wire)

    if rank < 2 * extra and rank % 2:
        yield Round([(narrowed(), rank - 1)])
        yield Round(receives=[(incoming, rank - 1)])
        return cast(incoming, x.dtype)
    if rank < 2 * extra:
        yield Round(receives=[(incoming, rank + 1)])
        combine(total, cast(incoming, total.dtype), out=total)
    place = rank // 2 if rank < 2 * extra else rank - extra
    for bit in range(power.bit_length() - 1):
        near = place ^ (1 << bit)
        other = 2 * near if near < extra else near + extra
        mine = narrowed()
        yield Round([(mine, other)], [(incoming, other)])
        low, high = (mine, incoming) if place < near else (incoming, mine)
        # Both sides sum what travelled, so that both get the same bits.
        combine(cast(low, total.dtype), cast(high, total.dtype), out=total)
    result = narrowed()
    if rank < 2 * extra:
        yield Round([(result, rank + 1)])
    return cast(result, x.dtype)


def ring_scatter(
    ring: Sequence[int], place: int, x: Array, bounds: Sequence[int], combine: Combine, wire: Any
) -> Task:
    """Reduce-scatter along a ring of ranks, in place: share `place` of `x` becomes the sum over the ring.

    Share s begins at place s + 1 and takes up one rank's part a step.
    """
    size = len(ring)
    after, before = ring[(place + 1) % size], ring[(place - 1) % size]
    largest = max(bounds[i + 1] - bounds[i] for i in range(size))
    incoming = empty(largest, wire, x)
    for step in range(size - 1):
        out, into = (place - step - 1) % size, (place - step - 2) % size
        arriving = incoming[: bounds[into + 1] - bounds[into]]
        leaving = cast(x[bounds[out] : bounds[out + 1]], wire)
        yield Round([(leaving, after)], [(arriving, before)])
        here = x[bounds[into] : bounds[into + 1]]
        combine(cast(arriving, x.dtype), here, out=here)


def ring_gather(ring: Sequence[int], place: int, x: Array, bounds: Sequence[int]) -> Task:
    """All-gather along a ring of ranks, in place: each begins with share `place` of `x`."""
    size = len(ring)
    after, before = ring[(place + 1) % size], ring[(place - 1) % size]
    for step in range(size - 1):
        out, into = (place - step) % size, (place - step - 1) % size
        yield Round(
            [(x[bounds[out] : bounds[out + 1]], after)],
            [(x[bounds[into] : bounds[into + 1]], before)],
        )


def ring(rank: int, size: int, x: Array, combine: Combine, wire: Any) -> Task:
    """All-reduce along the ring of all ranks."""
    return (yield from torus(rank, size, x, combine, wire, rows=1))


def sides(size: int) -> tuple[int, int]:
    """Rows and columns of the torus that is nearest to a square.

    >>> sides(12), sides(7)
    ((3, 4), (1, 7))
    """
    rows = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
    return rows, size // rows


def torus(
    rank: int, size: int, x: Array, combine: Combine, wire: Any, rows: int | None = None
) -> Task:
    """All-reduce on a torus: scatter along rows, all-reduce along columns, gather along rows."""
    rows = sides(size)[0] if rows is None else rows
    columns = size // rows
    i, j = divmod(rank, columns)
    row = [i * columns + k for k in range(columns)]
    column = [k * columns + j for k in range(rows)]
    total = cast(x, sum_dtype(x.dtype)).copy()
    across = cuts(x.size, columns)
    yield from ring_scatter(row, j, total, across, combine, wire)
    share = total[across[j] : across[j + 1]]
    down = cuts(share.size, rows)
    yield from ring_scatter(column, i, share, down, combine, wire)
    out = empty(x.size, wire, x)
    part = out[across[j] : across[j + 1]]
    part[down[i] : down[i + 1]] = cast(share[down[i] : down[i + 1]], wire)
    yield from ring_gather(column, i, part, down)
    yield from ring_gather(row, j, out, across)
    return cast(out, x.dtype)


ALL_REDUCE: Final[dict[str, Callable[..., Task]]] = {
    "everyone": everyone,
    "direct": direct,
    "tree": tree,
    "ring": ring,
    "torus": torus,
}


def broadcast(rank: int, size: int, x: Array, root: int) -> Task:
    """Binomial tree: in round k, the 2^k ranks that have `x` send it to as many that have not."""
    place = (rank - root) % size
    reach = 1
    while reach < size:
        if place < reach and place + reach < size:
            yield Round([(x, (rank + reach) % size)])
        elif reach <= place < 2 * reach:
            yield Round(receives=[(x, (rank - reach) % size)])
        reach *= 2


def gather_values(rank: int, size: int, value: bytes) -> Task:
    """Bytes of any length of all ranks: lengths first."""
    lengths = np.zeros(size, np.int64)
    lengths[rank] = len(value)
    yield from gather_shares(rank, size, lengths, range(size + 1))
    ends = [0, *np.cumsum(lengths).tolist()]
    out = np.empty(ends[-1], np.uint8)
    out[ends[rank] : ends[rank + 1]] = np.frombuffer(value, np.uint8)
    yield from gather_shares(rank, size, out, ends)
    return [out[ends[other] : ends[other + 1]].tobytes() for other in range(size)]


def swap_bytes(rank: int, size: int, heads: list[bytes]) -> Task:
    """Bytes for each rank, of any length; those from each rank."""
    lengths = np.array([len(head) for head in heads], np.int64)
    coming = lengths.copy()
    rest = others(rank, size)
    yield Round([(lengths[r : r + 1], r) for r in rest], [(coming[r : r + 1], r) for r in rest])
    texts = [np.empty(length, np.uint8) for length in coming.tolist()]
    texts[rank] = np.frombuffer(heads[rank], np.uint8)
    yield Round(
        [(np.frombuffer(heads[r], np.uint8), r) for r in rest], [(texts[r], r) for r in rest]
    )
    return [text.tobytes() for text in texts]
