"""Products of blocks that come by copies while others are multiplied.

Columns of C are computed in chunks; a chunk waits for its own columns of B only.

Each chunk is one call of the library over the whole axis of sums where that axis is not cut, so that sums are
rounded once, and the first chunk is small, since nothing hides its copies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.casting import cast
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.pulling import (
    Arena,
    Fetch,
    arena_bytes,
    place,
    places_of,
)
from magmadnn.dmath.arrays.team import Array, Peers, Team, is_half
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.moves import traffic
from magmadnn.dmath.products.arithmetic import Arithmetic, multiply, wire_of
from magmadnn.dmath.products.cutting import (
    Term,
    WorkerTerms,
    brings,
    chunks_of,
    cut_as_they_lie,
    early_chunks,
    early_part,
    incoming,
    worker_terms,
)
from magmadnn.dmath.products.finishing import Results
from magmadnn.dmath.products.plans import ProductPlan, c_stays

MOST_ARENA = 1 << 30  # bytes of blocks that come to one place each time, so that a graph finds them
MOST_NARROWED = 1 << 30  # bytes of a rounded operand on a worker that are kept for the next product


def can_pipeline(
    a: Parts, b: Parts, plan: ProductPlan, how: Arithmetic, wire: np.dtype[Any] | None
) -> bool:
    """Whether `pipelined` can compute a product; the same on all workers."""
    if plan.way != "fetch" or not comes_by_copies(a, b, how, wire):
        return False
    return plan.c.partial or brings(a.layout, b.layout, plan)


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
    rounded once. Where such pieces are small or many, or the plan has a pace, the operand of which more has
    to come comes in chunks of columns: B, or A by rows. With `keep` blocks that come serve products to come.
    """
    if (fine := cut_as_they_lie(a.layout, b.layout, plan)) is not None:
        if plan.mixed and plan.whole and plan.c == plan.target and dtype in (how.sums, how.operand):
            return _by_both(a, b, plan, fine, how, dtype, keep)
        return _by_terms(a, b, fine, how, dtype, keep)
    if dtype != how.sums and not plan.whole and not plan.c.partial:
        plan = c_stays(a.shape[1], plan.c, plan.target)
    left, right = (traffic(x.layout, to).sum() for x, to in ((a, plan.a), (b, plan.b)))
    if left <= right:
        return _by_columns(a, b, plan, how, dtype, False, keep)
    turned = replace(plan, a=turn(plan.b), b=turn(plan.a), c=turn(plan.c), target=turn(plan.target))
    made = _by_columns(b.transposed(), a.transposed(), turned, how, dtype, True, keep)
    return made.transposed()


def _by_terms(
    a: Parts, b: Parts, plan: ProductPlan, how: Arithmetic, dtype: np.dtype[Any], keep: bool
) -> Parts:
    """Terms of own blocks first, then those of blocks that come, in the order in which they come."""
    team = a.team
    # pieces of the first block that lie in one piece are copied faster than columns, or rows, of it
    rows = not a.view.endswith("T")
    steps = worker_terms(a.layout, b.layout, plan, team.rank, team.ring, rows)
    results = Results(team, plan.c, plan.target, how.sums, dtype)
    team.count.planned_bytes += steps.incoming * how.operand.itemsize

    def phase(fetches: tuple[Fetch, Fetch]) -> Callable[[], None]:
        return lambda: _multiply_terms(team, steps, fetches, results, how)

    _phase((a, b), plan, how, ("terms", dtype), results, phase, keep)
    return results.parts()


def _multiply_terms(
    team: Team, steps: WorkerTerms, fetches: tuple[Fetch, Fetch], results: Results, how: Arithmetic
) -> None:
    peers = team.peers
    assert peers is not None
    peers.begin()
    marks: dict[tuple[int, int], Any] = {}
    chunks = []
    if steps.early:
        side, first = steps.brought[0]
        chunks = [(one, _copied(peers, fetches[side], first, one, side)) for one in steps.early]
    for which, block in steps.brought[1 if chunks else 0 :]:
        marks[which, block] = _copied(peers, fetches[which], block)
    lefts, rights = fetches[0].blocks, fetches[1].blocks
    if chunks:
        left, right, block, _ = steps.terms[0]
        start = steps.early[0][0]
        for (low, high), mark in chunks:
            peers.wait(mark)
            piece = slice(low - start, high - start)
            if side == 0:
                x, y, into = lefts[left][piece], rights[right], results.terms[block][piece]
            else:
                x, y, into = lefts[left], rights[right][:, piece], results.terms[block][:, piece]
            multiply(team, x, y, how, into)
    for left, right, block, begins in steps.terms[1 if chunks else 0 :]:
        for one in ((0, left), (1, right)):
            if (mark := marks.pop(one, None)) is not None:
                peers.wait(mark)
        multiply(team, lefts[left], rights[right], how, results.terms[block], not begins)
    for block in steps.empty:
        results.terms[block][...] = 0
    results.finish()
    peers.end()


