"""Products of blocks that come by copies while others are multiplied.

Columns of C are computed in chunks; a chunk waits for its own columns of B only.

Each chunk is one call of the library over the whole axis of sums where that axis is not cut, so that sums are
rounded once, and the first chunk is small, since nothing hides its copies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from magmadnn.dmath.arrays.casting import cast
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.pulling import (
    Arena,
    Fetch,
    arena_bytes,
    arrivals,
    own_elements,
    place,
    places_of,
)
from magmadnn.dmath.arrays.team import Array, Team, is_half
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.moves import traffic
from magmadnn.dmath.products.arithmetic import Arithmetic, multiply, wire_of
from magmadnn.dmath.products.finishing import Results
from magmadnn.dmath.products.plans import ProductPlan, c_stays

SHORTEST = 512  # piece of the axis of sums that a product of its own pays for
MOST_TERMS = 16  # products of a worker for each worker
FIRST = 1024  # columns of the first chunk; each has twice those of the one before
MOST_ARENA = 1 << 28  # bytes of blocks that come; the host has time where there are more
MOST_NARROWED = 1 << 30  # bytes of a rounded operand on a worker that are kept for the next product


def can_pipeline(
    a: Parts, b: Parts, plan: ProductPlan, how: Arithmetic, wire: np.dtype[Any] | None
) -> bool:
    """Whether `pipelined` can compute a product; the same on all workers."""
    if plan.way != "fetch" or not comes_by_copies(a, b, how, wire):
        return False
    return plan.c.partial or _brings(a.layout, b.layout, plan)


def comes_by_copies(a: Parts, b: Parts, how: Arithmetic, wire: np.dtype[Any] | None) -> bool:
    """Whether blocks of operands are copied as they are multiplied, from where operands lie now; the same on
    all workers.
    """
    kept = a.team.kept
    if a.team.peers is None or wire not in (None, how.operand):
        return False
    if kept is not None and any(kept.better(x, wire_of(x.dtype, how, wire)) for x in (a, b)):
        return False
    return all(
        x.dtype == how.operand or (is_half(how.operand) and x.dtype.itemsize > 2) for x in (a, b)
    )


def pipelined(
    a: Parts, b: Parts, plan: ProductPlan, how: Arithmetic, dtype: np.dtype[Any], keep: bool = False
) -> Parts:
    """C of `dtype` in the layout `plan.target`. Whole terms that have to go elsewhere stay where `plan.c`
    says: of the dtype of sums, or of `dtype` where the library rounds them.

    The axis of sums is cut as the operands lie: a worker begins with the terms of what it has, which waits
    for nothing, and nothing of its own is copied. Terms are added in the dtype of sums, so that halves are
    rounded once. Where such pieces are small or many, the operand of which more has to come comes in chunks
    of columns: B, or A by rows. With `keep` blocks that come serve products to come.
    """
    if (fine := _cut_as_they_lie(a.layout, b.layout, plan)) is not None:
        return _by_terms(a, b, fine, how, dtype, keep)
    if dtype != how.sums and not plan.whole and not plan.c.partial:
        plan = c_stays(a.shape[1], plan.c, plan.target)
    left, right = (traffic(x.layout, to).sum() for x, to in ((a, plan.a), (b, plan.b)))
    if left <= right:
        return _by_columns(a, b, plan, how, dtype, False, keep)
    turned = replace(plan, a=turn(plan.b), b=turn(plan.a), c=turn(plan.c), target=turn(plan.target))
    made = _by_columns(b.transposed(), a.transposed(), turned, how, dtype, True, keep)
    return made.transposed()


def calls_of(a: Layout, b: Layout, plan: ProductPlan) -> int:
    """How many products, copies and meetings a worker's host hands to its GPU for a product whose blocks come
    by copies, on the worker that has most; bringing the result to where it goes is counted too.
    """
    bringing, workers = [traffic(a, plan.a), traffic(b, plan.b)], range(a.workers)
    meetings = 2 * 3  # each time an event, a wait for it, and the flags
    fine = _cut_as_they_lie(a, b, plan) if any(table.any() for table in bringing) else None
    chunks, calls = 1, 0
    if any(table.any() for table in bringing):
        calls = meetings
        if fine is None:
            chunks = max(len(_chunks(*cut)) for cut in pairwise(plan.b.cuts[1]))
    products = [sum(1 for _ in (fine or plan).tasks(w)) for w in workers]
    copies = [_copies(a, (fine or plan).a, w) + _copies(b, (fine or plan).b, w) for w in workers]
    calls += chunks * max(p + c for p, c in zip(products, copies, strict=True))
    result = traffic(plan.c, plan.target)
    if result.any():
        pieces = int((result > 0).sum(axis=0).max())
        calls += meetings + pieces * (2 if plan.c.partial else 1)  # terms are added up
    return calls


def own_bytes(a: Layout, b: Layout, plan: ProductPlan, itemsize: int, sums: int) -> int:
    """Bytes that the worker that copies most copies within its own memory: where its blocks do not serve as
    they lie, such as two that are to be one, and where terms are added up. A product waits for these copies,
    or they wait for it.

    Args:
        a: where A lies.
        b: where B lies.
        plan: the way.
        itemsize: bytes of an element of an operand.
        sums: bytes of an element of C when it is made.
    """
    fine = _cut_as_they_lie(a, b, plan) if _brings(a, b, plan) else None
    changes = [(a, (fine or plan).a, itemsize), (b, (fine or plan).b, itemsize)]
    if not plan.c.partial:
        changes.append((plan.c, plan.target, sums))
    added = traffic(plan.c, plan.target).sum(axis=0) if plan.c.partial else [0] * a.workers
    return max(
        sum(own_elements(lies, to, worker) * size for lies, to, size in changes)
        + 2 * sums * int(added[worker])  # the first term is copied, one is added to it
        for worker in range(a.workers)
    )


def _copies(lies: Layout, to: Layout, worker: int) -> int:
    """How many boxes come to a worker, its own that have to be copied among them."""
    steps = arrivals(lies, to, worker, tuple(range(lies.workers)), True).steps
    return sum(len(one) for one in steps.values())


def _cut_as_they_lie(a: Layout, b: Layout, plan: ProductPlan) -> ProductPlan | None:
    """The plan with the axis of sums cut wherever an operand is; None if products would be small or many."""
    return _cut(a, b, plan, SHORTEST, MOST_TERMS)


@lru_cache(maxsize=512)
def _cut(
    a: Layout, b: Layout, plan: ProductPlan, shortest: int, most_terms: int
) -> ProductPlan | None:
    cuts = sorted({*plan.a.cuts[1], *a.cuts[1], *b.cuts[0]})
    if min((high - low for low, high in pairwise(cuts)), default=0) < shortest:
        return None
    blocks = max(len(plan.c.held[w]) for w in plan.c.active)
    if blocks * (len(cuts) - 1) > most_terms * max(1, len(plan.c.active)):
        return None
    return replace(plan, a=_recut(plan.a, 1, cuts), b=_recut(plan.b, 0, cuts))


def _recut(layout: Layout, axis: int, cuts: Sequence[int]) -> Layout:
    """The same holders for an axis that is cut more often."""
    old, other = layout.cuts[axis], layout.grid[1 - axis]
    place = [bisect_right(old, low) - 1 for low in cuts[:-1]]
    if axis == 0:
        holders = [layout.holders[i * other + j] for i in place for j in range(other)]
    else:
        holders = [layout.holders[i * layout.grid[1] + j] for i in range(other) for j in place]
    made = [layout.cuts[0], layout.cuts[1]]
    made[axis] = tuple(cuts)
    return Layout(layout.shape, (made[0], made[1]), tuple(holders), layout.workers)


class _Term(NamedTuple):
    """A product of two blocks: their numbers, that of the block of C, and whether it is the first of that."""

    left: int
    right: int
    block: int
    begins: bool


@dataclass(frozen=True)
class _Terms:
    """What a worker does for `_by_terms`, found out once.

    Attributes:
        terms: in the order in which their blocks come.
        brought: blocks that come, in order: 0 for A and 1 for B, and the number.
        empty: blocks of C without a term.
        incoming: elements that come.
    """

    terms: tuple[_Term, ...]
    brought: tuple[tuple[int, int], ...]
    empty: tuple[int, ...]
    incoming: int


@lru_cache(maxsize=512)
def _terms_of(a: Layout, b: Layout, plan: ProductPlan, rank: int, ring: tuple[int, ...]) -> _Terms:
    depth, columns = plan.a.grid[1], plan.b.grid[1]
    far = tuple(arrivals(lies, to, rank, ring, True).far for lies, to in ((a, plan.a), (b, plan.b)))
    tasks = [(i * depth + l, l * columns + j, i * columns + j) for i, j, l in plan.tasks(rank)]  # noqa: E741
    tasks.sort(key=lambda one: max(far[0].get(one[0], 0), far[1].get(one[1], 0)))
    begun = set[int]()
    terms, brought = [], dict[tuple[int, int], None]()
    for left, right, block in tasks:
        terms.append(_Term(left, right, block, block not in begun))
        begun.add(block)
        for one in ((0, left), (1, right)):
            if one[1] in far[one[0]]:
                brought[one] = None
    held = plan.c.held[rank]
    return _Terms(
        tuple(terms),
        tuple(brought),
        tuple(n for n in held if n not in begun),
        _incoming(a, b, plan, rank),
    )


def _by_terms(
    a: Parts, b: Parts, plan: ProductPlan, how: Arithmetic, dtype: np.dtype[Any], keep: bool
) -> Parts:
    """Terms of own blocks first, then those of blocks that come, in the order in which they come."""
    team = a.team
    steps = _terms_of(a.layout, b.layout, plan, team.rank, team.ring)
    results = Results(team, plan.c, plan.target, how.sums, dtype)
    team.count.planned_bytes += steps.incoming * how.operand.itemsize

    def phase(fetches: tuple[Fetch, Fetch]) -> Callable[[], None]:
        return lambda: _multiply_terms(team, steps, fetches, results, how)

    _phase((a, b), plan, how, ("terms", dtype), results, phase, keep)
    return results.parts()


def _multiply_terms(
    team: Team, steps: _Terms, fetches: tuple[Fetch, Fetch], results: Results, how: Arithmetic
) -> None:
    peers = team.peers
    assert peers is not None
    peers.begin()
    marks: dict[tuple[int, int], Any] = {}
    for which, block in steps.brought:
        fetches[which].copy(block)
        marks[which, block] = peers.mark()
    lefts, rights = fetches[0].blocks, fetches[1].blocks
    for left, right, block, begins in steps.terms:
        for one in ((0, left), (1, right)):
            if (mark := marks.pop(one, None)) is not None:
                peers.wait(mark)
        multiply(team, lefts[left], rights[right], how, results.terms[block], not begins)
    for block in steps.empty:
        results.terms[block][...] = 0
    results.finish()
    peers.end()


def _phase(
    operands: tuple[Parts, Parts],
    plan: ProductPlan,
    how: Arithmetic,
    kind: Hashable,
    results: Results,
    phase: Callable[[tuple[Fetch, Fetch]], Callable[[], None]],
    keep: bool,
) -> None:
    """Copies and products between two meetings: launched as a graph where they have been before.

    Args:
        operands: both.
        plan: where their blocks go.
        how: arithmetic of local products.
        kind: what else the phase depends on.
        results: the blocks of C.
        phase: what is done, with the blocks that come.
        keep: whether blocks that come are kept.
    """
    team = operands[0].team
    a, b = narrowed_pair(*operands, how)
    replays, arenas = team.replays, list[Arena]()
    if replays is not None and replays.usable(team):
        needed = [arena_bytes(a, plan.a), arena_bytes(b, plan.b)]
        if sum(needed) <= MOST_ARENA:
            arenas = [Arena(team, one) for one in (needed if keep else [sum(needed)])]

    def brought() -> tuple[Fetch, Fetch]:
        """Where blocks come to: the same places each time, if there is an arena."""
        if not arenas:
            return Fetch(a, plan.a), Fetch(b, plan.b)
        arenas[0].taken = arenas[-1].taken = 0
        return Fetch(a, plan.a, arena=arenas[0]), Fetch(b, plan.b, arena=arenas[-1])

    fetches: tuple[Fetch, Fetch] | None = None
    if arenas:
        own = tuple(place(one.memory) for one in arenas), results.places()
        key = (kind, how, plan, a.layout, b.layout, own, places_of(a), places_of(b))
        replays.phase(team, key, lambda: phase(brought())())
    else:
        fetches = brought()
        phase(fetches)()
    if keep and team.kept is not None:
        sides = zip(operands, (a, b), fetches or brought(), strict=True)
        for x, narrow, fetch in sides:
            _keep(x, narrow, fetch, how)


def _keep(x: Parts, narrow: Parts, fetch: Fetch, how: Arithmetic) -> None:
    """Keep what came of an operand, if anything came to any worker; own blocks that are rounded are written
    again by the next product.
    """
    if not traffic(x.layout, fetch.layout).any():
        return
    blocks = fetch.blocks
    if narrow is not x:
        blocks = {n: block.copy() if fetch.is_own(n) else block for n, block in blocks.items()}
    x.team.kept.add(x, Parts(x.team, fetch.layout, how.operand, blocks), how.operand)


def turn(layout: Layout) -> Layout:
    """A layout of the transposed matrix."""
    return layout.transposed((1, 0))


def _by_columns(
    a: Parts, b: Parts, plan: ProductPlan, how: Arithmetic, dtype: np.dtype[Any], turned: bool,
    keep: bool,
) -> Parts:  # fmt: skip
    team = a.team
    rounded = plan.whole and dtype in (how.sums, how.operand)  # by the library
    results = Results(team, plan.c, plan.target, dtype if rounded else how.sums, dtype, turned)
    team.count.planned_bytes += (
        _incoming(a.layout, b.layout, plan, team.rank) * how.operand.itemsize
    )

    def phase(fetches: tuple[Fetch, Fetch]) -> Callable[[], None]:
        return lambda: _multiply_columns(team, plan, fetches, results, how)

    _phase((a, b), plan, how, ("columns", rounded, dtype), results, phase, keep)
    return results.parts()


def _multiply_columns(
    team: Team,
    plan: ProductPlan,
    fetches: tuple[Fetch, Fetch],
    results: Results,
    how: Arithmetic,
) -> None:
    peers, depth, columns = team.peers, plan.a.grid[1], plan.b.grid[1]
    assert peers is not None
    (fetch_a, fetch_b), made = fetches, results.terms
    tasks: dict[int, list[tuple[int, int]]] = {}
    for i, j, l in plan.tasks(team.rank):  # noqa: E741 - the axis' usual letter
        tasks.setdefault(j, []).append((i, l))
    peers.begin()
    fetch_a.copy(own=False)
    came = peers.mark()
    fetch_a.copy_own()  # beside what comes
    steps = []
    for j in tasks:
        # each worker copies from another one at a time
        near = {l: fetch_b.farthest(l * columns + j) or 0 for _, l in tasks[j]}  # noqa: E741
        depths = sorted(near, key=near.__getitem__)
        for last in _chunks(plan.b.cuts[1][j], plan.b.cuts[1][j + 1]):
            for l in depths:  # noqa: E741
                fetch_b.copy(l * columns + j, last)
            steps.append((j, last, peers.mark()))
    peers.wait(came)
    for j, (low, high), mark in steps:
        peers.wait(mark)
        start, begun = plan.b.cuts[1][j], set[int]()
        for i, l in tasks[j]:  # noqa: E741
            block = i * columns + j
            into = made[block][:, low - start : high - start]
            right = fetch_b.blocks[l * columns + j][:, low - start : high - start]
            multiply(team, fetch_a.blocks[i * depth + l], right, how, into, block in begun)
            begun.add(block)
    done = {i * columns + j for j in tasks for i, _ in tasks[j]}
    for block, array in made.items():
        if block not in done:
            array[...] = 0
    results.finish()
    peers.end()


def narrowed_pair(a: Parts, b: Parts, how: Arithmetic) -> tuple[Parts, Parts]:
    """Both as they are multiplied; one that stands on both sides is rounded once."""
    left = _narrowed(a, how, 0)
    if b.data is a.data and (b.view, b.layout) == (a.view, a.layout):
        return left, left
    return left, _narrowed(b, how, 1)


def _narrowed(x: Parts, how: Arithmetic, side: int) -> Parts:
    """The array with its blocks rounded to the operands' dtype, where they lie.

    The copies of the last products are written again, so that workers do not have to tell each other where
    they lie, for which hosts would wait. Nobody reads them any more where a phase has ended.
    """
    if x.dtype == how.operand:
        return x
    kept, turned = x.team.narrowed, x.view.endswith("T")
    key = (x.layout, how.operand, turned, side)
    made: Parts | None = kept.pop(key, None)
    if made is None:
        while len(kept) > 1:
            del kept[next(iter(kept))]
        made = Parts(x.team, x.layout, how.operand, {})
        for n, block in x.blocks.items():
            shape = block.shape[::-1] if turned else block.shape
            array = x.team.xp.empty(shape, how.operand)
            made.blocks[n] = array.T if turned else array
    if x.layout.most * how.operand.itemsize <= MOST_NARROWED:
        kept[key] = made
    for n, block in x.blocks.items():
        into = made.blocks[n]
        cast(x.team.xp, *((into.T, block.T) if turned else (into, block)))
    return made


@lru_cache(maxsize=512)
def _incoming(a: Layout, b: Layout, plan: ProductPlan, rank: int) -> int:
    """Elements that come to a worker."""
    return int(sum(table[:, rank].sum() for table in (traffic(a, plan.a), traffic(b, plan.b))))


@lru_cache(maxsize=512)
def _brings(a: Layout, b: Layout, plan: ProductPlan) -> bool:
    """Whether any worker needs blocks of others."""
    return bool(traffic(a, plan.a).any() or traffic(b, plan.b).any())


def _chunks(low: int, high: int) -> list[tuple[int, int]]:
    """Columns of the chunks; what is left over goes to the last."""
    cuts, width = [low], FIRST
    while high - cuts[-1] > 2 * width:
        cuts.append(cuts[-1] + width)
        width *= 2
    return list(zip(cuts, [*cuts[1:], high], strict=True))


def filled(
    team: Team, layout: Layout, blocks: dict[int, Array], dtype: np.dtype[Any]
) -> dict[int, Array]:
    """Blocks that no product went to, where the axis of sums is empty, are zero."""
    for block in layout.held[team.rank]:
        if block not in blocks:
            sizes = [high - low for low, high in layout.boxes[block]]
            blocks[block] = team.xp.zeros(sizes, dtype)
    return blocks
