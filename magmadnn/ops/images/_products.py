"""Convolutions as products of matrices, whose rows are the windows.

Groups are a stack of such products; with one channel in each (depthwise) they are sums over the taps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from magmadnn.errors import ShapeError
from magmadnn.graph.dim import Shape, Size, product
from magmadnn.graph.node import with_name
from magmadnn.ops.along_axes.reductions import sum
from magmadnn.ops.arithmetic import add, cast, multiply
from magmadnn.ops.contraction import matmul
from magmadnn.ops.movement import reshape, stack, transpose
from magmadnn.ops.slicing import flip, pad, slice_, unslice

from .windows import Counts, Pairs, at_tap, counts_of_windows, padded, reach_of, windows

LANES = 16  # of a vector, whatever the processor has: elements that a product computes at once
GAIN = 0.75  # of the steps of a product that one whose vectors are fuller may have
# Steps: a bias and an activation take as long when they are not part of the product.
_LEAST_SAVED = 8


def _rows(
    x: Any,
    size: Counts,
    counts: Shape,
    strides: Counts,
    padding: Pairs,
    dilation: Counts,
    groups: int,
) -> Any:
    """What each window holds: [n * windows, size * c]; a stack of that with the channels of each group."""
    whole = padded(x, padding)
    taps, c = math.prod(size), x.shape[-1]
    if taps > 1 or max(strides) > 1:
        whole = windows(whole, size=size, strides=strides, dilation=dilation)
    rows = product((x.shape[0], *counts))
    if groups == 1:
        return reshape(whole, (rows, c * taps))
    parted = transpose(reshape(whole, (rows, taps, groups, c // groups)), (2, 0, 1, 3))
    return reshape(parted, (groups, rows, c // groups * taps))


def _columns(w: Any, groups: int) -> Any:
    """Filters as a matrix, or a stack of them: [size * c, o], [groups, size * c / groups, o / groups]."""
    depth = product(w.shape[:-1])
    if groups == 1:
        return reshape(w, (depth, w.shape[-1]))
    return transpose(reshape(w, (depth, groups, w.shape[-1] // groups)), (1, 0, 2))


def _outputs(y: Any, shape: Shape, groups: int) -> Any:
    """A product as an image."""
    return reshape(y if groups == 1 else transpose(y, (1, 0, 2)), shape)


def _named(made: Any, groups: int) -> Any:
    """A product by the name of the way, which plans show."""
    return with_name(made, "direct" if groups == 1 else "groups")


def _is_depthwise(c: Any, groups: int, filters: Any) -> bool:
    """Whether each group is one channel in and one out."""
    return bool(groups > 1 and c == groups == filters)


def convolution(x: Any, w: Any, groups: int, **geometry: Any) -> Any:
    """Windows times filters."""
    size = w.shape[:-2]
    counts = counts_of_windows(x.shape[1:-1], size, geometry)
    shape = (x.shape[0], *counts, w.shape[-1])
    if _is_depthwise(x.shape[-1], groups, w.shape[-1]):
        total: Any = None
        for tap, part in _parts(x, size, counts, **geometry):
            each = reshape(slice_(w, index=_at(tap)), (w.shape[-1],))
            term = multiply(_summed_in(part), _summed_in(each))
            total = term if total is None else add(total, term)
        return cast(total, np.result_type(x.dtype, w.dtype))
    block = 1 if groups > 1 else beside(w.shape, counts[-1], geometry)
    if block > 1:
        w = _shifted(w, block)
        size, counts = w.shape[:-2], (*counts[:-1], counts[-1] // block)
        geometry = {**geometry, "strides": (*geometry["strides"][:-1], block)}
    rows = _rows(x, size, counts, **geometry, groups=groups)
    return _outputs(_named(matmul(rows, _columns(w, groups)), groups), shape, groups)


def beside(w_shape: Shape, count: Size, geometry: Mapping[str, Any]) -> int:
    """How many neighbouring outputs, along the last axis, are columns of one row of the product: by sizes.

    Few filters fill a small part of a vector. Of so many windows side by side the union is a row, and shifted
    filters, with zeros around them, the columns: an element is the same chain of sums, with products by zeros
    before and behind, and results lie as they would. What is not finite spreads over the outputs of a row.

    Args:
        w_shape: of the filters, [*size, c, o].
        count: of windows along the last axis.
        geometry: of the convolution.
    """
    if not isinstance(count, int) or not all(isinstance(n, int) and n > 0 for n in w_shape):
        return 1
    if geometry["strides"][-1] > 1 or geometry["dilation"][-1] > 1:
        return 1
    *taps, c, filters = (int(n) for n in w_shape)  # type: ignore[arg-type]  # known sizes
    blocks = (b for b in range(2, LANES // filters + 1) if count % b == 0)
    block = max(blocks, default=1)
    # of the sum for an element, and of those for a block of them side by side
    steps = math.prod((*taps, c))
    fewer = steps / taps[-1] * (taps[-1] + block - 1) / block
    return block if fewer <= min(GAIN * steps, steps - _LEAST_SAVED) else 1


def _shifted(w: Any, block: int) -> Any:
    """Filters for `block` windows side by side: [*size, c, o] -> [..., size + block - 1, c, block * o]."""
    none = ((0, 0),) * (len(w.shape) - 3)
    parts = [pad(w, widths=(*none, (k, block - 1 - k), (0, 0), (0, 0))) for k in range(block)]
    made = stack(parts, len(w.shape) - 1)
    return reshape(made, (*made.shape[:-2], block * w.shape[-1]))


def _summed_in(x: Any) -> Any:
    """`x` in the dtype in which products of it are summed."""
    return cast(x, "float32") if x.dtype.itemsize < 4 else x


def _at(tap: Counts) -> tuple[Any, ...]:
    whole = ("slice", None, None, 1)
    return (*(("int", int(k)) for k in tap), whole, whole)


def _parts(
    x: Any, size: Counts, counts: Shape, strides: Counts, padding: Pairs, dilation: Counts
) -> Any:
    """For each tap: where it is, and what lies there of each window, [n, *windows, c]."""
    whole = padded(x, padding)
    for tap in np.ndindex(*size):
        yield tap, at_tap(whole, tap, counts, strides, dilation)


def filters(x: Any, g: Any, size: Counts, groups: int, **geometry: Any) -> Any:
    """Windows, transposed, times outputs."""
    counts, filters = g.shape[1:-1], g.shape[-1]
    if _is_depthwise(x.shape[-1], groups, filters):
        places = tuple(range(len(g.shape) - 1))
        sums = [
            sum(multiply(_summed_in(part), _summed_in(g)), axis=places)
            for _, part in _parts(x, size, counts, **geometry)
        ]
        made = cast(stack(sums), np.result_type(x.dtype, g.dtype))
        return reshape(made, (*size, 1, filters))
    # sums of halves would be rounded before they are added
    plain = groups == 1 and x.dtype.itemsize >= 4
    block = beside((*size, x.shape[-1], filters), counts[-1], geometry) if plain else 1
    if block > 1:
        return _filters_beside(x, g, size, block, geometry)
    rows = _rows(x, size, counts, **geometry, groups=groups)
    n = product(g.shape[:-1])
    if groups == 1:
        made = _named(matmul(transpose(rows, (1, 0)), reshape(g, (n, filters))), groups)
    else:
        columns = transpose(reshape(g, (n, groups, filters // groups)), (1, 0, 2))
        made = _named(matmul(transpose(rows, (0, 2, 1)), columns), groups)
        made = transpose(made, (1, 0, 2))
    return reshape(made, (*size, x.shape[-1] // groups, filters))


def _filters_beside(x: Any, g: Any, size: Counts, block: int, geometry: Mapping[str, Any]) -> Any:
    """The gradient of few filters: of those shifted for `block` outputs side by side, added up.

    Sums over every `block`-th output, one for each, are added: the order differs from that of one sum.
    """
    counts, filters = (*g.shape[1:-2], g.shape[-2] // block), g.shape[-1]
    wide = (*size[:-1], size[-1] + block - 1)
    strides = (*geometry["strides"][:-1], block)
    rows = _rows(x, wide, counts, **{**geometry, "strides": strides}, groups=1)
    columns = reshape(g, (product((g.shape[0], *counts)), block * filters))
    made = _named(matmul(transpose(rows, (1, 0)), columns), 1)
    made = reshape(made, (*wide, x.shape[-1], block, filters))
    whole = ("slice", None, None, 1)
    every = (whole,) * (len(size) - 1)
    parts = (
        slice_(made, index=(*every, ("slice", k, k + size[-1], 1), whole, ("int", k), whole))
        for k in range(block)
    )
    return functools.reduce(add, parts)


def spread_and_turned(
    g: Any,
    w: Any,
    places: Shape,
    strides: Counts,
    padding: Pairs,
    dilation: Counts,
    groups: int,
) -> tuple[Any, Any]:
    """Operands of the convolution that is `inputs`: g with zeros between places, and filters turned round."""
    size, filters = w.shape[:-2], w.shape[-1]
    reach = reach_of(size, dilation)
    kept, index, wide_places = [], [], []
    for n, count, pads, span, stride in zip(
        places, g.shape[1:-1], padding, reach, strides, strict=True
    ):
        begin, end = _meeting(n, count, pads, span, stride)
        kept.append(("slice", begin, end, 1))
        start = span - 1 - pads[0] + begin * stride
        index.append(("slice", start, (end - begin - 1) * stride + (start + 1), stride))
        wide_places.append(n + (span - 1))
    whole = ("slice", None, None, 1)
    g = slice_(g, index=(whole, *kept, whole))
    spread = unslice(
        g,
        index=(("slice", 0, g.shape[0], 1), *index, ("slice", 0, filters, 1)),
        shape=(g.shape[0], *wide_places, filters),
    )
    turned = w
    for axis in range(len(size)):
        turned = flip(turned, axis)
    axes = len(size)
    c, o = w.shape[-2], filters // groups
    turned = reshape(turned, (*size, c, groups, o))
    turned = transpose(turned, (*range(axes), axes + 2, axes + 1, axes))
    turned = reshape(turned, (*size, o, groups * c))
    return spread, turned


def _meeting(
    n: Size, count: Size, pads: tuple[int, int], span: int, stride: int
) -> tuple[int, Size]:
    """Which windows, from and up to, have a place of x in them.

    All do unless the padding is as wide as a window reaches.

    Raises:
        ShapeError: if that depends on a size that is not known.
    """
    before, after = pads
    begin = max(0, -((span - 1 - before) // stride))
    beyond = (span - 1 - before) + (count - 1) * stride - (n + (span - 2))
    if after < span or (isinstance(beyond, int) and beyond <= 0):
        return begin, count
    if not isinstance(beyond, int):
        raise ShapeError(
            f"convolution: the gradient with {after} places of padding after {n} and the stride {stride} "
            "needs a known size; declare it in Input, or pad less than a window reaches"
        )
    return begin, count - -(-beyond // stride)
