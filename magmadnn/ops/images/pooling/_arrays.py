"""Pooling by NumPy: a pass for each place of the windows, and window by window for the tests."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from magmadnn.graph.dim import Shape
from magmadnn.graph.op import Array
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops.contraction import wide
from magmadnn.ops.images.windows import Counts, Pairs, windows_along


def index_dtype(size: Counts) -> np.dtype[Any]:
    """That of numbers of places, and of their count."""
    return np.dtype(np.uint8 if math.prod(size) <= 255 else np.int32)


def least(dtype: np.dtype[Any]) -> Any:
    """What no value is below."""
    if is_floating(dtype):
        return -math.inf
    return 0 if dtype == np.bool_ else int(np.iinfo(dtype).min)


def counts_of_places(places: Shape, size: Counts, strides: Counts, padding: Pairs) -> Array:
    """How many places of an image each window has: [*windows, 1]."""
    each = []
    for n, k, s, (before, after) in zip(places, size, strides, padding, strict=True):
        assert isinstance(n, int)
        starts = np.arange(-before, n + after - k + 1, s)
        each.append(np.minimum(starts + k, n) - np.maximum(starts, 0))
    return np.asarray(functools.reduce(np.multiply.outer, each))[..., None]


# --- NumPy: a pass for each place ------------------------------------------------------------------


def _padded(x: Array, padding: Pairs, value: Any) -> Array:
    shape = [n + a + b for n, (a, b) in zip(x.shape[1:-1], padding, strict=True)]
    whole = np.full((x.shape[0], *shape, x.shape[-1]), value, x.dtype)
    whole[_inside(x.shape[1:-1], padding)] = x
    return whole


def _inside(places: Shape, padding: Pairs) -> tuple[slice, ...]:
    """Where x lies among padded places."""
    inside = (slice(a, a + n) for n, (a, _) in zip(places, padding, strict=True))
    return (slice(None), *inside)


def _parts(whole: Array, size: Counts, counts: Shape, strides: Counts) -> Iterable[Array]:
    """For each place in the windows a view `[n, *windows, c]` of padded places."""
    for at in np.ndindex(*size):
        index = (
            slice(t, t + (n - 1) * s + 1, s) for t, n, s in zip(at, counts, strides, strict=True)
        )
        yield whole[(slice(None), *index)]


def _windows(x: Array, value: Any, size: Counts, strides: Counts, padding: Pairs) -> list[Array]:
    counts = windows_along(x.shape[1:-1], padding, size, strides)
    return list(_parts(_padded(x, padding, value), size, counts, strides))


def max_pooling(x: Array, size: Counts, strides: Counts, padding: Pairs) -> Array:
    """The largest of each window."""
    return functools.reduce(np.maximum, _windows(x, least(x.dtype), size, strides, padding))


def max_pooling_indices(x: Array, size: Counts, strides: Counts, padding: Pairs) -> Array:
    """The number of the first of the largest, or of the first NaN."""
    parts = _windows(x, least(x.dtype), size, strides, padding)
    inside = _windows(np.ones((1, *x.shape[1:-1], 1), bool), False, size, strides, padding)
    largest = functools.reduce(np.maximum, parts)
    found = np.zeros(largest.shape, index_dtype(size))
    for number in reversed(range(len(parts))):
        part = parts[number]
        found[((part == largest) | (part != part)) & inside[number]] = number
    return found


def max_pooling_inputs(
    g: Array, index: Array, places: Counts, size: Counts, strides: Counts, padding: Pairs
) -> Array:
    """Each g at the place that its window chose."""
    (g,) = wide(g)
    sizes = [n + a + b for n, (a, b) in zip(places, padding, strict=True)]
    whole = np.zeros((g.shape[0], *sizes, g.shape[-1]), g.dtype)
    for number, part in enumerate(_parts(whole, size, g.shape[1:-1], strides)):
        part += np.where(index == number, g, np.zeros((), g.dtype))
    return whole[_inside(places, padding)]


def max_pooling_chosen(
    x: Array, index: Array, size: Counts, strides: Counts, padding: Pairs
) -> Array:
    """X at the place that each window chose."""
    parts = _windows(x, 0, size, strides, padding)
    found = np.array(parts[-1])
    for number, part in enumerate(parts):
        found = np.where(index == number, part, found)
    return found


def average_pooling(
    x: Array, size: Counts, strides: Counts, padding: Pairs, count_padding: bool
) -> Array:
    """The mean of each window."""
    (whole,) = wide(x if is_floating(x.dtype) else x.astype(np.float64))
    total = functools.reduce(np.add, _windows(whole, 0, size, strides, padding))
    return np.asarray(total / _divisor(total, x.shape[1:-1], size, strides, padding, count_padding))


def _divisor(
    like: Array, places: Shape, size: Counts, strides: Counts, padding: Pairs, count_padding: bool
) -> Array:
    if count_padding:
        return np.asarray(math.prod(size), like.dtype)
    return counts_of_places(places, size, strides, padding).astype(like.dtype)


def average_pooling_inputs(
    g: Array, places: Counts, size: Counts, strides: Counts, padding: Pairs, count_padding: bool
) -> Array:
    """What the means add to each place."""
    (g,) = wide(g if is_floating(g.dtype) else g.astype(np.float64))
    each = g / _divisor(g, places, size, strides, padding, count_padding)
    sizes = [n + a + b for n, (a, b) in zip(places, padding, strict=True)]
    whole = np.zeros((g.shape[0], *sizes, g.shape[-1]), g.dtype)
    for part in _parts(whole, size, g.shape[1:-1], strides):
        part += each
    return whole[_inside(places, padding)]


# --- references: window by window -----------------------------------------------------------------


def _meetings(places: Shape, size: Counts, strides: Counts, padding: Pairs) -> Any:
    """Each window, and the places of x in it with their numbers in the window."""
    counts = windows_along(places, padding, size, strides)
    for window in np.ndindex(*counts):  # type: ignore[arg-type]
        found = {}
        for number, at in enumerate(np.ndindex(*size)):
            place = tuple(
                p * s + t - a for p, s, t, (a, _) in zip(window, strides, at, padding, strict=True)
            )
            if all(0 <= i < n for i, n in zip(place, places, strict=True)):
                found[number] = place
        yield window, found


def _outputs(x: Array, size: Counts, strides: Counts, padding: Pairs, dtype: Any = float) -> Array:
    counts = windows_along(x.shape[1:-1], padding, size, strides)
    return np.zeros((x.shape[0], *counts, x.shape[-1]), dtype)


def max_pooling_reference(x: Array, **settled: Any) -> Array:
    """The largest, of the places that each window says it covers."""
    y = _outputs(x, **settled)
    for window, found in _meetings(x.shape[1:-1], **settled):
        y[(slice(None), *window)] = np.max([x[(slice(None), *at)] for at in found.values()], axis=0)
    return y


def max_pooling_indices_reference(x: Array, **settled: Any) -> Array:
    """Its number, likewise."""
    y = _outputs(x, **settled, dtype=np.int64)
    for window, found in _meetings(x.shape[1:-1], **settled):
        values = np.stack([x[(slice(None), *at)] for at in found.values()])
        y[(slice(None), *window)] = np.array([*found])[values.argmax(axis=0)]
    return y


def max_pooling_inputs_reference(g: Array, index: Array, places: Any, **settled: Any) -> Array:
    """Each g added where its window chose."""
    x = np.zeros((g.shape[0], *places, g.shape[-1]))
    for window, found in _meetings(places, **settled):
        for n, c in np.ndindex(g.shape[0], g.shape[-1]):
            place = found.get(int(index[(n, *window, c)]))
            if place is not None:
                x[(n, *place, c)] += g[(n, *window, c)]
    return x


def max_pooling_chosen_reference(x: Array, index: Array, **settled: Any) -> Array:
    """X where each window chose."""
    y = _outputs(x, **settled)
    for window, found in _meetings(x.shape[1:-1], **settled):
        for n, c in np.ndindex(x.shape[0], x.shape[-1]):
            place = found.get(int(index[(n, *window, c)]))
            if place is not None:
                y[(n, *window, c)] = x[(n, *place, c)]
    return y


def average_pooling_reference(x: Array, count_padding: bool, **settled: Any) -> Array:
    """The mean of the places that each window covers."""
    y = _outputs(x, **settled)
    for window, found in _meetings(x.shape[1:-1], **settled):
        count = math.prod(settled["size"]) if count_padding else len(found)
        y[(slice(None), *window)] = sum(x[(slice(None), *at)] for at in found.values()) / count
    return y


def average_pooling_inputs_reference(
    g: Array, places: Any, count_padding: bool, **settled: Any
) -> Array:
    """Each window's share for each place that it covers."""
    x = np.zeros((g.shape[0], *places, g.shape[-1]))
    for window, found in _meetings(places, **settled):
        count = math.prod(settled["size"]) if count_padding else len(found)
        for place in found.values():
            x[(slice(None), *place)] += g[(slice(None), *window)] / count
    return x
