"""Elements at other places: other shapes, elements taken by index, places of values in a sorted vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.functions.reducing import whole_along
from magmadnn.dmath.layouts.layout import Layout, even_cuts, replicated
from magmadnn.errors import IndexOutOfRangeError


def _rows(shape: Sequence[int], workers: int) -> Layout:
    """Even rows; what has no axes is on the first worker."""
    if not shape:
        return Layout((), (), ((0,),), workers)
    cuts = (even_cuts(shape[0], workers), *((0, n) for n in shape[1:]))
    return Layout(tuple(shape), cuts, tuple((w,) for w in range(workers)), workers)


def _flat(rows: Layout) -> Layout:
    """The layout of the vector of all elements in row-major order that lies as these rows do."""
    stride = prod(rows.shape[1:])
    cuts = tuple(cut * stride for cut in rows.cuts[0]) if rows.shape else (0, 1)
    return Layout((cuts[-1],), (cuts,), rows.holders, rows.workers)


def reshaped(x: Parts, shape: Sequence[int]) -> Parts:
    """A copy of another shape, elements in row-major order; in rows over all workers.

    Rows of an array are runs of the vector of its elements, so that this is a change of layout to rows, one
    from these runs to those that the result's rows are, and nothing else.
    """
    team = x.team
    given, wanted = _rows(x.shape, team.size), _rows(tuple(shape), team.size)
    rows = remap(x, given)
    flat, runs = _flat(given), _flat(wanted)
    vector = Parts(team, flat, x.dtype, {n: b.reshape(-1) for n, b in rows.blocks.items()})
    moved = remap(vector, runs, share=True)
    blocks = {
        n: b.reshape([high - low for low, high in wanted.boxes[n]]) for n, b in moved.blocks.items()
    }
    return Parts(team, wanted, x.dtype, blocks)


def _of_count(layout: Layout, axis: int, count: int) -> Layout:
    """The layout with so many elements along an axis that is not cut."""
    cuts = tuple((0, count) if i == axis else cut for i, cut in enumerate(layout.cuts))
    return Layout(tuple(cut[-1] for cut in cuts), cuts, layout.holders, layout.workers)


MOVES = ("reshape", "take", "searchsorted")


def ended(
    op: str, layouts: Sequence[Layout], settings: Mapping[str, Any]
) -> tuple[Layout, list[tuple[int, Layout, Layout]]]:
    """Where the result of one of `MOVES` lies; and which operand changes from which layout to which."""
    first, workers = layouts[0], layouts[0].workers
    if op == "reshape":
        given, wanted = _rows(first.shape, workers), _rows(tuple(settings["shape"]), workers)
        return wanted, [(0, first, given), (0, _flat(given), _flat(wanted))]
    if op == "take":
        whole = whole_along(first, settings["axis"])
        copies = replicated(layouts[1].shape, workers)
        lies = _of_count(whole, settings["axis"], layouts[1].shape[0])
        return lies, [(0, first, whole), (1, layouts[1], copies)]
    return layouts[1], [(0, first, replicated(first.shape, workers))]


def taken(x: Parts, indices: Parts, axis: int) -> Parts:
    """Elements along an axis by a vector of indices, which all workers get.

    Raises:
        IndexOutOfRangeError: for an index beyond the axis; on all workers alike.
    """
    team, layout = x.team, whole_along(x.layout, axis)
    size, count = x.shape[axis], indices.shape[0]
    xp, everywhere = team.xp, remap(indices, replicated((count,), team.size), share=True)
    where = everywhere.blocks[0] if count else xp.empty(0, np.int64)
    if count:
        low, high = (int(team.on_host(one)) for one in (where.min(), where.max()))
        if low < -size or high >= size:
            raise IndexOutOfRangeError(
                f"take: index {low if low < -size else high} is beyond axis {axis} of size {size}"
            )
    x = remap(x, layout, share=True)
    made = _of_count(layout, axis, count)
    blocks = {n: xp.take(x.blocks[n], where, axis=axis) for n in made.held[team.rank]}
    return Parts(team, made, x.dtype, blocks)


def places_in(x: Parts, values: Parts, side: str) -> Parts:
    """For each value its place in a sorted vector, which all workers get."""
    team = x.team
    vector = remap(x, replicated(x.shape, team.size), share=True)
    held = vector.blocks[0] if x.shape[0] else team.xp.empty(0, x.dtype)
    blocks = {
        n: team.xp.asarray(team.xp.searchsorted(held, b, side=side)).astype(np.int64)
        for n, b in values.blocks.items()
    }
    return Parts(team, values.layout, np.dtype(np.int64), blocks)
