"""New arrays: constants, random numbers by index, and parts that the client sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts, empty
from magmadnn.dmath.arrays.team import Array, Team
from magmadnn.dmath.layouts.layout import Box, Layout, elements
from magmadnn.ops.philox import normal, stream_of, uniform


def full(team: Team, layout: Layout, dtype: np.dtype[Any], value: complex) -> Parts:
    """An array of one value."""
    made = empty(team, layout, dtype)
    for block in made.blocks.values():
        block[...] = value
    return made


def eye(team: Team, layout: Layout, dtype: np.dtype[Any], k: int = 0) -> Parts:
    """Ones on a diagonal, `k` places to the right of the main one."""
    made = full(team, layout, dtype, 0)
    for number, block in made.blocks.items():
        (r0, r1), (c0, c1) = layout.boxes[number]
        low, high = max(r0, c0 - k), min(r1, c1 - k)
        if low < high:
            rows = team.xp.arange(low, high)
            block[rows - r0, rows + k - c0] = 1
    return made


def arange(team: Team, layout: Layout, dtype: np.dtype[Any], start: float, step: float) -> Parts:
    """`start + i step`, as NumPy computes it."""
    made = empty(team, layout, dtype)
    wide = np.int64 if dtype.kind in "iu" else np.float64
    for number, block in made.blocks.items():
        ((low, high),) = layout.boxes[number]
        block[...] = start + team.xp.arange(low, high, dtype=wide) * step
    return made


def random(
    team: Team, layout: Layout, dtype: np.dtype[Any], seed: int, kind: str, name: str = "dmath"
) -> Parts:
    """Random numbers: element i in row-major order has the i-th of the stream, whatever the layout.

    Args:
        team: the workers.
        layout: of the array.
        dtype: floating-point.
        seed: 64 bits.
        kind: "uniform" in [0, 1), or "normal" with mean 0 and variance 1.
        name: of the stream; others are independent.
    """
    made, stream = empty(team, layout, dtype), stream_of(f"{name} {kind}")
    for number, block in made.blocks.items():
        values = _drawn(layout.shape, layout.boxes[number], dtype, seed, stream, kind)
        block[...] = team.on_device(values)
    return made


def _drawn(
    shape: Sequence[int], box: Box, dtype: np.dtype[Any], seed: int, stream: int, kind: str
) -> Array:
    """Numbers of a box, run by run of elements that follow each other."""
    axis = len(shape)  # axes from here on are whole, so that a run goes over them
    while axis and box[axis - 1] == (0, shape[axis - 1]):
        axis -= 1
    axis = max(axis - 1, 0)
    strides = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
    runs = np.zeros(1, np.int64)
    for (low, high), stride in zip(box[:axis], strides[:axis], strict=True):
        runs = (runs[:, None] + np.arange(low, high) * stride).ravel()
    run = elements(box[axis:])
    out = np.empty((len(runs), run), dtype)
    offset = sum(low * s for (low, _), s in zip(box[axis:], strides[axis:], strict=True))
    for row, start in enumerate(runs.tolist()):
        if kind == "uniform":
            out[row] = uniform(seed, stream, run, dtype, start + offset)
        else:
            out[row] = _normal(seed, stream, run, start + offset)
    return out.reshape([high - low for low, high in box])


def _normal(seed: int, stream: int, count: int, start: int) -> Array:
    """Numbers `start` to `start + count` of `normal`, which makes each from a pair of uniform ones."""
    if start == 0:
        return normal(seed, stream, count)
    u = uniform(seed, stream, 2 * count, np.float64, 2 * start).reshape(count, 2)
    return np.sqrt(-2.0 * np.log1p(-u[:, 0])) * np.cos(2.0 * np.pi * u[:, 1])


def packed(array: Array, layout: Layout, worker: int) -> Array:
    """The blocks of one worker as one flat array, for sending."""
    held = layout.held[worker]
    flat = [
        array[tuple(slice(low, high) for low, high in layout.boxes[n])].reshape(-1) for n in held
    ]
    return np.concatenate(flat) if flat else np.empty(0, array.dtype)


def unpacked(team: Team, layout: Layout, dtype: np.dtype[Any], flat: Array) -> Parts:
    """The parts that `packed` made."""
    made, at = empty(team, layout, dtype), 0
    for block in made.blocks.values():
        block[...] = team.on_device(flat[at : at + block.size]).reshape(block.shape)
        at += block.size
    return made


def first_holders(layout: Layout) -> Layout:
    """The layout with the first holder of each block only: who sends it to the client."""
    if not layout.replicated:
        return layout
    return Layout(layout.shape, layout.cuts, tuple(h[:1] for h in layout.holders), layout.workers)


def assembled(layout: Layout, dtype: np.dtype[Any], flats: Sequence[Array]) -> Array:
    """The whole array from what each worker packed in this layout."""
    out = np.empty(layout.shape, dtype)
    for worker, flat in enumerate(flats):
        at = 0
        for number in layout.held[worker]:
            box = layout.boxes[number]
            size = elements(box)
            out[tuple(slice(low, high) for low, high in box)] = flat[at : at + size].reshape(
                [high - low for low, high in box]
            )
            at += size
    return out
