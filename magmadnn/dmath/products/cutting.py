"""How a product whose blocks come by copies is cut, found out from layouts: into terms as operands lie, or
into chunks of columns; and what that costs a worker's host, and its memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from magmadnn.dmath.arrays.pulling import arrivals, own_elements
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.moves import traffic
from magmadnn.dmath.products.plans import ProductPlan

SHORTEST = 512  # piece of the axis of sums that a product of its own pays for
MOST_TERMS = 16  # products of a worker for each worker
FIRST = 1024  # columns of the first chunk, for which nothing is multiplied yet
_EARLY = 1.5  # pace of the chunks of a first block: products of blocks of 4,096 in TF32 on H200s take 1.9
_FILL = 1024  # rows of which tiles fill 132 multiprocessors to 97 %, beside 4,096 columns or more
_DOUBLING = 3.0  # pace at which each chunk has twice the columns of the one before
_LATE = (
    1.15  # a chunk that comes so much later than the products before it end is not waited for long
)


@lru_cache(maxsize=512)
def incoming(a: Layout, b: Layout, plan: ProductPlan, rank: int) -> int:
    """Elements that come to a worker."""
    return int(sum(table[:, rank].sum() for table in (traffic(a, plan.a), traffic(b, plan.b))))


@lru_cache(maxsize=512)
def brings(a: Layout, b: Layout, plan: ProductPlan) -> bool:
    """Whether any worker needs blocks of others."""
    return bool(traffic(a, plan.a).any() or traffic(b, plan.b).any())


def cut_as_they_lie(a: Layout, b: Layout, plan: ProductPlan) -> ProductPlan | None:
    """The plan with the axis of sums cut wherever an operand is; None if products would be small or many, or
    sums are to be whole.
    """
    return None if plan.pace else _cut(a, b, plan, SHORTEST, MOST_TERMS)


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


class Term(NamedTuple):
    """A product of two blocks: their numbers, that of the block of C, and whether it is the first of that."""

    left: int
    right: int
    block: int
    begins: bool


@dataclass(frozen=True)
class WorkerTerms:
    """What a worker does for `_by_terms`, found out once.

    Attributes:
        terms: in the order in which their blocks come.
        brought: blocks that come, in order: 0 for A and 1 for B, and the number.
        empty: blocks of C without a term.
        incoming: elements that come.
        early: rows of the chunks in which the first block comes, if it is A's, or columns if it is B's, where
            the worker has nothing to multiply before.
    """

    terms: tuple[Term, ...]
    brought: tuple[tuple[int, int], ...]
    empty: tuple[int, ...]
    incoming: int
    early: tuple[tuple[int, int], ...]


@lru_cache(maxsize=512)
def worker_terms(
    a: Layout, b: Layout, plan: ProductPlan, rank: int, ring: tuple[int, ...], rows: bool = True
) -> WorkerTerms:
    """What worker `rank` does for a product of terms, whose plan is cut as operands lie.

    Blocks of one operand are brought first: on a grid all copy along its rows then, or along its columns,
    each from another one, and pieces of the first block are rows of A as they lie, or columns of B.

    Args:
        a: where A lies.
        b: where B lies.
        plan: the way.
        rank: number of the worker.
        ring: all workers in the order of a ring.
        rows: whether A's blocks are those that are brought first.
    """
    depth, columns = plan.a.grid[1], plan.b.grid[1]
    far = tuple(arrivals(lies, to, rank, ring, True).far for lies, to in ((a, plan.a), (b, plan.b)))
    tasks = [(i * depth + l, l * columns + j, i * columns + j) for i, j, l in plan.tasks(rank)]  # noqa: E741
    first = 0 if rows else 1  # operand that comes first
    tasks.sort(
        key=lambda one: (
            one[1 - first] in far[1 - first],
            max(far[0].get(one[0], 0), far[1].get(one[1], 0)),
        )
    )
    begun = set[int]()
    terms, brought = [], dict[tuple[int, int], None]()
    for task in tasks:
        terms.append(Term(*task, task[2] not in begun))
        begun.add(task[2])
        for which in (first, 1 - first):
            if task[which] in far[which]:
                brought[which, task[which]] = None
    early = list[tuple[int, int]]()
    if terms and (terms[0].left in far[0]) != (terms[0].right in far[1]):
        which, block = next(iter(brought))
        early = early_chunks(*(plan.a, plan.b)[which].boxes[block][which])
    return WorkerTerms(
        tuple(terms),
        tuple(brought),
        tuple(n for n in plan.c.held[rank] if n not in begun),
        incoming(a, b, plan, rank),
        tuple(early),
    )


def early_part(size: int, share: float) -> int:
    """Rows or columns, of so many, made of terms: as many as fill a GPU's multiprocessors some times."""
    fills = size // _FILL
    if fills < 2:
        return max(1, min(size, round(size * share)))
    return _FILL * min(fills, max(1, round(size * share / _FILL)))


