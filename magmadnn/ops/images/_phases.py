"""The gradient of the inputs of a convolution with strides, as convolutions without, one for each phase.

Window p meets the place x of the inputs with the tap t where `p * stride + t * dilation - before = x`. Of
the places `x = r + stride * q` (phase r) only some taps meet windows: every `stride / common`-th, where
`common` is the greatest common divisor of stride and dilation. From one of them to the next p falls by
`dilation / common`. With the m-th of them,

    p = q + (r + before - t0 * dilation) / stride - m * dilation / common,

as in a convolution with stride 1 whose padding before is the second term.

Where images have few channels, as in a network's first layer, these fill a small part of a vector. There the
phases are the columns of one product (`together`): with the dilation 1, of all of them only windows
`lo <= p - q <= hi` meet taps, and with j counted from lo the tap is

    t = r + before - (lo + j) * stride,

which is one of w or, for some phases and j, beyond its ends: zero. So each element is the same chain of sums
as in its own phase, with products by zeros among it; what is not finite spreads to the other phases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn.graph.dim import Shape
from magmadnn.ops.movement import reshape, transpose
from magmadnn.ops.slicing import flip, pad, slice_

from . import _products
from ._products import GAIN, LANES
from .windows import Counts, Pairs, padded, windows_along


@dataclass(frozen=True)
class Phase:
    """The places r, r + stride, r + 2 stride, ... of the inputs along each axis.

    Attributes:
        phase: r.
        taps: the index of those of the filters [*size, c / groups, o] that meet windows there.
        places: how many.
        padding: of the convolution with them; a negative number leaves windows out.
        dilation: from one window that meets a place to the next one.
    """

    phase: Counts
    taps: tuple[Any, ...]
    places: Counts
    padding: Pairs
    dilation: Counts


@dataclass(frozen=True)
class _Axis:
    """A phase along one axis."""

    taps: tuple[Any, ...]
    places: int
    padding: tuple[int, int]
    dilation: int


def phases_of(
    size: Counts,
    places: Counts,
    strides: Counts,
    padding: Pairs,
    dilation: Counts,
    groups: int,
) -> Iterator[Phase]:
    """The phases that have places, and taps which meet windows there."""
    reach = tuple((k - 1) * d + 1 for k, d in zip(size, dilation, strict=True))
    counts = windows_along(places, padding, reach, strides)
    whole = ("slice", None, None, 1)
    for phase in np.ndindex(*strides):
        along = [
            _along(*each)
            for each in zip(phase, size, places, counts, strides, padding, dilation, strict=True)
        ]
        axes = [axis for axis in along if axis is not None]
        if len(axes) == len(along):
            yield Phase(
                phase,
                (*(axis.taps for axis in axes), whole, whole),
                tuple(axis.places for axis in axes),
                tuple(axis.padding for axis in axes),
                tuple(axis.dilation for axis in axes),
            )


def _along(
    r: int, size: int, n: int, count: Any, stride: int, pads: tuple[int, int], dilation: int
) -> _Axis | None:
    """One axis of a phase; None where no window meets a place of it."""
    before, _ = pads
    taps = [t for t in range(size) if (r + before - t * dilation) % stride == 0]
    places = len(range(r, n, stride))
    if not taps or not places:
        return None
    common = math.gcd(stride, dilation)
    step, apart = stride // common, dilation // common
    first = (r + before - taps[0] * dilation) // stride
    after = count - places - first + (len(taps) - 1) * apart
    return _Axis(("slice", taps[0], taps[-1] + 1, step), places, (first, after), apart)


@dataclass(frozen=True)
class _Joint:
    """All phases along one axis, as one convolution.

    Attributes:
        windows: that meet taps of one phase or another: hi - lo + 1.
        padding: of the outputs' gradient; a negative number leaves windows out.
        taps: zeros before and after those of the filters, which make `stride` times `windows` of them.
    """

    windows: int
    padding: tuple[int, int]
    taps: tuple[int, int]


def _joint(size: int, n: Any, count: Any, stride: int, before: int) -> _Joint:
    """Of filters and places along an axis, with so many windows and places of padding before."""
    lo, hi = -((size - 1 - before) // stride), (stride - 1 + before) // stride
    windows, first = hi - lo + 1, stride * hi - before
    after = -(-n // stride) + hi - count
    return _Joint(windows, (-lo, after), (first, stride * windows - first - size))


def pay_together(
    parts: Iterable[Phase], size: Counts, c: int, strides: Counts, dilation: Counts, groups: int
) -> bool:
    """Whether one product for all phases is shorter, as its vectors are fuller: by sizes only.

    Args:
        parts: the phases.
        size: of the filters.
        c: channels of the inputs.
        strides: of the convolution.
        dilation: of it.
        groups: of it.
    """
    if groups > 1 or max(dilation) > 1:
        return False
    apart = sum(math.prod(len(range(*t[1:])) for t in part.taps[: len(size)]) for part in parts)
    joint = math.prod(-(-(k + s - 1) // s) for k, s in zip(size, strides, strict=True))
    phases = math.prod(strides)
    return joint * -(-c * phases // LANES) <= GAIN * apart * -(-c // LANES)


def together(g: Any, w: Any, places: Shape, strides: Counts, padding: Pairs) -> Any:
    """The gradient [n, *places, c] of the inputs by one product; the dilation is 1.

    Args:
        g: the gradient of the outputs.
        w: the filters [*size, c, o].
        places: of the inputs.
        strides: of the convolution.
        padding: of it.
    """
    size, (c, o) = w.shape[:-2], w.shape[-2:]
    axes = len(size)
    sizes = zip(size, places, g.shape[1:-1], strides, padding, strict=True)
    along = [_joint(k, n, count, s, before) for k, n, count, s, (before, _) in sizes]
    whole = ("slice", None, None, 1)
    kept = [
        ("slice", max(-a.padding[0], 0), n + min(a.padding[1], 0), 1)
        for a, n in zip(along, g.shape[1:-1], strict=True)
    ]
    g = slice_(g, index=(whole, *kept, whole))
    g = padded(g, tuple((max(a.padding[0], 0), max(a.padding[1], 0)) for a in along))
    w = pad(w, widths=(*(a.taps for a in along), (0, 0), (0, 0)))
    cut = [n for a, s in zip(along, strides, strict=True) for n in (a.windows, s)]
    w = reshape(w, (*cut, c, o))
    for axis in range(axes):
        w = flip(w, 2 * axis)
    windows, phases = range(0, 2 * axes, 2), range(1, 2 * axes, 2)
    w = transpose(w, (*windows, 2 * axes + 1, *phases, 2 * axes))
    w = reshape(w, (*(a.windows for a in along), o, math.prod(strides) * c))
    once = (1,) * axes
    made = _products.convolution(g, w, 1, strides=once, padding=((0, 0),) * axes, dilation=once)
    quotients = made.shape[1:-1]
    made = reshape(made, (made.shape[0], *quotients, *strides, c))
    order = [axis for k in range(1, axes + 1) for axis in (k, axes + k)]
    made = transpose(made, (0, *order, 2 * axes + 1))
    wide = tuple(q * s for q, s in zip(quotients, strides, strict=True))
    made = reshape(made, (made.shape[0], *wide, c))
    if wide == tuple(places):
        return made
    return slice_(made, index=(whole, *(("slice", 0, n, 1) for n in places), whole))
