"""Runs the plan of a product."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.dmath.arrays.parts import Parts, empty
from magmadnn.dmath.arrays.pulling import place
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.replaying import run_phase
from magmadnn.dmath.arrays.team import Array, Team
from magmadnn.dmath.arrays.tracing import PRODUCT, TracedRequest, span
from magmadnn.dmath.layouts.layout import Layout, elements
from magmadnn.dmath.layouts.moves import within
from magmadnn.dmath.products.arithmetic import Arithmetic, multiply, on_device, wire_of
from magmadnn.dmath.products.fixed import fixed_product
from magmadnn.dmath.products.pipelining import (
    can_pipeline,
    comes_by_copies,
    filled,
    pipelined,
    turn,
)
from magmadnn.dmath.products.plans import ProductPlan
from magmadnn.dmath.products.rings import ring_by_copies, sums_by_copies


def run(
    a: Parts,
    b: Parts,
    plan: ProductPlan,
    dtype: np.dtype[Any],
    how: Arithmetic,
    wire: np.dtype[Any] | None = None,
    keep: bool = False,
    fixed: bool = False,
) -> Parts:
    """C = A B as the plan says, with elements of `dtype`; sums are rounded to it once, at the end.

    Args:
        a: the left matrix.
        b: the right one.
        plan: made for their layouts.
        dtype: of the result.
        how: arithmetic of local products.
        wire: dtype in which operands travel; None for their own, or what they are rounded to before products
            if that is smaller.
        keep: whether blocks of operands that came from other workers are kept for products to come.
        fixed: whether bits may not depend on layouts; the plan is one that cuts no sum.
    """
    if not fixed and (made := _by_copies(a, b, plan, dtype, how, wire, keep)) is not None:
        return remap(made, plan.target, dtype, share=True)
    wires = wire_of(a.dtype, how, wire), wire_of(b.dtype, how, wire)

    def left() -> Parts:
        return _fetched(a, plan.a, wires[0], keep)

    def right() -> Parts:
        return _fetched(b, plan.b, wires[1], keep)

    if plan.way == "ring b":
        made = ring(left(), b, plan.c, how, wires[1], keep)
    elif plan.way == "ring a":
        turned = plan.c.transposed((1, 0))
        made = ring(right().transposed(), a.transposed(), turned, how, wires[0], keep)
        made = made.transposed()
    elif plan.way == "ring c":
        made = ring_of_sums(left(), right(), plan.target, how)
    else:
        made = multiplied(left(), right(), plan, how, dtype, fixed)
    return remap(made, plan.target, dtype, share=True)


def _by_copies(
    a: Parts, b: Parts, plan: ProductPlan, dtype: np.dtype[Any], how: Arithmetic,
    wire: np.dtype[Any] | None, keep: bool,
) -> Parts | None:  # fmt: skip
    """The terms of C where blocks are copied as they are multiplied; None where they are not."""
    if can_pipeline(a, b, plan, how, wire):
        return pipelined(a, b, plan, how, dtype, keep)
    if plan.way == "fetch" or not comes_by_copies(a, b, how, wire):
        return None
    if plan.way == "ring c":
        return None if keep else sums_by_copies(a, b, plan, how, dtype)
    if plan.way == "ring b":
        return ring_by_copies(a, b, plan, how, dtype, keep)
    turned = replace(plan, a=turn(plan.b), b=turn(plan.a), c=turn(plan.c), target=turn(plan.target))
    made = ring_by_copies(b.transposed(), a.transposed(), turned, how, dtype, keep)
    return made.transposed()


def _fetched(x: Parts, layout: Layout, wire: np.dtype[Any] | None, keep: bool) -> Parts:
    """An operand where it is multiplied, from parts that were kept if they lie better."""
    kept = x.team.kept
    if kept is None:
        return remap(x, layout, wire=wire, share=True)
    found: Parts = kept.fetched(x, layout, wire, keep)
    return found


def multiplied(
    a: Parts,
    b: Parts,
    plan: ProductPlan,
    how: Arithmetic,
    dtype: np.dtype[Any],
    fixed: bool = False,
) -> Parts:
    """The terms of C that this worker makes of its blocks; cuBLAS rounds whole sums to `dtype` itself."""
    team, depth, columns = a.team, plan.a.grid[1], plan.b.grid[1]
    if fixed:
        return _fixed(a, b, plan, how)
    rounded = plan.whole and dtype == how.operand and on_device(team, how)
    kind = dtype if rounded else how.sums
    is_graph = team.peers is not None and on_device(team, how)
    tasks = list(plan.tasks(team.rank))
    blocks: dict[int, Array] = {}
    if rounded or is_graph:
        for block in dict.fromkeys(i * columns + j for i, j, _ in tasks):
            blocks[block] = team.xp.empty(_sizes(plan.c, block), kind)

    def phase() -> None:
        begun = set[int]()
        for i, j, l in tasks:  # noqa: E741 - the axis' usual letter
            block = i * columns + j
            left, right = a.blocks[i * depth + l], b.blocks[l * columns + j]
            into = blocks.get(block)
            blocks[block] = multiply(team, left, right, how, into, block in begun)
            begun.add(block)

    def key() -> Hashable:
        where = tuple(place(x) for one in (a.blocks, b.blocks, blocks) for x in one.values())
        return "local", plan, how, a.dtype, b.dtype, kind, where

    if is_graph:
        run_phase(team, key, phase)
    else:
        phase()
    return Parts(team, plan.c, kind, filled(team, plan.c, blocks, kind))


def _fixed(a: Parts, b: Parts, plan: ProductPlan, how: Arithmetic) -> Parts:
    """The same, with bits that do not depend on layouts."""
    team, depth, columns = a.team, plan.a.grid[1], plan.b.grid[1]
    blocks: dict[int, Array] = {}
    for i, j, l in plan.tasks(team.rank):  # noqa: E741 - the axis' usual letter
        block = i * columns + j
        left, right = a.blocks[i * depth + l], b.blocks[l * columns + j]
        with span(team, PRODUCT, " x ".join(map(str, (*left.shape, right.shape[1])))):
            term = fixed_product(team.xp, left, right, plan.c.boxes[block], how)
        if block in blocks:
            blocks[block] += term
        else:
            blocks[block] = term
    return Parts(team, plan.c, how.sums, filled(team, plan.c, blocks, how.sums))


def ring(
    a: Parts,
    b: Parts,
    c: Layout,
    how: Arithmetic,
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
        how: arithmetic of local products.
        wire: dtype in which B travels.
        keep: whether what comes by is kept.
    """
    team, members = a.team, a.team.around(c.active)
    made = empty(team, c, how.sums)
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
                _add_products(a, now[inner], b.layout.boxes[here[inner]], made, how)
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
    start = None if team.trace is None else team.trace.moment()
    request = comm.start_shift(source.view(np.uint8), out.view(np.uint8))
    if team.trace is None:
        return request
    return TracedRequest(request, team, f"{out.nbytes} bytes from the one before", start)


