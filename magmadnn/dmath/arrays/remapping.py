"""How an array gets to another layout and dtype: the one function that moves elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from magmadnn.dmath.arrays import bounded
from magmadnn.dmath.arrays.casting import cast
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.pulling import can_pull, pull
from magmadnn.dmath.arrays.team import Array
from magmadnn.dmath.layouts.layout import Layout, elements
from magmadnn.dmath.layouts.moves import Move, schedules, traffic, within


def wire_dtype(
    source: np.dtype[Any], target: np.dtype[Any], wire: np.dtype[Any] | None
) -> np.dtype[Any]:
    """What elements travel as: `wire`, else the smaller of the two dtypes, so that a cast costs no bytes."""
    if wire is not None:
        return wire
    return target if target.itemsize < source.itemsize else source


def remap(
    x: Parts,
    target: Layout,
    dtype: np.dtype[Any] | None = None,
    wire: np.dtype[Any] | None = None,
    share: bool = False,
    combine: str = "add",
    error: float | None = None,
) -> Parts:
    """The array in another layout, and another dtype, in one pass: elements are cast as they are packed or
    unpacked.

    The transposed array in another layout is `remap(x.transposed(), ...)`: transposition moves nothing, and
    packing reads the elements in the new order. Terms of partial sums are added in the order of the workers
    that hold them.

    Args:
        x: the array.
        target: the new layout, of the same shape and workers; any subset of them may hold blocks before and
            after.
        dtype: of the result; None for that of `x`.
        wire: a dtype in which elements travel; each is rounded to it once, also those that stay where they
            are, so that copies are alike.
        share: whether the result may be `x` itself, or hold blocks of `x`.
        combine: how terms of a partial layout become one: "add", "multiply", "maximum" or "minimum".
        error: instead of `wire`: elements may be off by so much, each rounded once, also those that stay; see
            `magmadnn.dmath.arrays.bounded`.
    """
    if error is not None:
        return _bounded(x, target, x.dtype if dtype is None else dtype, error)
    dtype = x.dtype if dtype is None else dtype
    if (
        x.layout.partial and dtype != x.dtype
    ):  # terms are added in their own dtype, and rounded once
        summed = remap(x, target, combine=combine)
        return remap(summed, target, dtype, share=True)
    if share and target == x.layout and dtype == x.dtype and not target.partial and wire is None:
        return x
    team, plan = x.team, schedules(x.layout, target)[x.team.rank]
    sent_as = wire_dtype(x.dtype, dtype, wire)
    planned = traffic(x.layout, target)
    team.count.planned_bytes += int(planned[team.rank].sum()) * sent_as.itemsize
    if plan.traffic and wire is None and can_pull(x, dtype, sent_as):
        return pull(x, target, dtype, share)
    received: list[Array] = []
    if plan.traffic:
        parts = [_packed(x, plan.sends[to], sent_as) for to in range(team.size)]
        out = [team.xp.empty(n * sent_as.itemsize, np.uint8) for n in plan.counts]
        received = [r.view(sent_as) for r in team.exchange_parts(parts, out)]
    made = Parts(team, target, dtype, {})
    narrow = None if wire is None else lambda piece: piece.astype(wire)
    _unpack(x, made, plan.arrivals, received, narrow, share, getattr(team.xp, combine))
    return made


def _bounded(x: Parts, target: Layout, dtype: np.dtype[Any], error: float) -> Parts:
    """Elements travel as the shortest integers that keep within the error; workers tell each other which."""
    team, plan = x.team, schedules(x.layout, target)[x.team.rank]
    assert not x.layout.partial
    received: list[Array] = []
    if plan.traffic:
        flats = [_packed(x, plan.sends[to], x.dtype).view(x.dtype) for to in range(team.size)]
        largest = [
            float(team.on_host(bounded.largest_multiple(team.xp, flat, error)))
            if flat.size
            else 0.0
            for flat in flats
        ]
        sent = [
            bounded.packed(team.xp, flat, error, one)
            for flat, one in zip(flats, largest, strict=True)
        ]
        sizes = [one[team.rank] for one in team.comm.exchange([size for _, size in sent])]
        team.count.planned_bytes += sum(int(part.size) for part, _ in sent)
        out = [
            team.xp.empty(count * (size or x.dtype.itemsize), np.uint8)
            for count, size in zip(plan.counts, sizes, strict=True)
        ]
        came = team.exchange_parts([part for part, _ in sent], out)
        received = [
            bounded.unpacked(flat, size, x.dtype, error)
            for flat, size in zip(came, sizes, strict=True)
        ]
    made = Parts(team, target, dtype, {})

    def narrow(piece: Array) -> Array:
        return bounded.rounded(team.xp, piece, error)

    _unpack(x, made, plan.arrivals, received, narrow, False, team.xp.add)
    return made


def _packed(x: Parts, sends: Sequence[Move], dtype: np.dtype[Any]) -> Array:
    """What goes to one worker, one box after the other, as bytes."""
    buffer = x.team.xp.empty(sum(elements(move.box) for move in sends), dtype)
    at = 0
    for move in sends:
        piece = x.blocks[move.taken][within(move.box, x.layout.boxes[move.taken])]
        buffer[at : at + piece.size].reshape(piece.shape)[...] = piece
        at += piece.size
    return buffer.view(np.uint8)


def _unpack(
    x: Parts,
    made: Parts,
    arrivals: Sequence[Move],
    received: Sequence[Array],
    narrow: Callable[[Array], Array] | None,
    share: bool,
    combine: Callable[..., Any],
) -> None:
    """Write or add what came, and what this worker had itself, rounded as if it had travelled."""
    team, target = x.team, made.layout
    at = [0] * team.size
    for move in arrivals:
        box = target.boxes[move.put]
        if move.source == team.rank:
            piece = x.blocks[move.taken][within(move.box, x.layout.boxes[move.taken])]
            if (
                share
                and move.box == box
                and not x.layout.partial
                and narrow is None
                and piece.dtype == made.dtype
            ):
                made.blocks[move.put] = piece
                continue
            piece = piece if narrow is None else narrow(piece)
        else:
            start, size = at[move.source], elements(move.box)
            at[move.source] += size
            shape = [high - low for low, high in move.box]
            piece = received[move.source][start : start + size].reshape(shape)
        if move.put not in made.blocks:
            made.blocks[move.put] = team.xp.empty([high - low for low, high in box], made.dtype)
        into = made.blocks[move.put][within(move.box, box)]
        if move.first:
            cast(team.xp, into, piece)
        else:
            combine(into, piece.astype(made.dtype, copy=False), out=into)