def _by_both(
    a: Parts, b: Parts, plan: ProductPlan, fine: ProductPlan, how: Arithmetic,
    dtype: np.dtype[Any], keep: bool,
) -> Parts:  # fmt: skip
    """Terms of some rows, or columns, of C while blocks come, whole sums of the others after that."""
    team = a.team
    axis = int(a.view.endswith("T"))
    steps = worker_terms(a.layout, b.layout, fine, team.rank, team.ring, axis == 0)
    results = Results(team, plan.c, plan.target, how.sums, dtype)
    team.count.planned_bytes += steps.incoming * how.operand.itemsize

    def phase(fetches: tuple[Fetch, Fetch]) -> Callable[[], None]:
        return lambda: _multiply_both(team, plan, fine, steps, fetches, results, how, axis)

    _phase((a, b), plan, how, ("both", axis, dtype), results, phase, keep)
    return results.parts()


def _multiply_both(
    team: Team, plan: ProductPlan, fine: ProductPlan, steps: WorkerTerms,
    fetches: tuple[Fetch, Fetch], results: Results, how: Arithmetic, axis: int,
) -> None:  # fmt: skip
    peers, layouts = team.peers, (fine.a, fine.b)
    assert peers is not None
    (bring_a, own_a, _), (bring_b, own_b, _) = found = [
        fetch.pieces(layout) for fetch, layout in zip(fetches, layouts, strict=True)
    ]
    brings, lefts, rights = (
        (bring_a, bring_b),
        {**bring_a.blocks, **own_a},
        {**bring_b.blocks, **own_b},
    )

    def edges(which: int, block: int) -> tuple[int, int, int]:
        """First index, end of what is made of terms, and end of an operand's block along the axis."""
        low, high = layouts[which].boxes[block][axis]
        return low, low + early_part(high - low, plan.mixed), high

    peers.begin()
    marks: dict[tuple[int, int], Any] = {}
    chunks = list[tuple[tuple[int, int], Any]]()
    for number, (which, block) in enumerate(steps.brought):
        if which != axis:
            marks[which, block] = _copied(peers, brings[which], block)
            continue
        low, middle, _ = edges(which, block)
        if number == 0 and steps.early:
            for piece in early_chunks(low, middle):
                chunks.append((piece, _copied(peers, brings[which], block, piece, axis)))
        else:
            marks[which, block] = _copied(peers, brings[which], block, (low, middle), axis)
    for which, block in steps.brought:
        if which == axis:
            _copied(peers, brings[which], block, edges(which, block)[1:], axis)
    for bring, (_, _, missing) in zip(brings, found, strict=True):
        for block in missing:
            bring.copy(block)
    came = peers.mark()

    def add(term: Term, low: int, high: int) -> None:
        part = slice(low, high)
        left, right, into = lefts[term.left], rights[term.right], results.terms[term.block]
        if axis == 0:
            multiply(team, left[part], right, how, into[part], not term.begins)
        else:
            multiply(team, left, right[:, part], how, into[:, part], not term.begins)

    for number, term in enumerate(steps.terms):
        low, middle, _ = edges(axis, (term.left, term.right)[axis])
        for one in ((0, term.left), (1, term.right)):
            if (mark := marks.pop(one, None)) is not None:
                peers.wait(mark)
        if number == 0 and chunks:
            for (first, last), mark in chunks:
                peers.wait(mark)
                add(term, first - low, last - low)
        else:
            add(term, 0, middle - low)
    peers.wait(came)
    columns = plan.b.grid[1]
    for i, j, _ in plan.tasks(team.rank):
        block, every = i * columns + j, slice(None)
        low, high = plan.c.boxes[block][axis]
        middle = early_part(high - low, plan.mixed)
        rest = (slice(middle, None), every) if axis == 0 else (every, slice(middle, None))
        left, right, into = fetches[0].blocks[i], fetches[1].blocks[j], results.whole[block]
        multiply(team, left[rest[0]], right[:, rest[1]], how, into[rest])
        made = slice(0, middle)
        results.parts_of_terms[block] = (made, every) if axis == 0 else (every, made)
    for block in steps.empty:
        results.whole[block][...] = 0
    results.finish()
    peers.end()


def _copied(
    peers: Peers, fetch: Fetch, block: int, piece: tuple[int, int] | None = None, axis: int = 1
) -> Any:
    """Begin to copy a block, or rows or columns of it; the mark to wait for."""
    fetch.copy(block, piece, axis=axis)
    return peers.mark()


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
    team.count.planned_bytes += incoming(a.layout, b.layout, plan, team.rank) * how.operand.itemsize

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
        for last in chunks_of(plan.b.cuts[1][j], plan.b.cuts[1][j + 1], plan.pace):
            for l in depths:  # noqa: E741
                fetch_b.copy(l * columns + j, last, own=False)
            steps.append((j, last, peers.mark()))
    fetch_b.copy_own()  # while the first chunk comes
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


def filled(
    team: Team, layout: Layout, blocks: dict[int, Array], dtype: np.dtype[Any]
) -> dict[int, Array]:
    """Blocks that no product went to, where the axis of sums is empty, are zero."""
    for block in layout.held[team.rank]:
        if block not in blocks:
            sizes = [high - low for low, high in layout.boxes[block]]
            blocks[block] = team.xp.zeros(sizes, dtype)
    return blocks
