"""Convolutions with strides of images of few channels, as convolutions without strides of many.

With strides s the places of an image are gathered in blocks of s: `[n, h, w, c]` becomes
`[n, h / s, w / s, s s c]`, and filters likewise, with zeros where the last block is not full. The sums are
the same. Kernels multiply 8 or 16 channels at a time; the images that AlexNet and ResNet begin with have 3.

Images with two axes of places are gathered by one kernel, which reads them where they lie, without a padded
copy. Channels fill whole loads of 16 bytes then, the last with zeros: 12 in half precision become 16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn.graph.computed_by import LibraryCall
from magmadnn.graph.dim import Shape, product
from magmadnn.graph.op import REQUIRED, Array, Draw, NoGradient, Op, OpKind, Sample
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.ops._arguments import first_dtype
from magmadnn.ops.arithmetic import cast
from magmadnn.ops.movement import reshape, transpose
from magmadnn.ops.slicing import pad, slice_

from ._library import DTYPES, WHY, narrow
from .windows import Counts, Pairs, counts_of_windows, padded

_ENOUGH = 8  # channels
_LOAD_BYTES = 16
_AXES = 2  # of places, that the kernel has
_MOST_ELEMENTS = 1 << 24  # of one image


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
        if self._fits(x.shape):
            halves = narrow(x)
            given = x if halves is None else halves
            made = gathered_whole(
                given,
                strides=self.strides,
                padding=self.padding,
                channels=self._channels(x.shape[-1], given.dtype.itemsize),
            )
            return made if made.dtype == x.dtype else cast(made, x.dtype.name)
        x = padded(x, tuple((before, max(after, 0)) for before, after in self.padding))
        if any(after < 0 for _, after in self.padding):
            ends = (
                ("slice", 0, n + min(after, 0), 1)
                for n, (_, after) in zip(x.shape[1:-1], self.padding, strict=True)
            )
            x = slice_(x, index=(("slice", None, None, 1), *ends, ("slice", None, None, 1)))
        return self._gathered(x, 1)

    def _fits(self, shape: Shape) -> bool:
        """Whether the kernel takes images of this shape."""
        sizes = shape[1:]
        known = len(sizes) == _AXES + 1 and all(isinstance(n, int) for n in sizes)
        return known and 4 * _ENOUGH * product(sizes) <= _MOST_ELEMENTS  # type: ignore[operator]

    def _channels(self, c: int, itemsize: int) -> int:
        """Channels of a gathered image of c channels, in whole loads."""
        each = max(_LOAD_BYTES // itemsize, 1)
        return -(-c * math.prod(self.strides) // each) * each

    def of_filters(self, w: Any, channels: int) -> Any:
        """Filters, gathered, for an image of so many channels when it is gathered."""
        missing = tuple((0, k - n) for k, n in zip(self.whole, w.shape[:-2], strict=True))
        whole = reshape(w, (1, *w.shape[:-2], product(w.shape[-2:])))
        whole = reshape(padded(whole, missing), (*self.whole, *w.shape[-2:]))
        made = self._gathered(whole, 0)
        more = channels - made.shape[-2]
        if not more:
            return made
        return pad(made, widths=(*[(0, 0)] * (len(made.shape) - 2), (0, more), (0, 0)), value=0)

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

    def filters_of(self, gathered: Any, size: Counts, c: int) -> Any:
        """What gathered filters are, without those that were added, of an image of c channels."""
        axes, (many, o) = len(self.strides), gathered.shape[-2:]
        whole = ("slice", None, None, 1)
        kept = math.prod(self.strides) * c
        if kept < many:
            index = (*[whole] * (len(gathered.shape) - 2), ("slice", 0, kept, 1), whole)
            gathered = slice_(gathered, index=index)
        w = reshape(gathered, (*self.size, *self.strides, c, o))
        order = (k + part for k in range(axes) for part in (0, axes))
        w = reshape(transpose(w, (*order, 2 * axes, 2 * axes + 1)), (*self.whole, c, o))
        if size == self.whole:
            return w
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


# --- the op ---------------------------------------------------------------------------------------


def _blocks(shape: Shape, strides: Counts, padding: Pairs) -> Shape:
    """How many blocks of places there are along each axis."""
    each: Any = zip(shape[1:-1], strides, padding, strict=True)
    return tuple((n + (before + after)) // s for n, s, (before, after) in each)


def _shapes(words: OpWords, specs: Any, attributes: Attributes) -> Shape:
    settled: Any = attributes
    (shape,) = (spec.shape for spec in specs)
    return (shape[0], *_blocks(shape, settled["strides"], settled["padding"]), settled["channels"])


def _numpy(x: Array, strides: Counts, padding: Pairs, channels: int) -> Array:
    wide = np.pad(x, ((0, 0), *((before, max(after, 0)) for before, after in padding), (0, 0)))
    counts = _blocks(x.shape, strides, padding)
    n, c = x.shape[0], x.shape[-1]
    made = np.zeros((n, *counts, channels), x.dtype)
    for number, place in enumerate(np.ndindex(*strides)):
        each = zip(place, counts, strides, strict=True)
        index = tuple(slice(at, at + k * s, s) for at, k, s in each)
        made[..., number * c : (number + 1) * c] = wide[(slice(None), *index)]
    return made


def _reference(x: Array, strides: Counts, padding: Pairs, channels: int) -> Array:
    """Element by element of x."""
    counts: Any = _blocks(x.shape, strides, padding)
    made = np.zeros((x.shape[0], *counts, channels))
    for place in np.ndindex(*x.shape[1:-1]):
        at = [p + before for p, (before, _) in zip(place, padding, strict=True)]
        block = [p // s for p, s in zip(at, strides, strict=True)]
        if any(b >= n for b, n in zip(block, counts, strict=True)):
            continue
        inside = [p % s for p, s in zip(at, strides, strict=True)]
        first = int(np.ravel_multi_index(inside, strides)) * x.shape[-1]
        whole = (slice(None), *block, slice(first, first + x.shape[-1]))
        made[whole] = x[(slice(None), *place)]
    return made


def _samples(draw: Draw) -> list[Sample]:
    return [
        Sample(
            (draw(2, 5, 6, 3),), {"strides": (2, 2), "padding": ((1, 2), (3, -1)), "channels": 16}
        ),
        Sample(
            (draw(2, 4, 6, 2),), {"strides": (1, 3), "padding": ((0, 1), (0, 0)), "channels": 8}
        ),
    ]


gathered_whole = Op(
    name="_gathered_whole",
    args=("x",),
    formula="blocks of `strides` places of pictures as channels, zeros around them and behind the last",
    kind=OpKind.LIBRARY,
    shapes=_shapes,
    dtypes=first_dtype,
    numpy=_numpy,
    vjp=NoGradient(why=WHY),
    reference=_reference,
    samples=_samples,
    attributes=dict.fromkeys(("strides", "padding", "channels"), REQUIRED),
    library=LibraryCall(
        "gathered",
        settings=("strides", "padding"),
        dtypes=DTYPES,
        whole=True,
        operations=lambda y, *operands: product(y),
    ),
)
