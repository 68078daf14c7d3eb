"""Pooling as what is compiled: formulas over strided views of x, one for each place of the windows.

Nothing is gathered: a kernel reads a view of x for each place of the windows and writes one result. The
transpose is a formula over places of x. Windows begin a stride s apart, so places lie in blocks of s: place
`b s + r`, counted from the edge of the padding, belongs to the windows b, b - 1, ..., in which its numbers
are r, r + s, ..., as far as these are below the size. All places of a block read the same windows, which
broadcast over r.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from magmadnn.graph.dim import Dim, Shape, Size
from magmadnn.graph.node import constant
from magmadnn.graph.spec import is_floating
from magmadnn.ops.arithmetic import (
    add,
    cast,
    divide,
    equal,
    isnan,
    logical_and,
    logical_or,
    maximum,
    multiply,
    where,
)
from magmadnn.ops.movement import broadcast_to, reshape
from magmadnn.ops.reductions import with_digits
from magmadnn.ops.slicing import pad, slice_

from ._pooling_arrays import counts_of_places, index_dtype, least
from .windows import Counts, Pairs, at_tap, at_tap_gradient, windows_along

# --- from places to windows -----------------------------------------------------------------------


def _parts(x: Any, value: Any, size: Counts, strides: Counts, padding: Pairs) -> list[Any]:
    """For each place of the windows what lies there of all windows: [n, *windows, c]."""
    counts = windows_along(x.shape[1:-1], padding, size, strides)
    whole = _padded(x, padding, value)
    return [at_tap(whole, at, counts, strides, (1,) * len(size)) for at in np.ndindex(*size)]


def _padded(x: Any, padding: Pairs, value: Any) -> Any:
    if not any(map(any, padding)):
        return x
    return pad(x, widths=((0, 0), *padding, (0, 0)), value=value)


def max_pooling(x: Any, **geometry: Any) -> Any:
    """The largest of each window."""
    return functools.reduce(maximum, _parts(x, least(x.dtype), **geometry))


def max_pooling_indices(x: Any, **geometry: Any) -> Any:
    """The number of the first of the largest, or of the first NaN."""
    parts = _parts(x, least(x.dtype), **geometry)
    largest = functools.reduce(maximum, parts)
    dtype = index_dtype(geometry["size"])
    found: Any = np.zeros((), dtype)
    inside = _inside(x.shape, **geometry)
    for number in reversed(range(len(parts))):
        chosen = equal(parts[number], largest)
        if is_floating(x.dtype):
            chosen = logical_or(chosen, isnan(parts[number]))
        if inside:  # as small as the padding, x comes first
            chosen = logical_and(chosen, inside[number])
        found = where(chosen, np.asarray(number, dtype), found)
    return found


def _inside(shape: Shape, **geometry: Any) -> list[Any]:
    """For each place of the windows whether it is one of x: [1, *windows, 1]; nothing without padding."""
    if not any(map(any, geometry["padding"])):
        return []
    whole = broadcast_to(constant(np.asarray(True)), (1, *shape[1:-1], 1))
    return _parts(whole, False, **geometry)


def max_pooling_chosen(x: Any, index: Any, **geometry: Any) -> Any:
    """X at the place that each window chose."""
    *parts, found = _parts(x, 0, **geometry)
    for number, part in enumerate(parts):
        found = where(equal(index, np.asarray(number, index.dtype)), part, found)
    return found


def average_pooling(x: Any, count_padding: bool, **geometry: Any) -> Any:
    """The mean of each window."""
    whole, back = with_digits(x if is_floating(x.dtype) else cast(x, "float64"))
    total = functools.reduce(add, _parts(whole, 0, **geometry))
    return back(_divided(total, x.shape[1:-1], count_padding, geometry))


def _divided(total: Any, places: Shape, count_padding: bool, geometry: Any) -> Any:
    """By the number of places of each window."""
    if count_padding:
        return divide(total, float(math.prod(geometry["size"])))
    if _known(places):
        return divide(total, counts_of_places(places, **geometry).astype(total.dtype))
    ones = broadcast_to(constant(np.ones((), total.dtype)), (1, *places, 1))
    return divide(total, functools.reduce(add, _parts(ones, 0, **geometry)))


# --- from windows to places -----------------------------------------------------------------------


class _Blocks(NamedTuple):
    """Blocks of places along one axis.

    Attributes:
        stride: places of a block.
        blocks: how many of them have places of x.
        behind: how many windows reach into a block: its own, and those that began in blocks before.
        before: windows that are missing before the first of these,
        after: and behind the last.
        begin: of the first block's places that is the first of x.
    """

    stride: int
    blocks: int
    behind: int
    before: int
    after: int
    begin: int


def _blocks(n: int, k: int, stride: int, pads: tuple[int, int]) -> _Blocks:
    windows = (n + sum(pads) - k) // stride + 1
    first, last = pads[0] // stride, (pads[0] + n - 1) // stride
    behind = -(-k // stride)
    return _Blocks(
        stride,
        last - first + 1,
        behind,
        behind - 1 - first,
        max(last - (windows - 1), 0),
        pads[0] - first * stride,
    )


def _known(places: Shape) -> bool:
    return not any(isinstance(n, Dim) for n in places)


def _axis_blocks(places: Any, size: Counts, strides: Counts, padding: Pairs) -> list[_Blocks]:
    return [_blocks(*each) for each in zip(places, size, strides, padding, strict=True)]


def _windows_behind(g: Any, back: Counts, blocks: list[_Blocks]) -> Any:
    """Of padded windows those that began so many blocks before each: [n, blocks, 1, blocks, 1, ..., c]."""
    whole = ("slice", None, None, 1)
    starts = [b.behind - 1 - d for b, d in zip(blocks, back, strict=True)]
    index = [("slice", a, a + b.blocks, 1) for a, b in zip(starts, blocks, strict=True)]
    seen = slice_(g, index=(whole, *index, whole))
    shape: list[Size] = [g.shape[0]]
    for block in blocks:
        shape += [block.blocks, 1]
    return reshape(seen, (*shape, g.shape[-1]))


def _numbers(back: Counts, blocks: list[_Blocks], size: Counts) -> np.ndarray[Any, Any]:
    """The number that each place of a block has in windows that began before: [1, s, 1, s, 1].

    The number of places of a window where it is no part of them.
    """
    axes = [np.arange(b.stride) + d * b.stride for b, d in zip(blocks, back, strict=True)]
    grid = np.meshgrid(*axes, indexing="ij")
    inside = np.all([at < k for at, k in zip(grid, size, strict=True)], axis=0)
    held = [np.minimum(at, k - 1) for at, k in zip(grid, size, strict=True)]
    numbers = np.where(inside, np.ravel_multi_index(held, size), math.prod(size))
    shape = [n for b in blocks for n in (1, b.stride)]
    return numbers.reshape(1, *shape, 1)


def _of_blocks(total: Any, places: Any, blocks: list[_Blocks]) -> Any:
    """Places in blocks as places of x."""
    shape = (total.shape[0], *(b.blocks * b.stride for b in blocks), total.shape[-1])
    whole = ("slice", None, None, 1)
    index = [("slice", b.begin, b.begin + n, 1) for b, n in zip(blocks, places, strict=True)]
    return slice_(reshape(total, shape), index=(whole, *index, whole))


def _by_places(terms: Any, shape: Shape, padding: Pairs, strides: Counts) -> Any:
    """The sum of (place of the windows, what it gets), of an image whose size is not known."""
    n, *places, c = shape
    padded = [size + (a + b) for size, (a, b) in zip(places, padding, strict=True)]
    total: Any = None
    for at, term in terms:
        part = at_tap_gradient(term, (n, *padded, c), at, strides, (1,) * len(at))
        total = part if total is None else add(total, part)
    whole = ("slice", None, None, 1)
    index = [("slice", a, size + a, 1) for size, (a, _) in zip(places, padding, strict=True)]
    return slice_(total, index=(whole, *index, whole))


def max_pooling_inputs(g: Any, index: Any, places: Any, **geometry: Any) -> Any:
    """Each g at the place that its window chose."""
    g, back = with_digits(g)
    zero = np.zeros((), g.dtype)
    if not _known(places):
        terms = (
            (at, where(equal(index, np.asarray(number, index.dtype)), g, zero))
            for number, at in enumerate(np.ndindex(*geometry["size"]))
        )
        shape = (g.shape[0], *places, g.shape[-1])
        return back(_by_places(terms, shape, geometry["padding"], geometry["strides"]))
    blocks = _axis_blocks(places, **geometry)
    missing = tuple((b.before, b.after) for b in blocks)
    g = _padded(g, missing, 0)
    index = _padded(index, missing, math.prod(geometry["size"]))
    total: Any = None
    for behind in np.ndindex(*(b.behind for b in blocks)):
        numbers = _numbers(behind, blocks, geometry["size"]).astype(index.dtype)
        chosen = equal(_windows_behind(index, behind, blocks), numbers)
        term = where(chosen, _windows_behind(g, behind, blocks), zero)
        total = term if total is None else add(total, term)
    return back(_of_blocks(total, places, blocks))


def average_pooling_inputs(g: Any, places: Any, count_padding: bool, **geometry: Any) -> Any:
    """What the means add to each place."""
    g, back = with_digits(g if is_floating(g.dtype) else cast(g, "float64"))
    g = _divided(g, places, count_padding, geometry)
    if not _known(places):
        terms = ((at, g) for at in np.ndindex(*geometry["size"]))
        shape = (g.shape[0], *places, g.shape[-1])
        return back(_by_places(terms, shape, geometry["padding"], geometry["strides"]))
    blocks = _axis_blocks(places, **geometry)
    g = _padded(g, tuple((b.before, b.after) for b in blocks), 0)
    most, zero, total = math.prod(geometry["size"]), np.zeros((), g.dtype), None
    for behind in np.ndindex(*(b.behind for b in blocks)):
        inside = _numbers(behind, blocks, geometry["size"]) < most
        term = _windows_behind(g, behind, blocks)
        term = term if inside.all() else where(inside, term, zero)
        total = term if total is None else add(total, term)
    ones = np.ones([1, *(n for b in blocks for n in (1, b.stride)), 1], g.dtype)
    return back(_of_blocks(multiply(total, ones), places, blocks))
