"""Convolutions by NumPy: a product for each tap of the filters, and window by window for the tests."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from magmadnn.graph.dim import Shape
from magmadnn.graph.op import Array
from magmadnn.graph.signature import Attributes
from magmadnn.ops.contraction import wide

from .windows import Counts, Pairs, reach_of, windows_along

# --- NumPy: a product for each tap ----------------------------------------------------------------


def _taps(x: Array, size: Counts, counts: Shape, strides: Counts, dilation: Counts) -> Any:
    """For each place in the windows: where it is, and a view `[n, *windows, c]` of padded places."""
    for tap in np.ndindex(*size):
        index = tuple(
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, n, s in zip(tap, dilation, counts, strides, strict=True)
        )
        yield tap, x[(slice(None), *index)]


def _pad_numpy(x: Array, padding: Pairs) -> Array:
    return np.pad(x, ((0, 0), *padding, (0, 0))) if any(map(any, padding)) else x


def _grouped(x: Array, groups: int) -> Array:
    return x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)


def convolution(
    x: Array, w: Array, strides: Counts, padding: Pairs, dilation: Counts, groups: int
) -> Array:
    """Outputs of each window."""
    x, w = wide(x, w)
    size = w.shape[:-2]
    counts = windows_along(x.shape[1:-1], padding, reach_of(size, dilation), strides)
    y = np.zeros((x.shape[0], *counts, groups, w.shape[-1] // groups), np.result_type(x, w))
    for tap, part in _taps(_pad_numpy(x, padding), size, counts, strides, dilation):
        if groups == 1:
            y[..., 0, :] += part @ w[tap]
        else:
            y += np.einsum("...gi,igo->...go", _grouped(part, groups), _grouped(w[tap], groups))
    return y.reshape(*y.shape[:-2], w.shape[-1])


def inputs(
    g: Array,
    w: Array,
    places: Counts,
    strides: Counts,
    padding: Pairs,
    dilation: Counts,
    groups: int,
) -> Array:
    """What the outputs g add to each place of x."""
    g, w = wide(g, w)
    sizes = [n + before + after for n, (before, after) in zip(places, padding, strict=True)]
    whole = np.zeros((g.shape[0], *sizes, w.shape[-2] * groups), np.result_type(g, w))
    for tap, part in _taps(whole, w.shape[:-2], g.shape[1:-1], strides, dilation):
        if groups == 1:
            part += g @ w[tap].T
        else:
            made = np.einsum("...go,igo->...gi", _grouped(g, groups), _grouped(w[tap], groups))
            part += made.reshape(part.shape)
    inside = (slice(a, a + n) for n, (a, _) in zip(places, padding, strict=True))
    return whole[(slice(None), *inside)]


def filters(
    x: Array,
    g: Array,
    size: Counts,
    strides: Counts,
    padding: Pairs,
    dilation: Counts,
    groups: int,
) -> Array:
    """Sums of products for each tap."""
    x, g = wide(x, g)
    c = x.shape[-1] // groups
    w = np.zeros((*size, c, g.shape[-1]), np.result_type(x, g))
    rows = math.prod(g.shape[:-1])
    outputs = g.reshape(rows, groups, g.shape[-1] // groups)
    for tap, part in _taps(_pad_numpy(x, padding), size, g.shape[1:-1], strides, dilation):
        inputs = part.reshape(rows, groups, c)
        if groups == 1:
            w[tap] = inputs[:, 0].T @ outputs[:, 0]
        else:
            w[tap] = np.einsum("ngi,ngo->igo", inputs, outputs).reshape(c, g.shape[-1])
    return w


# --- references: window by window ----------------------------------------------------------------


def reference(x: Array, w: Array, counts: Shape, groups: int, **settled: Any) -> Array:
    """The convolution, by what each window says it covers."""
    y = np.zeros((x.shape[0], *counts, w.shape[-1]))
    for place, at, tap in _meetings(x.shape[1:-1], w.shape[:-2], y.shape[1:-1], settled):
        for i, o in _pairs(w.shape, groups):
            y[(slice(None), *place, o)] += x[(slice(None), *at, i)] * w[(*tap, i % w.shape[-2], o)]
    return y


def _meetings(places: Shape, size: Shape, counts: Shape, settled: Attributes) -> Any:
    """Each window, each place of x in it, and the tap there."""
    for place in np.ndindex(*counts):  # type: ignore[arg-type]
        for tap in np.ndindex(*size):  # type: ignore[arg-type]
            at = tuple(
                p * s + t * d - before
                for p, s, t, d, (before, _) in zip(
                    place,
                    settled["strides"],
                    tap,
                    settled["dilation"],
                    settled["padding"],
                    strict=True,
                )
            )
            if all(0 <= a < n for a, n in zip(at, places, strict=True)):
                yield place, at, tap


def _pairs(w: tuple[int, ...], groups: int) -> Iterable[tuple[int, int]]:
    """The channels of x and filters that belong to one group."""
    c, o = w[-2], w[-1] // groups
    for group in range(groups):
        for i in range(c):
            for k in range(o):
                yield group * c + i, group * o + k


def inputs_reference(g: Array, w: Array, places: Any, groups: int, **settled: Any) -> Array:
    """What it adds to each place of x, likewise."""
    x = np.zeros((g.shape[0], *places, w.shape[-2] * groups))
    for place, at, tap in _meetings(places, w.shape[:-2], g.shape[1:-1], settled):
        for i, o in _pairs(w.shape, groups):
            x[(slice(None), *at, i)] += g[(slice(None), *place, o)] * w[(*tap, i % w.shape[-2], o)]
    return x


def filters_reference(x: Array, g: Array, size: Any, groups: int, **settled: Any) -> Array:
    """The sums of products for each tap, likewise."""
    w = np.zeros((*size, x.shape[-1] // groups, g.shape[-1]))
    for place, at, tap in _meetings(x.shape[1:-1], size, g.shape[1:-1], settled):
        for i, o in _pairs(w.shape, groups):
            both = x[(slice(None), *at, i)] * g[(slice(None), *place, o)]
            w[(*tap, i % w.shape[-2], o)] += both.sum()
    return w
