"""Runs the plan of a product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.dmath.layouts import Layout, elements
from magmadnn.dmath.moves import within
from magmadnn.dmath.parts import Parts, empty, remap
from magmadnn.dmath.products.fixed import fixed_product
from magmadnn.dmath.products.plans import ProductPlan
from magmadnn.dmath.team import Array, Team


def accumulated(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What sums of products are kept in: float32 for halves, else the dtype itself."""
    half = dtype.itemsize == 2 and dtype.kind in "fV"
    return np.dtype(np.float32) if half else dtype


def run(
    a: Parts,
    b: Parts,
    plan: ProductPlan,
    dtype: np.dtype[Any],
    wire: np.dtype[Any] | None = None,
    keep: bool = False,
    fixed: bool = False,
) -> Parts:
    """C = A B as the plan says, with elements of `dtype`; halves are added up in float32 and rounded once
    at the end.

    Args:
        a: the left matrix.
        b: the right one.
        plan: made for their layouts.
        dtype: of the result.
        wire: dtype in which operands travel; None for their own.
        keep: whether blocks of operands that came from other workers are kept for products to come.
        fixed: whether bits may not depend on layouts; the plan is one that cuts no sum.
    """
    sums = accumulated(dtype)
    if plan.way == "ring b":
        made = ring(_fetched(a, plan.a, wire, keep), b, plan.c, sums, wire, keep)
    elif plan.way == "ring a":
        staying = _fetched(b, plan.b, wire, keep).transposed()
        made = ring(staying, a.transposed(), plan.c.transposed((1, 0)), sums, wire, keep)
        made = made.transposed()
    elif plan.way == "ring c":
        here = _fetched(a, plan.a, wire, keep), _fetched(b, plan.b, wire, keep)
        made = ring_of_sums(*here, plan.target, sums)
    else:
        made = multiplied(
            _fetched(a, plan.a, wire, keep), _fetched(b, plan.b, wire, keep), plan, sums, fixed
        )
    return remap(made, plan.target, dtype, share=True)


def _fetched(x: Parts, layout: Layout, wire: np.dtype[Any] | None, keep: bool) -> Parts:
    """An operand where it is multiplied, from parts that were kept if they lie better."""
    kept = x.team.kept
    if kept is None:
        return remap(x, layout, wire=wire, share=True)
    found: Parts = kept.fetched(x, layout, wire, keep)
    return found


def _product(team: Team, a: Array, b: Array, sums: np.dtype[Any]) -> Array:
    """A local product, in the dtype that sums are kept in."""
    if team.multiply is not None:
        return team.multiply(a.astype(sums, copy=False), b.astype(sums, copy=False))
    return team.xp.matmul(a.astype(sums, copy=False), b.astype(sums, copy=False))


def multiplied(
    a: Parts, b: Parts, plan: ProductPlan, sums: np.dtype[Any], fixed: bool = False
) -> Parts:
    """The terms of C that this worker makes of its blocks."""
    team, depth, columns = a.team, plan.a.grid[1], plan.b.grid[1]
    blocks: dict[int, Array] = {}
    for i, j, l in plan.tasks(team.rank):  # noqa: E741 - the axis' usual letter
        block = i * columns + j
        left, right = a.blocks[i * depth + l], b.blocks[l * columns + j]
        if fixed:
            term = fixed_product(team.xp, left, right, plan.c.boxes[block], sums)
        else:
            term = _product(team, left, right, sums)
        if block in blocks:
            blocks[block] += term
        else:
            blocks[block] = term
    return Parts(team, plan.c, sums, _filled(team, plan.c, blocks, sums))


def _filled(
    team: Team, layout: Layout, blocks: dict[int, Array], dtype: np.dtype[Any]
) -> dict[int, Array]:
    """Blocks that no product went to, where the axis of sums is empty, are zero."""
    for block in layout.held[team.rank]:
        if block not in blocks:
            sizes = [high - low for low, high in layout.boxes[block]]
            blocks[block] = team.xp.zeros(sizes, dtype)
    return blocks


