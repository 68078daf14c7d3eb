"""Rings whose blocks come by copies from other workers' memory, while others are multiplied.

Each ring is one phase: the host hands it over at once, by one launch where it has been before. Blocks of an
operand come straight from the worker that has them, so that no worker waits for another between stages.
Sums are passed on from worker to worker, as each adds its term: streams meet at each stage.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.pulling import (
    Arena,
    Fetch,
    aligned,
    arena_bytes,
    copied,
    like,
    place,
    places_of,
    shared_blocks,
)
from magmadnn.dmath.arrays.replaying import run_phase
from magmadnn.dmath.arrays.team import Array, Peers, Team
from magmadnn.dmath.layouts.layout import Layout, elements
from magmadnn.dmath.layouts.moves import traffic
from magmadnn.dmath.products.arithmetic import Arithmetic, multiply
from magmadnn.dmath.products.finishing import Results
from magmadnn.dmath.products.pipelining import narrowed_pair
from magmadnn.dmath.products.plans import ProductPlan


class _Stage(NamedTuple):
    """What a worker multiplies by in a stage of a ring.

    Attributes:
        owner: the worker whose blocks these are.
        blocks: their numbers.
    """

    owner: int
    blocks: tuple[int, ...]


def ring_by_copies(
    a: Parts, b: Parts, plan: ProductPlan, how: Arithmetic, dtype: np.dtype[Any], keep: bool = False
) -> Parts:
    """C = A B where C stays and blocks of B come one worker's after the other's, into two buffers.

    Stage s of each worker multiplies by the blocks of the worker s places before it, while those of the next
    stage come. Any layout of B will do.

    Args:
        a: left matrix; what is missing of its rows is brought first.
        b: right matrix, one holder for each block, which is a worker of C.
        plan: of way "ring b".
        how: arithmetic of local products.
        dtype: of the result.
        keep: whether all that comes is kept; it has memory of its own then.

    Returns:
        C in the layout `plan.target`, of `dtype`.
    """
    team = a.team
    left, right = narrowed_pair(a, b, how)
    stages = _stages(team, right.layout, plan.c)
    results = Results(team, plan.c, plan.target, how.sums, dtype)
    made = results.terms
    theirs = shared_blocks(right)
    coming = sum(elements(right.layout.boxes[n]) for stage in stages[1:] for n in stage.blocks)
    brought = int(traffic(left.layout, plan.a)[:, team.rank].sum())
    team.count.planned_bytes += (coming + brought) * how.operand.itemsize
    room = arena_bytes(left, plan.a)
    arena = Arena(team, room + _room(right, stages, keep))

    def blocks() -> dict[int, Array]:
        return _buffers(right, stages, theirs, arena, room, keep)

    def phase() -> None:
        arena.taken = 0
        fetch = Fetch(left, plan.a, arena=arena)
        _go_round(team, plan, right.layout, stages, fetch, theirs, blocks(), made, how)
        results.finish()
        _peers(team).end()

    def key() -> Hashable:
        own = place(arena.memory), results.places()
        return (
            "ring",
            how,
            dtype,
            keep,
            plan,
            left.layout,
            right.layout,
            own,
            places_of(left),
            places_of(right),
        )

    run_phase(team, key, phase)
    if keep and team.kept is not None:
        passed = {n: x.copy() if n in right.blocks else x for n, x in blocks().items()}
        team.kept.keep_passed(b, passed, how.operand)
    return results.parts()


def _stages(team: Team, b: Layout, c: Layout) -> list[_Stage]:
    """The stages of this worker; none where it has nothing of C."""
    members = team.around(c.active)
    if team.rank not in members:
        return []
    at = members.index(team.rank)
    owners = [members[(at - stage) % len(members)] for stage in range(len(members))]
    return [_Stage(owner, b.held[owner]) for owner in owners]


def _room(b: Parts, stages: list[_Stage], keep: bool) -> int:
    """Bytes of the buffers for blocks that come."""
    sizes = [
        sum(aligned(elements(b.layout.boxes[n]) * b.dtype.itemsize) for n in stage.blocks)
        for stage in stages[1:]
    ]
    return sum(sizes) if keep else max(sizes, default=0) * min(2, len(sizes))


def _buffers(
    b: Parts, stages: list[_Stage], theirs: list[dict[int, Array]], arena: Arena, start: int, keep: bool
) -> dict[int, Array]:  # fmt: skip
    """Where each block of B is multiplied: own ones where they lie, others in two buffers that take turns,
    from `start` in an arena.
    """
    blocks = dict(b.blocks)
    begins = [start, start + _room(b, stages, False) // 2]
    arena.taken = start
    for number, stage in enumerate(stages[1:]):
        if not keep:
            arena.taken = begins[number % 2]
        for n in stage.blocks:
            source = theirs[stage.owner][n]
            blocks[n] = like(source, source.shape, b.dtype, arena.array)
    return blocks


def _go_round(
    team: Team, plan: ProductPlan, b: Layout, stages: list[_Stage], fetch: Fetch,
    theirs: list[dict[int, Array]], blocks: dict[int, Array], made: dict[int, Array], how: Arithmetic,
) -> None:  # fmt: skip
    peers = _peers(team)
    peers.begin()
    fetch.copy(own=False)
    here = peers.mark()
    fetch.copy_own()  # beside what comes
    marks: dict[int, Any] = {}

    def bring(number: int) -> None:
        for stage in stages[number : number + 1]:
            for n in stage.blocks:
                copied(team, blocks[n], theirs[stage.owner][n], stage.owner)
                marks[n] = peers.mark()

    bring(1)
    bring(2)
    peers.wait(here)
    begun = set[tuple[int, int]]()
    for number, stage in enumerate(stages):
        for n in stage.blocks:
            if number:
                peers.wait(marks[n])
            _add_products(team, plan, fetch, b, n, blocks[n], made, begun, how)
        if number and number + 2 < len(stages):
            peers.follow()  # the buffer is free again when these products are done
            bring(number + 2)
    if not plan.a.shape[1]:
        for block in made.values():
            block[...] = 0


def _add_products(
    team: Team, plan: ProductPlan, fetch: Fetch, b: Layout, number: int, right: Array,
    made: dict[int, Array], begun: set[tuple[int, int]], how: Arithmetic,
) -> None:  # fmt: skip
    """Add A's columns times a block of B to this worker's blocks of C; the first ones are written."""
    (k0, k1), (n0, n1) = b.boxes[number]
    column, columns = number % b.grid[1], plan.c.grid[1]
    for block, out in made.items():
        c0, c1 = plan.c.boxes[block][1]
        low, high = max(c0, n0), min(c1, n1)
        if low < high and k0 < k1:
            left = fetch.blocks[block // columns][:, k0:k1]
            into, part = out[:, low - c0 : high - c0], right[:, low - n0 : high - n0]
            multiply(team, left, part, how, into, (block, column) in begun)
            begun.add((block, column))


# --- sums that go round ---------------------------------------------------------------------------


def sums_by_copies(
    a: Parts, b: Parts, plan: ProductPlan, how: Arithmetic, dtype: np.dtype[Any]
) -> Parts:
    """C = A B where each worker has columns of A and the rows of B to them, and sums go round.

    In stage s a worker makes its term of the blocks of the worker s + 1 places before it in the ring, while
    the sum so far comes from the one before it, which made it in the last stage.

    Args:
        a: left matrix; what is missing of the columns is brought first.
        b: right matrix, likewise.
        plan: of way "ring c".
        how: arithmetic of local products.
        dtype: of the result.

    Returns:
        C in the layout `plan.target`, of `dtype`.
    """
    team, target = a.team, plan.target
    left, right = narrowed_pair(a, b, how)
    sums, everyone = _sum_buffers(team, target, how.sums)
    results = Results(team, target, target, how.sums, dtype)
    at = team.ring.index(team.rank)
    owners = [team.ring[(at - 1 - stage) % team.size] for stage in range(team.size)]
    moved = sum(target.elements(owner) for owner in owners[1:]) * how.sums.itemsize
    brought = [
        traffic(x.layout, to)[:, team.rank].sum() for x, to in ((left, plan.a), (right, plan.b))
    ]
    team.count.planned_bytes += moved + int(sum(brought)) * how.operand.itemsize
    most = max(target.elements(owner) for owner in owners)
    room = arena_bytes(left, plan.a) + arena_bytes(right, plan.b)
    arena = Arena(team, room + aligned(most * how.sums.itemsize))

    def phase() -> None:
        arena.taken = 0
        fetches = Fetch(left, plan.a, arena=arena), Fetch(right, plan.b, arena=arena)
        came = arena.array((most,), how.sums)
        _pass_sums(team, target, owners, fetches, sums, everyone, came, results.terms, how)
        results.finish()
        _peers(team).end()

    def key() -> Hashable:
        own = place(arena.memory), results.places()
        shared = tuple(place(x) for one in everyone for x in one)
        return (
            "sums",
            how,
            dtype,
            plan,
            left.layout,
            right.layout,
            own,
            shared,
            places_of(left),
            places_of(right),
        )

    run_phase(team, key, phase)
    return results.parts()


def _sum_buffers(
    team: Team, target: Layout, dtype: np.dtype[Any]
) -> tuple[list[Array], list[list[Array]]]:
    """Two buffers in which sums are made that others read, and those of all workers. Collective."""
    most = max(target.elements(worker) for worker in range(team.size))

    def make() -> list[Array]:
        return [team.xp.empty(most, dtype) for _ in range(2)]

    return team.shared_buffers(("sums", target, dtype), 2 * most * dtype.itemsize, make)


def _pass_sums(
    team: Team, target: Layout, owners: list[int], fetches: tuple[Fetch, Fetch], sums: list[Array],
    everyone: list[list[Array]], came: Array, made: dict[int, Array], how: Arithmetic,
) -> None:  # fmt: skip
    peers, last = _peers(team), team.size - 1
    before = team.ring[(team.ring.index(team.rank) - 1) % team.size]
    peers.begin()
    for fetch in fetches:
        fetch.copy(own=False)
    here = peers.mark()
    for fetch in fetches:
        fetch.copy_own()
    peers.wait(here)
    met: Any = None
    arrived: Any = None
    for stage, owner in enumerate(owners):
        total = made if stage == last else _cut(sums[stage % 2], target, owner)
        if stage >= 2:
            peers.wait(met)  # the next worker has what this buffer held two stages ago
        for n, block in total.items():
            _term(team, fetches, target.boxes[n], block, how)
        if arrived is not None:
            peers.wait(arrived)
            for n, part in _cut(came, target, owner).items():
                team.xp.add(total[n], part, out=total[n])
        if stage < last:
            peers.begin()
            met = peers.mark()
            size = target.elements(owners[stage + 1])
            copied(team, came[:size], everyone[before][stage % 2][:size], before)
            arrived = peers.mark()


def _cut(flat: Array, target: Layout, owner: int) -> dict[int, Array]:
    """The blocks of a worker in a buffer, one behind the other."""
    found, at = {}, 0
    for n in target.held[owner]:
        size = elements(target.boxes[n])
        found[n] = flat[at : at + size].reshape(_sizes(target, n))
        at += size
    return found


def _term(team: Team, fetches: tuple[Fetch, Fetch], box: Any, into: Array, how: Arithmetic) -> None:
    """This worker's term of a block of C."""
    (m0, m1), (n0, n1) = box
    lefts, rights = fetches[0].blocks, fetches[1].blocks
    if not lefts or not rights:
        into[...] = 0
        return
    left, right = next(iter(lefts.values())), next(iter(rights.values()))
    multiply(team, left[m0:m1], right[:, n0:n1], how, into)


def _sizes(layout: Layout, block: int) -> list[int]:
    return [high - low for low, high in layout.boxes[block]]


def _peers(team: Team) -> Peers:
    assert team.peers is not None
    return team.peers
