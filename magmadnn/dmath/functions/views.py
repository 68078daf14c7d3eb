"""Views: slices, transposes and axes of size 1, which move nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.errors import ArgumentError, IndexOutOfRangeError, quoted

Key = list[Any]
"""Per axis of the array in order: [index], [start, step, count], or None for a new axis; as JSON."""


def key_of(what: str, index: Any, shape: Sequence[int]) -> Key:
    """What an index in square brackets means for an array of this shape.

    Raises:
        IndexOutOfRangeError: for an index beyond the end, or too many of them.
        ArgumentError: for masks and arrays of indices.
    """
    given = index if isinstance(index, tuple) else (index,)
    named = sum(1 for one in given if one is not None and one is not Ellipsis)
    if named > len(shape):
        raise IndexOutOfRangeError(f"{what}: {named} indices for an array of {len(shape)} axes")
    if sum(1 for one in given if one is Ellipsis) > 1:
        raise IndexOutOfRangeError(f"{what}: only one ... may be given, got {quoted(index)}")
    if not any(one is Ellipsis for one in given):
        given = (*given, Ellipsis)
    key: Key = []
    axis = 0
    for one in given:
        if one is None:
            key.append(None)
        elif one is Ellipsis:
            for _ in range(len(shape) - named):
                key.append([0, 1, shape[axis]])
                axis += 1
        else:
            key.append(_one(what, one, axis, shape[axis]))
            axis += 1
    return key


def _one(what: str, one: Any, axis: int, size: int) -> list[int]:
    if isinstance(one, slice):
        try:
            span = range(*one.indices(size))
        except (TypeError, ValueError) as error:  # no whole numbers, or a step of 0
            raise ArgumentError(f"{what}: {error}, got {quoted(one)}") from None
        return [span.start, span.step, len(span)]
    if isinstance(one, (bool, np.bool)) or not isinstance(one, (int, np.integer)):
        raise ArgumentError(
            f"{what}: an index is a number, a slice, None or ..., got {quoted(one)}: "
            "gather with np.asarray for masks and lists of indices"
        )
    if not -size <= one < size:
        raise IndexOutOfRangeError(f"{what}: index {one} is beyond axis {axis} of size {size}")
    return [int(one) % size]


def key_shape(key: Key) -> tuple[int, ...]:
    """Shape of a view."""
    return tuple(1 if one is None else one[2] for one in key if one is None or len(one) == 3)


@dataclass(frozen=True)
class _Axis:
    """What a key does to an axis: for each block of the view, the block that it is part of and the slice of
    it.
    """

    cuts: tuple[int, ...] | None
    blocks: tuple[int, ...]
    local: tuple[Any, ...]


def _axis(one: list[int], cuts: tuple[int, ...]) -> _Axis:
    if len(one) == 1:
        block = next(b for b in range(len(cuts) - 1) if cuts[b] <= one[0] < cuts[b + 1])
        return _Axis(None, (block,), (one[0] - cuts[block],))
    start, step, count = one
    found, blocks, local = [0], [], []
    order = range(len(cuts) - 1) if step > 0 else range(len(cuts) - 2, -1, -1)
    for block in order:
        low, high = cuts[block], cuts[block + 1]
        if step > 0:
            first, last = -(-(low - start) // step), -(-(high - start) // step)
        else:
            first, last = -(-(high - 1 - start) // step), -(-(low - 1 - start) // step)
        first, last = min(max(first, 0), count), min(max(last, 0), count)
        at = start + first * step - low
        end = at + (last - first) * step
        found.append(max(last, found[-1]))
        blocks.append(block)
        local.append(slice(at, end if end >= 0 else None, step) if first < last else slice(0, 0))
    return _Axis(tuple(found), tuple(blocks), tuple(local))


def view(x: Parts, key: Key) -> Parts:
    """The part of an array that an index means; its blocks are views of the array's."""
    axes = [
        _axis(one, cuts)
        for one, cuts in zip([k for k in key if k is not None], x.layout.cuts, strict=True)
    ]
    cuts: list[tuple[int, ...]] = []
    rest = iter(axes)
    for one in key:
        axis = None if one is None else next(rest)
        if axis is None:
            cuts.append((0, 1))
        elif axis.cuts is not None:
            cuts.append(axis.cuts)
    shape = tuple(c[-1] for c in cuts)
    holders, blocks = [], {}
    for new, place in enumerate(product(*(range(len(a.blocks)) for a in axes))):
        old = x.layout.block_at([a.blocks[p] for a, p in zip(axes, place, strict=True)])
        holders.append(x.layout.holders[old])
        if old in x.blocks:
            local = iter([a.local[p] for a, p in zip(axes, place, strict=True)])
            index = tuple(None if one is None else next(local) for one in key)
            piece = x.blocks[old][(*index, ...)]  # the dots keep a view where no axis is left
            if piece.size:
                blocks[new] = piece
    layout = Layout(shape, tuple(cuts), tuple(holders), x.layout.workers)
    return replace(x, layout=layout, blocks=blocks, view=f"{x.view}{key}.")


def squeezed(x: Parts, axes: Sequence[int]) -> Parts:
    """A view without these axes of size 1."""
    return view(x, [[0] if i in axes else [0, 1, n] for i, n in enumerate(x.shape)])