def ring(
    a: Parts,
    b: Parts,
    c: Layout,
    sums: np.dtype[Any],
    wire: np.dtype[Any] | None,
    keep: bool,
) -> Parts:
    """C = A B where C and the rows of A that it needs stay, and blocks of B go round.

    Stage s of each worker multiplies by the blocks that worker `rank - s` had at first, one after the
    other, while each is passed on to the next worker: two buffers for each block, no broadcast. Any layout
    of B will do, since all of B comes by.

    Args:
        a: left matrix; this worker has whole rows for each of its blocks of C.
        b: right matrix, one holder for each block.
        c: layout of the result, one holder for each block; its workers, and no others, have B's blocks and
            pass them on.
        sums: dtype of the result.
        wire: dtype in which B travels.
        keep: whether what comes by is kept.
    """
    team, members = a.team, c.active
    made = empty(team, c, sums)
    comm = team.group(members)
    if comm is None:
        return made
    for block in made.blocks.values():
        block[...] = 0
    sent_as = b.dtype if wire is None else wire
    mine = {n: _contiguous(team, block, sent_as) for n, block in b.blocks.items()}
    widest = max(len(held) for held in b.layout.held)
    most = max((elements(b.layout.boxes[n]) for held in b.layout.held for n in held), default=0)
    buffers = [[team.xp.empty(most, sent_as) for _ in range(widest)] for _ in range(2)]
    now = [mine[n] for n in b.layout.held[team.rank]]
    passed: dict[int, Array] = {}
    for stage in range(comm.size):
        here = b.layout.held[members[(comm.rank - stage) % comm.size]]
        coming = b.layout.held[members[(comm.rank - stage - 1) % comm.size]]
        requests, following = [], []
        for inner in range(widest):
            if stage < comm.size - 1:
                out = buffers[stage % 2][inner][: _size(b.layout, coming, inner)]
                source = now[inner].reshape(-1) if inner < len(now) else out[:0]
                requests.append(_start_shift(team, comm, source, out))
                if inner < len(coming):
                    following.append(out.reshape(_sizes(b.layout, coming[inner])))
            if inner < len(now):
                _add_products(a, now[inner], b.layout.boxes[here[inner]], made, sums)
                if keep:
                    passed[here[inner]] = now[inner].copy()
        for request in requests:
            request.wait()
        now = following
    if keep and team.kept is not None:
        team.kept.keep_passed(b, passed)
    return made


def _sizes(layout: Layout, block: int) -> list[int]:
    return [high - low for low, high in layout.boxes[block]]


def _size(layout: Layout, blocks: Sequence[int], inner: int) -> int:
    return elements(layout.boxes[blocks[inner]]) if inner < len(blocks) else 0


def _contiguous(team: Team, block: Array, dtype: np.dtype[Any]) -> Array:
    return team.xp.ascontiguousarray(block.astype(dtype, copy=False))


def _start_shift(team: Team, comm: Communicator, source: Array, out: Array) -> Any:
    if source.size:
        team.count.sent_bytes += source.nbytes
        team.count.planned_bytes += source.nbytes
        team.count.messages += 1
    return comm.start_shift(source.view(np.uint8), out.view(np.uint8))


def _add_products(a: Parts, b: Array, box: Any, made: Parts, sums: np.dtype[Any]) -> None:
    """Add A's columns times a block of B to this worker's blocks of C."""
    (k0, k1), (n0, n1) = box
    columns = made.layout.grid[1]
    for number, block in made.blocks.items():
        c0, c1 = made.layout.boxes[number][1]
        low, high = max(c0, n0), min(c1, n1)
        if low < high:
            left = a.blocks[number // columns][:, k0:k1]
            block[:, low - c0 : high - c0] += _product(
                a.team, left, b[:, low - n0 : high - n0], sums
            )


def ring_of_sums(a: Parts, b: Parts, target: Layout, sums: np.dtype[Any]) -> Parts:
    """C = A B where each worker has columns of A and the rows of B to them, and sums go round: a reduce-
    scatter in p stages.

    In stage s a worker makes its term of the blocks of worker `rank - 1 - s` while the sum so far is on its
    way to it.
    """
    team = a.team
    request: Any = None
    arrived: Array = None
    total: dict[int, Array] = {}
    for stage in range(team.size):
        owner = (team.rank - 1 - stage) % team.size
        total = {n: _term(a, b, target.boxes[n], sums) for n in target.held[owner]}
        if request is not None:
            request.wait()
            at = 0
            for block in total.values():
                block += arrived[at : at + block.size].reshape(block.shape)
                at += block.size
        if stage < team.size - 1:
            flat = [block.reshape(-1) for block in total.values()]
            source = team.xp.concatenate(flat) if flat else team.xp.empty(0, sums)
            coming = target.elements((team.rank - 2 - stage) % team.size)
            arrived = team.xp.empty(coming, sums)
            request = _start_shift(team, team.comm, source, arrived)
    return Parts(team, target, sums, total)


def _term(a: Parts, b: Parts, box: Any, sums: np.dtype[Any]) -> Array:
    """This worker's term of a block of C."""
    (m0, m1), (n0, n1) = box
    mine = a.layout.held[a.team.rank]
    if not mine or not b.blocks:
        return a.team.xp.zeros((m1 - m0, n1 - n0), sums)
    left, right = a.blocks[mine[0]], next(iter(b.blocks.values()))
    term: Array = _product(a.team, left[m0:m1], right[:, n0:n1], sums)
    assert within(((m0, m1), (n0, n1)), ((0, a.shape[0]), (0, b.shape[1])))
    return term
