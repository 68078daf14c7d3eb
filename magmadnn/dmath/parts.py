"""The part of a spread array that one worker holds, and how it gets to another layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from magmadnn.dmath.layouts import Layout, elements
from magmadnn.dmath.moves import Move, schedules, traffic, within
from magmadnn.dmath.team import Array, Data, Team


@dataclass
class Parts:
    """What this worker holds of an array.

    Attributes:
        team: the workers.
        layout: of the whole array; every worker knows it.
        dtype: of the elements.
        blocks: this worker's blocks, by number; empty ones are left out.
        data: shared with views.
        view: which view of the data this is: "" for all of it, "T" for the transposed, else a name of its
            own.
    """

    team: Team
    layout: Layout
    dtype: np.dtype[Any]
    blocks: dict[int, Array]
    data: Data = field(default_factory=Data)
    view: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return self.layout.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.layout.shape)

    def with_blocks(self, blocks: Mapping[int, Array], layout: Layout | None = None) -> Parts:
        """A new array of these blocks, which are this worker's."""
        layout = layout or self.layout
        made = dict(blocks)
        dtype = next(iter(made.values())).dtype if made else self.dtype
        return Parts(self.team, layout, dtype, made)

    def transposed(self, axes: Sequence[int] | None = None) -> Parts:
        """A view with the axes in another order; nothing moves."""
        axes = tuple(reversed(range(self.ndim))) if axes is None else tuple(axes)
        blocks = {
            new: self.blocks[old].transpose(axes)
            for old, new in self.layout.transposed_blocks(axes)
            if old in self.blocks
        }
        view = self.view[:-1] if self.view.endswith("T") else self.view + "T"
        if axes != tuple(reversed(range(self.ndim))):
            view = f"{self.view}{axes}."
        return replace(self, layout=self.layout.transposed(axes), blocks=blocks, view=view)


def empty(team: Team, layout: Layout, dtype: np.dtype[Any]) -> Parts:
    """Parts whose elements are not set yet."""
    blocks = {
        block: team.xp.empty([high - low for low, high in layout.boxes[block]], dtype)
        for block in layout.held[team.rank]
    }
    return Parts(team, layout, dtype, blocks)


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
    """
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
    received: list[Array] = []
    if plan.traffic:
        parts = [_packed(x, plan.sends[to], sent_as) for to in range(team.size)]
        out = [team.xp.empty(n * sent_as.itemsize, np.uint8) for n in plan.counts]
        received = [r.view(sent_as) for r in team.exchange_parts(parts, out)]
    made = Parts(team, target, dtype, {})
    _unpack(x, made, plan.arrivals, received, wire, share, getattr(team.xp, combine))
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
    wire: np.dtype[Any] | None,
    share: bool,
    combine: Callable[..., Any],
) -> None:
    """Write or add what came, and what this worker had itself."""
    team, target = x.team, made.layout
    at = [0] * team.size
    for move in arrivals:
        box = target.boxes[move.put]
        if move.source == team.rank:
            whole = x.layout.boxes[move.taken] == box
            piece = x.blocks[move.taken][within(move.box, x.layout.boxes[move.taken])]
            if (
                share
                and whole
                and not x.layout.partial
                and wire is None
                and piece.dtype == made.dtype
            ):
                made.blocks[move.put] = piece
                continue
            piece = piece if wire is None else piece.astype(wire)
        else:
            start, size = at[move.source], elements(move.box)
            at[move.source] += size
            shape = [high - low for low, high in move.box]
            piece = received[move.source][start : start + size].reshape(shape)
        if move.put not in made.blocks:
            made.blocks[move.put] = team.xp.empty([high - low for low, high in box], made.dtype)
        into = made.blocks[move.put][within(move.box, box)]
        if move.first:
            into[...] = piece
        else:
            combine(into, piece.astype(made.dtype, copy=False), out=into)
