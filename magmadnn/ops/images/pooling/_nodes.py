"""Pooling as what is compiled: formulas over strided views of x, one for each place of the windows.

Nothing is gathered: a kernel reads a view of x for each place of the windows and writes one result. The
transpose is a formula over places of x. Windows begin a stride s apart, so places lie in blocks of s: place
`b s + r`, counted from the edge of the padding, belongs to the windows b, b - 1, ..., in which its numbers
are r, r + s, ..., as far as these are below the size. All places of a block read the same windows, which
broadcast over r.

A pad is stored, or where `indexed` is asked for found by indices: each view is a pad of a view of x, which
kernels over rows read without one. On the CPU that is faster. On an H100 a step of GoogLeNet took 21.1 ms in
place of 16.2, for finding indices costs more there than the copies; the largest values of pictures have
kernels of their own there (`_calls.py`). Where windows have strides, so that few share a place, sequences and
means of pictures took 0.39 to 0.92 of the time with a copy on an H200: these are found by indices there too.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from magmadnn.graph.dim import Dim, Shape
from magmadnn.graph.node import constant
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops.along_axes.reductions import with_digits
from magmadnn.ops.arithmetic import (
    add,
    cast,
    divide,
    equal,
    greater_equal,
    isnan,
    logical_or,
    maximum,
    multiply,
    where,
)
from magmadnn.ops.images.windows import Counts, Pairs, at_tap, at_tap_gradient, windows_along
from magmadnn.ops.movement import broadcast_to, reshape
from magmadnn.ops.slicing import pad, slice_

from ._arrays import counts_of_places, index_dtype, least

# of an image whose pads are found by indices: kernels number rows by six, a block has two
_MOST_AXES = 2
_LEAST_CHANNELS = 32  # so that a row is one of a kernel over rows

# --- from places to windows -----------------------------------------------------------------------


def _parts(
    x: Any, value: Any, size: Counts, strides: Counts, padding: Pairs, *, indexed: bool = False
) -> list[Any]:
    """For each place of the windows what lies there of all windows: [n, *windows, c]."""
    counts = windows_along(x.shape[1:-1], padding, size, strides)
    if indexed and _by_indices(x, padding):
        return [_part(x, value, at, counts, strides, padding) for at in np.ndindex(*size)]
    whole = _padded(x, padding, value)
    return [at_tap(whole, at, counts, strides, (1,) * len(size)) for at in np.ndindex(*size)]


def _by_indices(x: Any, padding: Pairs) -> bool:
    """Whether parts of a padded image are parts of the image with their own pads, which no kernel stores."""
    places, channels = x.shape[1:-1], x.shape[-1]
    known = _known(places) and isinstance(channels, int) and channels >= _LEAST_CHANNELS
    return known and len(places) <= _MOST_AXES and any(map(any, padding))


def _part(
    x: Any, value: Any, at: tuple[int, ...], counts: Shape, strides: Counts, padding: Pairs
) -> Any:
    """What lies at one place of all windows: a pad of a view of x."""
    index: list[Any] = []
    around: list[tuple[int, int]] = []
    each = zip(at, counts, x.shape[1:-1], strides, padding, strict=True)
    for k, count, n, stride, (before, _) in each:
        first = max(-((k - before) // stride), 0)  # the first window whose place is one of x
        end = min((n - 1 + before - k) // stride + 1, count)
        if end <= first:
            return np.asarray(value, x.dtype)
        start = first * stride + k - before
        index.append(("slice", start, start + (end - first - 1) * stride + 1, stride))
        around.append((first, count - end))
    whole = ("slice", None, None, 1)
    return _padded(slice_(x, index=(whole, *index, whole)), tuple(around), value)


def _padded(x: Any, padding: Pairs, value: Any) -> Any:
    if not any(map(any, padding)):
        return x
    return pad(x, widths=((0, 0), *padding, (0, 0)), value=value)


def max_pooling(x: Any, *, indexed: bool = False, **geometry: Any) -> Any:
    """The largest of each window."""
    return functools.reduce(
        _larger, reversed(_parts(x, least(x.dtype), **geometry, indexed=indexed))
    )


def _larger(largest: Any, part: Any) -> Any:
    """Of a place and those behind it."""
    return maximum(part, largest)


def max_pooling_indices(x: Any, *, indexed: bool = False, **geometry: Any) -> Any:
    """The number of the first of the largest, or of the first NaN."""
    *parts, largest = _parts(x, least(x.dtype), **geometry, indexed=indexed)
    dtype = index_dtype(geometry["size"])
    found = constant(np.asarray(len(parts), dtype))
    if not parts:
        return broadcast_to(found, largest.shape)
    for number in reversed(range(len(parts))):
        chosen = greater_equal(parts[number], largest)  # of those behind it
        if is_floating(x.dtype):
            chosen = logical_or(chosen, isnan(parts[number]))
        found = where(chosen, np.asarray(number, dtype), found)
        largest = _larger(largest, parts[number])
    if not any(map(any, geometry["padding"])):
        return found
    as_padding = equal(largest, np.asarray(least(x.dtype), x.dtype))
    return where(as_padding, _first_inside(x.shape, dtype, **geometry), found)


def _first_inside(shape: Shape, dtype: np.dtype[Any], **geometry: Any) -> Any:
    """The number of the first place of each window that is one of x: [1, *windows, 1]."""
    size, padding, places = geometry["size"], geometry["padding"], shape[1:-1]
    if not _known(places):
        found: Any = np.zeros((), dtype)
        whole = broadcast_to(constant(np.asarray(True)), (1, *places, 1))
        for number, there in reversed(list(enumerate(_parts(whole, False, **geometry)))):
            found = where(there, np.asarray(number, dtype), found)
        return found
    counts = windows_along(places, padding, size, geometry["strides"])
    assert all(isinstance(count, int) for count in counts)
    each: Any = zip(counts, geometry["strides"], padding, strict=True)
    firsts = [np.maximum(before - np.arange(n) * s, 0) for n, s, (before, _) in each]
    grid = np.meshgrid(*firsts, indexing="ij")
    return np.ravel_multi_index(grid, size).astype(dtype).reshape(1, *grid[0].shape, 1)


def max_pooling_chosen(x: Any, index: Any, *, indexed: bool = False, **geometry: Any) -> Any:
    """X at the place that each window chose."""
    *parts, found = _parts(x, 0, **geometry, indexed=indexed)
    for number, part in enumerate(parts):
        found = where(equal(index, np.asarray(number, index.dtype)), part, found)
    return found


def average_pooling(x: Any, count_padding: bool, *, indexed: bool = False, **geometry: Any) -> Any:
    """The mean of each window."""
    whole = x if is_floating(x.dtype) else cast(x, "float64")
    _, back = with_digits(whole)
    parts = _parts(whole, 0, **geometry, indexed=indexed)
    total = functools.reduce(add, (with_digits(part)[0] for part in parts))
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


def _windows_behind(g: Any, fill: Any, back: Counts, blocks: list[_Blocks], indexed: bool) -> Any:
    """Of all windows those that began so many blocks before each: [n, blocks, 1, blocks, 1, ..., c].

    Where the `fill` around them is found by indices, it is [n, blocks, stride, blocks, stride, ..., c] or one
    number.
    """
    missing = tuple((b.before, b.after) for b in blocks)
    starts = [b.behind - 1 - d for b, d in zip(blocks, back, strict=True)]
    if not (indexed and _by_indices(g, missing)):
        g = _padded(g, missing, fill)
        return _in_blocks(g, [(a, a + b.blocks) for a, b in zip(starts, blocks, strict=True)])
    ranges, widths, strides = [], [], []
    for count, start, block in zip(g.shape[1:-1], starts, blocks, strict=True):
        first = max(block.before - start, 0)  # the first block in front of which there is one
        end = min(count + block.before - start, block.blocks)
        if end <= first:
            return np.asarray(fill, g.dtype)
        ranges.append((start + first - block.before, start + end - block.before))
        widths += [(first, block.blocks - end), (0, 0)]
        strides += [end - first, block.stride]
    seen = _in_blocks(g, ranges)
    if any(map(any, widths)):
        seen = broadcast_to(seen, (g.shape[0], *strides, g.shape[-1]))
    return _padded(seen, tuple(widths), fill)


def _in_blocks(g: Any, ranges: list[tuple[int, int]]) -> Any:
    """Windows from one to another along each axis: [n, windows, 1, windows, 1, ..., c]."""
    whole = ("slice", None, None, 1)
    index = [("slice", a, b, 1) for a, b in ranges]
    shape = [n for a, b in ranges for n in (b - a, 1)]
    return reshape(slice_(g, index=(whole, *index, whole)), (g.shape[0], *shape, g.shape[-1]))


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


def max_pooling_inputs(
    g: Any, index: Any, places: Any, *, indexed: bool = False, **geometry: Any
) -> Any:
    """Each g at the place that its window chose."""
    wide, back = with_digits(g)
    zero = np.zeros((), wide.dtype)
    if not _known(places):
        g = wide
        terms = (
            (at, where(equal(index, np.asarray(number, index.dtype)), g, zero))
            for number, at in enumerate(np.ndindex(*geometry["size"]))
        )
        shape = (g.shape[0], *places, g.shape[-1])
        return back(_by_places(terms, shape, geometry["padding"], geometry["strides"]))
    blocks = _axis_blocks(places, **geometry)
    none, total = math.prod(geometry["size"]), None
    for behind in np.ndindex(*(b.behind for b in blocks)):
        numbers = _numbers(behind, blocks, geometry["size"]).astype(index.dtype)
        chosen = equal(_windows_behind(index, none, behind, blocks, indexed), numbers)
        given, _ = with_digits(_windows_behind(g, 0, behind, blocks, indexed))
        term = where(chosen, given, zero)
        total = term if total is None else add(total, term)
    return _of_blocks(back(total), places, blocks)


def average_pooling_inputs(
    g: Any, places: Any, count_padding: bool, *, indexed: bool = False, **geometry: Any
) -> Any:
    """What the means add to each place."""
    g = g if is_floating(g.dtype) else cast(g, "float64")
    wide, back = with_digits(g)
    beside = any(map(any, geometry["padding"]))
    alike = count_padding or not beside  # all windows have as many places
    if not (alike and _known(places)):
        g = _divided(wide, places, count_padding, geometry)
    if not _known(places):
        terms = ((at, g) for at in np.ndindex(*geometry["size"]))
        shape = (g.shape[0], *places, g.shape[-1])
        return back(_by_places(terms, shape, geometry["padding"], geometry["strides"]))
    blocks = _axis_blocks(places, **geometry)
    most, zero, total = math.prod(geometry["size"]), np.zeros((), wide.dtype), None
    for behind in np.ndindex(*(b.behind for b in blocks)):
        inside = _numbers(behind, blocks, geometry["size"]) < most
        term, _ = with_digits(_windows_behind(g, 0, behind, blocks, indexed))
        term = term if inside.all() else where(inside, term, zero)
        total = term if total is None else add(total, term)
    if alike:
        total = divide(total, float(most))
    total = back(total)
    ones = np.ones([1, *(n for b in blocks for n in (1, b.stride)), 1], total.dtype)
    return _of_blocks(multiply(total, ones), places, blocks)
