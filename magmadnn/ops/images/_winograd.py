"""Convolutions of 3 x 3 filters by Winograd's minimal filtering: a quarter of the multiplications.

A tile of 6 x 6 places and 3 x 3 taps give 4 x 4 outputs by 36 products instead of 144 [Lavin and Gray 2016,
https://arxiv.org/abs/1509.09308, F(4x4, 3x3)]:

    y = A' ((G w G') * (B' x B)) A

summed over channels before A is applied, so for each of the 36 places of the tile a product of matrices
[tiles, c] and [c, o]. The gradient of the filters is the same with 4 x 4 taps, the tiles of the outputs'
gradient, and 3 x 3 outputs, summed over tiles: F(3x3, 4x4). B', G and A' follow from the points 0, 1, -1, 2,
-2 and infinity. They are applied as products with their Kronecker squares.

In float32 results differ from the direct sums by some 1e-5 of the largest: numbers of the transforms reach
25. What is not finite spreads over its tile. By tiles of 4 x 4 places, F(2x2, 3x3) with the points 0, 1, -1
and infinity, 16 products stand for 36; numbers reach 1, so results are as exact as direct sums.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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

_TAPS = 3  # along an axis


class Form(NamedTuple):
    """How many outputs of a tile are made at a time.

    Attributes:
        outputs: along an axis; in the gradient of filters they are the taps.
        points: at which polynomials are multiplied, but infinity.
    """

    outputs: int
    points: tuple[float, ...]

    @property
    def tile(self) -> int:
        """Places of a tile along an axis."""
        return len(self.points) + 1


FORMS = {
    "winograd": Form(4, (0.0, 1.0, -1.0, 2.0, -2.0)),
    "winograd_2x2": Form(2, (0.0, 1.0, -1.0)),
}
_LEAST = 48.0  # of 1 / (1 / c + 1 / o): below, transforms cost more than products save
# times as many outputs in whole tiles as there are, at most; and where products outweigh transforms by far
_MOST_WASTE = 1.4
_MUCH, _MOST_WASTE_OF_MUCH = 120.0, 1.6
# transformed filters take four times the memory: to read them takes longer than direct sums
_FEW_TILES = 8


def form_of(x: Any, w_shape: Shape, algorithm: str, settled: Attributes) -> Form | None:
    """How a convolution, or the gradient of its filters, is made, by sizes and dtype; None for otherwise.

    Args:
        x: the images.
        w_shape: of the filters.
        algorithm: what is wanted; "auto" takes tiles of 6 x 6 where they pay.
        settled: the other attributes of the convolution.
    """
    form = FORMS["winograd"] if algorithm == "auto" else FORMS.get(algorithm)
    if form is None or _obstacle(x, w_shape, settled):
        return None
    if algorithm != "auto":
        return form
    c, o, *counts = (int(n) for n in _known(x, w_shape, settled))
    waste = math.prod(-(-n // form.outputs) * form.outputs / n for n in counts)
    weight = 1 / (1 / c + 1 / o)
    most = _MOST_WASTE_OF_MUCH if weight >= _MUCH else _MOST_WASTE
    return form if weight >= _LEAST and waste <= most else None


def pays_for_many_only(x: Any, w_shape: Shape, algorithm: str, settled: Attributes) -> bool:
    """Whether "auto" takes it for many images, though a single one has too few tiles."""
    form = form_of(x, w_shape, algorithm, settled) if algorithm == "auto" else None
    if form is None:
        return False
    counts = _known(x, w_shape, settled)[2:]
    return math.prod(_tiles(counts, form)) < _FEW_TILES


def check(words: OpWords, x: Any, w_shape: Shape, algorithm: str, settled: Attributes) -> None:
    """Before a convolution is made so because somebody wants it.

    Raises:
        ArgumentError: if it cannot be, saying why.
    """
    if why := _obstacle(x, w_shape, settled):
        raise ArgumentError(
            f'{words.name}: algorithm "{algorithm}" takes 3 x 3 filters in float32 without strides, dilation '
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


def convolution(x: Any, w: Any, padding: Pairs, form: Form) -> Any:
    """The outputs [n, *windows, o] of images x [n, *places, c] and filters w [3, 3, c, o]."""
    c, o = w.shape[-2:]
    counts, places = windows_along(x.shape[1:-1], padding, (_TAPS, _TAPS), (1, 1)), form.tile**2
    tiles = _tiles(counts, form)
    rows = product((x.shape[0], *tiles))
    seen = matmul(_squared(_inputs(form)), _tiles_of(x, padding, tiles, form))
    filters = matmul(_squared(_taps(form, _TAPS)), reshape(w, (_TAPS**2, c * o)))
    made = _named(matmul(reshape(seen, (places, rows, c)), reshape(filters, (places, c, o))), form)
    found = matmul(_squared(_outputs(form, form.outputs)), reshape(made, (places, rows * o)))
    return _joined(found, x.shape[0], tiles, counts, o, form)


def filters(x: Any, g: Any, padding: Pairs, form: Form) -> Any:
    """The gradient [3, 3, c, o] of the filters, from the images and that of the outputs."""
    c, o, places = x.shape[-1], g.shape[-1], form.tile**2
    tiles = _tiles(g.shape[1:-1], form)
    rows = product((x.shape[0], *tiles))
    seen = matmul(_squared(_inputs(form)), _tiles_of(x, padding, tiles, form))
    given = matmul(_squared(_taps(form, form.outputs)), _cut(g, tiles, form))
    left = transpose(reshape(seen, (places, rows, c)), (0, 2, 1))
    made = _named(matmul(left, reshape(given, (places, rows, o))), form)
    found = matmul(_squared(_outputs(form, _TAPS)), reshape(made, (places, c * o)))
    return reshape(found, (_TAPS, _TAPS, c, o))


def _named(made: Any, form: Form) -> Any:
    return with_name(made, next(name for name, known in FORMS.items() if known == form))


# --- tiles ----------------------------------------------------------------------------------------


def _tiles(counts: Any, form: Form) -> Counts:
    """How many tiles cover so many outputs along each axis."""
    return tuple(-(-n // form.outputs) for n in counts)


def _tiles_of(x: Any, padding: Pairs, tiles: Counts, form: Form) -> Any:
    """The tiles of images as a matrix [places, n * tiles * c]; they overlap by two places."""
    widths = [
        (before, count * form.outputs + (_TAPS - 1) - n - before)
        for n, (before, _), count in zip(x.shape[1:-1], padding, tiles, strict=True)
    ]
    whole = pad(x, widths=((0, 0), *widths, (0, 0)))
    size, steps = (form.tile,) * 2, (form.outputs,) * 2
    seen = windows(whole, size=size, strides=steps, dilation=(1, 1))
    by_place = transpose(seen, (3, 4, 0, 1, 2, 5))
    return reshape(by_place, (form.tile**2, product((x.shape[0], *tiles, x.shape[-1]))))


def _cut(g: Any, tiles: Counts, form: Form) -> Any:
    """Outputs in tiles that do not overlap, [outputs^2, n * tiles * o], with zeros beyond the last."""
    (n, *counts, o), (high, wide), each = g.shape, tiles, form.outputs
    widths = [(0, t * each - k) for k, t in zip(counts, tiles, strict=True)]
    whole = pad(g, widths=((0, 0), *widths, (0, 0)))
    cut = reshape(whole, (n, high, each, wide, each, o))
    return reshape(transpose(cut, (2, 4, 0, 1, 3, 5)), (each**2, product((n, high, wide, o))))


def _joined(found: Any, n: Any, tiles: Counts, counts: Any, o: int, form: Form) -> Any:
    """The outputs of tiles, [outputs^2, n * tiles * o], as images."""
    (high, wide), each = tiles, form.outputs
    cut = reshape(found, (each, each, n, high, wide, o))
    whole = reshape(transpose(cut, (2, 3, 0, 4, 1, 5)), (n, high * each, wide * each, o))
    if tuple(counts) == tuple(t * each for t in tiles):
        return whole
    every = ("slice", None, None, 1)
    return slice_(whole, index=(every, *(("slice", 0, int(k), 1) for k in counts), every))


# --- transforms -----------------------------------------------------------------------------------


def _squared(matrix: Array) -> Array:
    """What transforms both axes of a tile, as one axis: the Kronecker square."""
    return np.kron(matrix, matrix).astype(np.float32)


def _inputs(form: Form) -> Array:
    """B': row j takes the product of (z - p) over the points p other than the j-th; the last one over all."""
    points = form.points
    rows = [np.poly([p for p in points if p != point])[::-1] for point in points]
    made = np.zeros((form.tile, form.tile))
    for j, row in enumerate(rows):
        made[j, : len(row)] = row
    made[-1] = np.poly(points)[::-1]
    return made


def _taps(form: Form, count: int) -> Array:
    """G: powers of each point over the product of its differences from the others; at infinity the last."""
    made = np.zeros((form.tile, count))
    for j, point in enumerate(form.points):
        others = np.prod([point - p for p in form.points if p != point])
        made[j] = point ** np.arange(count) / others
    made[-1, -1] = 1
    return made


def _outputs(form: Form, count: int) -> Array:
    """A': powers of the points; infinity is in the last output only."""
    made = np.zeros((count, form.tile))
    for j, point in enumerate(form.points):
        made[:, j] = point ** np.arange(count)
    made[-1, -1] = 1
    return made
