"""Convolutions with strides of images of few channels, as convolutions without strides of many.

With strides s the places of an image are gathered in blocks of s: `[n, h, w, c]` becomes
`[n, h / s, w / s, s s c]`, and filters likewise, with zeros where the last block is not full. The sums are
the same. Kernels multiply 8 or 16 channels at a time; the images that AlexNet and ResNet begin with have 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from magmadnn.graph.dim import Shape, product
from magmadnn.ops.movement import reshape, transpose
from magmadnn.ops.slicing import slice_

from .windows import Counts, Pairs, counts_of_windows, padded

_ENOUGH = 8  # channels


@dataclass(frozen=True)
class Gathering:
    """How images and filters are gathered.

    Attributes:
        strides: of the convolution,
        padding: and before and after each of its axes, negative where places are not read.
        whole: sizes of filters that are multiples of the strides.
    """

    strides: Counts
    padding: Pairs
    whole: Counts

    @property
    def size(self) -> Counts:
        """Sizes of gathered filters."""
        return tuple(k // s for k, s in zip(self.whole, self.strides, strict=True))

    @property
    def settled(self) -> dict[str, Any]:
        """The settings of the convolution that is left."""
        axes = len(self.strides)
        ones = (1,) * axes
        return {"strides": ones, "padding": ((0, 0),) * axes, "dilation": ones, "groups": 1}

    def of_image(self, x: Any) -> Any:
        """An image, gathered."""
        x = padded(x, tuple((before, max(after, 0)) for before, after in self.padding))
        if any(after < 0 for _, after in self.padding):
            ends = (
                ("slice", 0, n + min(after, 0), 1)
                for n, (_, after) in zip(x.shape[1:-1], self.padding, strict=True)
            )
            x = slice_(x, index=(("slice", None, None, 1), *ends, ("slice", None, None, 1)))
        return self._gathered(x, 1)

    def of_filters(self, w: Any) -> Any:
        """Filters, gathered."""
        missing = tuple((0, k - n) for k, n in zip(self.whole, w.shape[:-2], strict=True))
        whole = reshape(w, (1, *w.shape[:-2], product(w.shape[-2:])))
        whole = reshape(padded(whole, missing), (*self.whole, *w.shape[-2:]))
        return self._gathered(whole, 0)

    def _gathered(self, x: Any, first: int) -> Any:
        """Blocks of places as channels, of an array whose places begin with axis `first`."""
        axes = len(self.strides)
        before, after = x.shape[:first], x.shape[first + axes + 1 :]
        places, c = x.shape[first : first + axes], x.shape[first + axes]
        cut = [
            size for n, s in zip(places, self.strides, strict=True) for size in (n // s, s)
        ]  # a block, and its places
        x = reshape(x, (*before, *cut, c, *after))
        blocks = tuple(range(first, first + 2 * axes, 2))
        inside = tuple(k + 1 for k in blocks)
        rest = tuple(range(first + 2 * axes, len(x.shape)))
        x = transpose(x, (*range(first), *blocks, *inside, *rest))
        return reshape(x, (*before, *cut[::2], math.prod(self.strides) * c, *after))

    def filters_of(self, gathered: Any, size: Counts) -> Any:
        """What gathered filters are, without those that were added."""
        axes, (many, o) = len(self.strides), gathered.shape[-2:]
        c = many // math.prod(self.strides)
        w = reshape(gathered, (*self.size, *self.strides, c, o))
        order = (k + part for k in range(axes) for part in (0, axes))
        w = reshape(transpose(w, (*order, 2 * axes, 2 * axes + 1)), (*self.whole, c, o))
        if size == self.whole:
            return w
        whole = ("slice", None, None, 1)
        return slice_(w, index=(*(("slice", 0, k, 1) for k in size), whole, whole))


def gathering(
    shape: Shape, size: Counts, strides: Counts, padding: Pairs, dilation: Counts, groups: int
) -> Gathering | None:
    """How to gather images of this shape; None where that gains nothing."""
    *places, c = (n for n in shape[1:] if isinstance(n, int))
    if len(places) + 2 < len(shape) or c >= _ENOUGH:
        return None  # sizes that are not known, or nothing to gain
    if groups > 1 or max(dilation) > 1 or max(strides) == 1:
        return None
    if any(s > k for s, k in zip(strides, size, strict=True)):
        return None  # some places are not read at all
    settled = {"strides": strides, "padding": padding, "dilation": dilation}
    counts = counts_of_windows(tuple(places), size, settled)
    whole = tuple(-(-k // s) * s for k, s in zip(size, strides, strict=True))
    pads = tuple(
        (before, (count - 1) * s + k - n - before)
        for n, count, s, k, (before, _) in zip(places, counts, strides, whole, padding, strict=True)
        if isinstance(count, int)
    )
    return Gathering(tuple(strides), pads, whole)
