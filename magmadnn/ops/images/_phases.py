"""The gradient of the inputs of a convolution with strides, as convolutions without, one for each phase.

Window p meets the place x of the inputs with the tap t where `p * stride + t * dilation - before = x`. Of
the places `x = r + stride * q` (phase r) only some taps meet windows: every `stride / common`-th, where
`common` is the greatest common divisor of stride and dilation. From one of them to the next p falls by
`dilation / common`. With the m-th of them,

    p = q + (r + before - t0 * dilation) / stride - m * dilation / common,

as in a convolution with stride 1 whose padding before is the second term.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .windows import Counts, Pairs, windows_along


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