def early_chunks(low: int, high: int) -> list[tuple[int, int]]:
    """Rows or columns of the chunks in which a first block comes, for which nothing is multiplied yet."""
    return chunks_of(low, high, _EARLY, FIRST // 2)


def chunks_of(low: int, high: int, pace: float = 0.0, first: int = 0) -> list[tuple[int, int]]:
    """Columns of the chunks: as wide as can come while those before are multiplied, since products of few
    columns are slow; what is left over goes to the last.

    Args:
        low: the first column.
        high: the one after the last.
        pace: of products, as a multiple of the time of copies; 0 if it is not known.
        first: columns of the first chunk; 0 for those that fill a GPU.
    """
    cuts, width, pace = [low], first or FIRST, pace or _DOUBLING
    came = done = 0.0  # in times of the copy of a column
    while (left := high - cuts[-1]) > 3 * width // 2 and came + left > _LATE * done:
        came += width
        done = max(came, done) + pace * width
        cuts.append(cuts[-1] + width)
        if came + 2 * width <= _LATE * done:
            width *= 2
    return list(zip(cuts, [*cuts[1:], high], strict=True))


def calls_of(a: Layout, b: Layout, plan: ProductPlan) -> int:
    """How many products, copies and meetings a worker's host hands to its GPU for a product whose blocks come
    by copies, on the worker that has most; bringing the result to where it goes is counted too.
    """
    bringing, workers = [traffic(a, plan.a), traffic(b, plan.b)], range(a.workers)
    meetings = 2 * 3  # each time an event, a wait for it, and the flags
    fine = cut_as_they_lie(a, b, plan) if any(table.any() for table in bringing) else None
    products = [sum(1 for _ in (fine or plan).tasks(w)) for w in workers]
    changes = (a, (fine or plan).a), (b, (fine or plan).b)
    calls = meetings if any(table.any() for table in bringing) else 0
    if calls and fine is None:
        stream = int(
            bringing[0].sum() <= bringing[1].sum()
        )  # of which columns, or rows, come in chunks
        blocks = pairwise(plan.b.cuts[1] if stream else plan.a.cuts[0])
        chunks = [chunks_of(*cut, plan.pace) for cut in blocks]
        coming = [one for cut in chunks for one in cut]
        calls += max(
            max(len(cut) for cut in chunks) * products[w]
            + _copies(*changes[1 - stream], w)
            + _copies(*changes[stream], w, stream, coming)
            for w in workers
        )
    else:
        calls += max(products[w] + sum(_copies(*change, w) for change in changes) for w in workers)
    if fine is not None:  # a first block in chunks is more copies, and more products
        ring = tuple(workers)
        early = max(len(worker_terms(a, b, fine, w, ring).early) for w in workers)
        calls += 2 * max(early - 1, 0)
    result = traffic(plan.c, plan.target)
    if result.any():
        pieces = int((result > 0).sum(axis=0).max())
        calls += meetings + pieces * (2 if plan.c.partial else 1)  # terms are added up
    return calls


def terms_of(a: Layout, b: Layout, plan: ProductPlan) -> int:
    """How many terms of sums a block of C is made of where blocks come by copies."""
    fine = (cut_as_they_lie(a, b, plan) if brings(a, b, plan) else None) or plan
    each = [(len(fine.c.held[w]), sum(1 for _ in fine.tasks(w))) for w in range(a.workers)]
    return max((-(-tasks // blocks) for blocks, tasks in each if blocks), default=0)


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
    fine = cut_as_they_lie(a, b, plan) if brings(a, b, plan) else None
    changes = [(a, (fine or plan).a, itemsize), (b, (fine or plan).b, itemsize)]
    if plan.pace:
        changes.clear()  # they are copied while the first chunk comes
    if not plan.c.partial:
        changes.append((plan.c, plan.target, sums))
    added = traffic(plan.c, plan.target).sum(axis=0) if plan.c.partial else [0] * a.workers
    return max(
        sum(own_elements(lies, to, worker) * size for lies, to, size in changes)
        + 2 * sums * int(added[worker])  # the first term is copied, one is added to it
        for worker in range(a.workers)
    )


def _copies(
    lies: Layout, to: Layout, worker: int, axis: int = 0, chunks: Sequence[tuple[int, int]] = ()
) -> int:
    """How many boxes come to a worker, its own that have to be copied among them; of others' only what lies
    in a chunk along an axis, if there are chunks.
    """
    steps = arrivals(lies, to, worker, tuple(range(lies.workers)), True).steps
    count = 0
    for move in (step.move for one in steps.values() for step in one):
        low, high = move.box[axis]
        parts = sum(max(low, first) < min(high, last) for first, last in chunks)
        count += parts if chunks and move.source != worker else 1
    return count