def _add_products(a: Parts, b: Array, box: Any, made: Parts, how: Arithmetic) -> None:
    """Add A's columns times a block of B to this worker's blocks of C."""
    (k0, k1), (n0, n1) = box
    columns = made.layout.grid[1]
    for number, block in made.blocks.items():
        c0, c1 = made.layout.boxes[number][1]
        low, high = max(c0, n0), min(c1, n1)
        if low < high:
            left = a.blocks[number // columns][:, k0:k1]
            into = block[:, low - c0 : high - c0]
            multiply(a.team, left, b[:, low - n0 : high - n0], how, into, add=True)


def ring_of_sums(a: Parts, b: Parts, target: Layout, how: Arithmetic) -> Parts:
    """C = A B where each worker has columns of A and the rows of B to them, and sums go round: a reduce-
    scatter in p stages.

    In stage s a worker makes its term of the blocks of the worker s + 1 places before it in the ring, while
    the sum so far is on its way to it.
    """
    team, sums, ring = a.team, how.sums, a.team.ring
    comm, place = team.group(ring), ring.index(team.rank)
    assert comm is not None
    request: Any = None
    arrived: Array = None
    total: dict[int, Array] = {}
    for stage in range(team.size):
        owner = ring[(place - 1 - stage) % team.size]
        total = {n: _term(a, b, target.boxes[n], how) for n in target.held[owner]}
        if request is not None:
            request.wait()
            at = 0
            for block in total.values():
                block += arrived[at : at + block.size].reshape(block.shape)
                at += block.size
        if stage < team.size - 1:
            flat = [block.reshape(-1) for block in total.values()]
            source = team.xp.concatenate(flat) if flat else team.xp.empty(0, sums)
            coming = target.elements(ring[(place - 2 - stage) % team.size])
            arrived = team.xp.empty(coming, sums)
            request = _start_shift(team, comm, source, arrived)
    return Parts(team, target, sums, total)


def _term(a: Parts, b: Parts, box: Any, how: Arithmetic) -> Array:
    """This worker's term of a block of C."""
    (m0, m1), (n0, n1) = box
    mine = a.layout.held[a.team.rank]
    if not mine or not b.blocks:
        return a.team.xp.zeros((m1 - m0, n1 - n0), how.sums)
    left, right = a.blocks[mine[0]], next(iter(b.blocks.values()))
    term: Array = multiply(a.team, left[m0:m1], right[:, n0:n1], how)
    assert within(((m0, m1), (n0, n1)), ((0, a.shape[0]), (0, b.shape[1])))
    return term
