"""Convolutions of 3 x 3 filters by Winograd's minimal filtering: a quarter of the multiplications.

A tile of 6 x 6 places and 3 x 3 taps give 4 x 4 outputs by 36 products instead of 144 [Lavin and Gray 2016,
https://arxiv.org/abs/1509.09308, F(4x4, 3x3)]:

    y = A' ((G w G') * (B' x B)) A

summed over channels before A is applied, so for each of the 36 places of the tile a product of matrices
[tiles, c] and [c, o]. The gradient of the filters is the same with 4 x 4 taps, the tiles of the outputs'
gradient, and 3 x 3 outputs, summed over tiles: F(3x3, 4x4). B', G and A' follow from the points 0, 1, -1, 2,
-2 and infinity. They are applied as products with their Kronecker squares.

In float32 results differ from the direct sums by some 1e-5 of the largest: numbers of the transforms reach
25. What is not finite spreads over its tile.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError
from magmadnn.graph.dim import Shape, product
from magmadnn.graph.node import with_name
from magmadnn.graph.op import Array
from magmadnn.graph.signature import Attributes, OpWords, shape_text
from magmadnn.ops.contraction import matmul
from magmadnn.ops.movement import reshape, transpose
from magmadnn.ops.slicing import pad, slice_

from .windows import Counts, Pairs, beyond_plain, windows, windows_along

_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0)  # and infinity
_TILE = len(_POINTS) + 1
_OUTPUTS, _TAPS = (
    4,
    3,
)  # of a convolution along an axis; of the gradient of its filters the other way round
_LEAST = 48.0  # of 1 / (1 / c + 1 / o): below, transforms cost more than products save
# times as many outputs in whole tiles as there are, at most; and where products outweigh transforms by far
_MOST_WASTE = 1.4
_MUCH, _MOST_WASTE_OF_MUCH = 120.0, 1.6


def pays(x: Any, w_shape: Shape, is_wanted: bool, settled: Attributes) -> bool:
    """Whether a convolution, or the gradient of its filters, is made so: by sizes and dtype alone.

    Args:
        x: the images.
        w_shape: of the filters.
        is_wanted: whether it is, wherever that is possible.
        settled: the attributes of the convolution.
    """
    if _obstacle(x, w_shape, settled):
        return False
    c, o, *counts = (int(n) for n in _known(x, w_shape, settled))
    waste = math.prod(-(-n // _OUTPUTS) * _OUTPUTS / n for n in counts)
    weight = 1 / (1 / c + 1 / o)
    most = _MOST_WASTE_OF_MUCH if weight >= _MUCH else _MOST_WASTE
    return is_wanted or (weight >= _LEAST and waste <= most)


def check(words: OpWords, x: Any, w_shape: Shape, settled: Attributes) -> None:
    """Before a convolution is made so because somebody wants it.

    Raises:
        ArgumentError: if it cannot be, saying why.
    """
    if why := _obstacle(x, w_shape, settled):
        raise ArgumentError(
            f'{words.name}: algorithm "winograd" takes 3 x 3 filters in float32 without strides, dilation '
            f'or groups, on images of known sizes; got {why}; use "auto" or "direct"'
        )


def _obstacle(x: Any, w_shape: Shape, settled: Attributes) -> str:
    """What is against it; empty where nothing is."""
    if why := beyond_plain(settled):
        return why
    if tuple(w_shape[:-2]) != (_TAPS, _TAPS):
        return f"filters {shape_text(w_shape)}"
    if x.dtype != np.float32:
        return str(x.dtype.name)
    sizes = _known(x, w_shape, settled)
    known = all(isinstance(n, int) and n > 0 for n in sizes)
    return "" if known else f"images {shape_text(x.shape)}"


def _known(x: Any, w_shape: Shape, settled: Attributes) -> tuple[Any, ...]:
    """Channels, filters, and windows along each axis."""
    counts = windows_along(x.shape[1:-1], settled["padding"], (_TAPS, _TAPS), (1, 1))
    return (*w_shape[-2:], *counts)


def convolution(x: Any, w: Any, padding: Pairs) -> Any:
    """The outputs [n, *windows, o] of images x [n, *places, c] and filters w [3, 3, c, o]."""
    c, o = w.shape[-2:]
    counts = windows_along(x.shape[1:-1], padding, (_TAPS, _TAPS), (1, 1))
    tiles = _tiles(counts)
    rows = product((x.shape[0], *tiles))
    seen = matmul(_squared(_inputs()), _tiles_of(x, padding, tiles))
    filters = matmul(_squared(_taps(_TAPS)), reshape(w, (_TAPS**2, c * o)))
    made = matmul(reshape(seen, (_TILE**2, rows, c)), reshape(filters, (_TILE**2, c, o)))
    made = with_name(made, "winograd")
    found = matmul(_squared(_outputs(_OUTPUTS)), reshape(made, (_TILE**2, rows * o)))
    return _joined(found, x.shape[0], tiles, counts, o)


def filters(x: Any, g: Any, padding: Pairs) -> Any:
    """The gradient [3, 3, c, o] of the filters, from the images and that of the outputs."""
    c, o = x.shape[-1], g.shape[-1]
    tiles = _tiles(g.shape[1:-1])
    rows = product((x.shape[0], *tiles))
    seen = matmul(_squared(_inputs()), _tiles_of(x, padding, tiles))
    given = matmul(_squared(_taps(_OUTPUTS)), _cut(g, tiles))
    left = transpose(reshape(seen, (_TILE**2, rows, c)), (0, 2, 1))
    made = with_name(matmul(left, reshape(given, (_TILE**2, rows, o))), "winograd")
    found = matmul(_squared(_outputs(_TAPS)), reshape(made, (_TILE**2, c * o)))
    return reshape(found, (_TAPS, _TAPS, c, o))


# --- tiles ----------------------------------------------------------------------------------------


def _tiles(counts: Any) -> Counts:
    """How many tiles cover so many outputs along each axis."""
    return tuple(-(-n // _OUTPUTS) for n in counts)


def _tiles_of(x: Any, padding: Pairs, tiles: Counts) -> Any:
    """The tiles of images as a matrix [36, n * tiles * c]; they overlap by two places."""
    widths = [
        (before, count * _OUTPUTS + (_TAPS - 1) - n - before)
        for n, (before, _), count in zip(x.shape[1:-1], padding, tiles, strict=True)
    ]
    whole = pad(x, widths=((0, 0), *widths, (0, 0)))
    size, steps = (_TILE, _TILE), (_OUTPUTS, _OUTPUTS)
    seen = windows(whole, size=size, strides=steps, dilation=(1, 1))
    by_place = transpose(seen, (3, 4, 0, 1, 2, 5))
    return reshape(by_place, (_TILE**2, product((x.shape[0], *tiles, x.shape[-1]))))


def _cut(g: Any, tiles: Counts) -> Any:
    """Outputs in tiles that do not overlap, [16, n * tiles * o], with zeros beyond the last."""
    (n, *counts, o), (high, wide) = g.shape, tiles
    widths = [(0, t * _OUTPUTS - k) for k, t in zip(counts, tiles, strict=True)]
    whole = pad(g, widths=((0, 0), *widths, (0, 0)))
    cut = reshape(whole, (n, high, _OUTPUTS, wide, _OUTPUTS, o))
    return reshape(transpose(cut, (2, 4, 0, 1, 3, 5)), (_OUTPUTS**2, product((n, high, wide, o))))


def _joined(found: Any, n: Any, tiles: Counts, counts: Any, o: int) -> Any:
    """The outputs of tiles, [16, n * tiles * o], as images."""
    high, wide = tiles
    cut = reshape(found, (_OUTPUTS, _OUTPUTS, n, high, wide, o))
    whole = reshape(transpose(cut, (2, 3, 0, 4, 1, 5)), (n, high * _OUTPUTS, wide * _OUTPUTS, o))
    if tuple(counts) == tuple(t * _OUTPUTS for t in tiles):
        return whole
    every = ("slice", None, None, 1)
    return slice_(whole, index=(every, *(("slice", 0, int(k), 1) for k in counts), every))


# --- transforms -----------------------------------------------------------------------------------


def _squared(matrix: Array) -> Array:
    """What transforms both axes of a tile, as one axis: the Kronecker square."""
    return np.kron(matrix, matrix).astype(np.float32)


def _inputs() -> Array:
    """B': row j takes the product of (z - p) over the points p other than the j-th; the last one over all."""
    rows = [np.poly([p for p in _POINTS if p != point])[::-1] for point in _POINTS]
    made = np.zeros((_TILE, _TILE))
    for j, row in enumerate(rows):
        made[j, : len(row)] = row
    made[-1] = np.poly(_POINTS)[::-1]
    return made


def _taps(count: int) -> Array:
    """G: powers of each point over the product of its differences from the others; at infinity the last."""
    made = np.zeros((_TILE, count))
    for j, point in enumerate(_POINTS):
        others = np.prod([point - p for p in _POINTS if p != point])
        made[j] = point ** np.arange(count) / others
    made[-1, -1] = 1
    return made


def _outputs(count: int) -> Array:
    """A': powers of the points; infinity is in the last output only."""
    made = np.zeros((count, _TILE))
    for j, point in enumerate(_POINTS):
        made[:, j] = point ** np.arange(count)
    made[-1, -1] = 1
    return made
