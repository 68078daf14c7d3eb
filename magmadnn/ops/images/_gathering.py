"""Convolutions with strides of images of few channels, as convolutions without strides of many.

With strides s the places of an image are gathered in blocks of s: `[n, h, w, c]` becomes
`[n, h / s, w / s, s s c]`, and filters likewise, with zeros where the last block is not full. The sums are
the same. Kernels multiply 8 or 16 channels at a time; the images that AlexNet and ResNet begin with have 3.

Images with two axes of places are gathered by one kernel, which reads them where they lie, without a padded
copy. Channels fill whole loads of 16 bytes then, the last with zeros: 12 in half precision become 16. Where a
row of a filter has up to 64 channels, these are gathered beside each other: the 7 x 7 filters of ResNet's
first layer, as 4 x 4 on 16 channels, become 4 x 1 on 64. cuDNN multiplies these in about half the time in
half precision and two thirds in TF32, and the gathered image has four times the bytes.
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
_MOST_BESIDE = 64  # channels of a row of a filter that are gathered
# Bytes of their elements, with TF32 and without: exact float32 takes longer so.
_MOST_BYTES = {True: 4, False: 2}
_MOST_BLOCK = 2048  # elements of a block, of which the kernel has some in shared memory
_AXES = 2  # of places, that the kernel has
_MOST_ELEMENTS = 1 << 24  # of one image


@dataclass(frozen=True)
class Gathering:
    """How images and filters are gathered.

    Attributes:
        strides: of the convolution,
        padding: and before and after each of its axes, negative where places are not read.
        whole: sizes of filters that are multiples of the strides.
        channels: of a block, in whole loads; 0 where no kernel gathers.
        beside: neighbouring blocks of a row whose channels lie behind each other.
    """

    strides: Counts
    padding: Pairs
    whole: Counts
    channels: int = 0
    beside: int = 1

    @property
    def size(self) -> Counts:
        """Sizes of gathered filters."""
        counts = self._cut
        return (*counts[:-1], counts[-1] // self.beside)

    @property
    def _cut(self) -> Counts:
        """Blocks of a filter along each axis."""
        return tuple(k // s for k, s in zip(self.whole, self.strides, strict=True))

    @property
    def settled(self) -> dict[str, Any]:
        """The settings of the convolution that is left."""
        axes = len(self.strides)
        ones = (1,) * axes
        return {"strides": ones, "padding": ((0, 0),) * axes, "dilation": ones, "groups": 1}

    def of_image(self, x: Any) -> Any:
        """An image, gathered."""
        if self.channels:
            made = gathered_whole(
                _given(x),
                strides=self.strides,
                padding=self.padding,
                channels=self.channels,
                beside=self.beside,
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

    def of_filters(self, w: Any) -> Any:
        """Filters, gathered."""
        missing = tuple((0, k - n) for k, n in zip(self.whole, w.shape[:-2], strict=True))
        whole = reshape(w, (1, *w.shape[:-2], product(w.shape[-2:])))
        whole = reshape(padded(whole, missing), (*self.whole, *w.shape[-2:]))
        made = self._gathered(whole, 0)
        more = max(self.channels - made.shape[-2], 0)
        if more:
            widths = (*[(0, 0)] * (len(made.shape) - 2), (0, more), (0, 0))
            made = pad(made, widths=widths, value=0)
        if self.beside == 1:
            return made
        return reshape(made, (*self.size, self.beside * self.channels, made.shape[-1]))

    def _gathered(self, x: Any, first: int) -> Any:
        """Blocks of places as channels, of an array whose places begin with axis `first`."""
        axes = len(self.strides)
        before, after = x.shape[:first], x.shape[first + axes + 1 :]
        places, c = x.shape[first : first + axes], x.shape[first + axes]
        # blocks along each axis, and the places of one
        cut = [size for n, s in zip(places, self.strides, strict=True) for size in (n // s, s)]
        x = reshape(x, (*before, *cut, c, *after))
        blocks = tuple(range(first, first + 2 * axes, 2))
        inside = tuple(k + 1 for k in blocks)
        rest = tuple(range(first + 2 * axes, len(x.shape)))
        x = transpose(x, (*range(first), *blocks, *inside, *rest))
        return reshape(x, (*before, *cut[::2], math.prod(self.strides) * c, *after))

    def filters_of(self, gathered: Any, size: Counts, c: int) -> Any:
        """What gathered filters are, without those that were added, of an image of c channels."""
        axes, o = len(self.strides), gathered.shape[-1]
        many = gathered.shape[-2] // self.beside
        if self.beside > 1:
            gathered = reshape(gathered, (*self._cut, many, o))
        whole = ("slice", None, None, 1)
        kept = math.prod(self.strides) * c
        if kept < many:
            index = (*[whole] * (len(gathered.shape) - 2), ("slice", 0, kept, 1), whole)
            gathered = slice_(gathered, index=index)
        w = reshape(gathered, (*self._cut, *self.strides, c, o))
        order = (k + part for k in range(axes) for part in (0, axes))
        w = reshape(transpose(w, (*order, 2 * axes, 2 * axes + 1)), (*self.whole, c, o))
        if size == self.whole:
            return w
        return slice_(w, index=(*(("slice", 0, k, 1) for k in size), whole, whole))


def gathering(
    x: Any,
    size: Counts,
    strides: Counts,
    padding: Pairs,
    dilation: Counts,
    groups: int,
    tensor_float: bool = False,
) -> Gathering | None:
    """How to gather an image; None where that gains nothing.

    Args:
        x: the image.
        size: of filters.
        strides: of the convolution,
        padding: before and after each axis,
        dilation: of filters,
        groups: and of channels.
        tensor_float: whether float32 may be multiplied as TF32.
    """
    shape: Shape = x.shape
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
    fits = len(places) == _AXES and math.prod((*strides, c)) <= _MOST_BLOCK
    if not fits or 4 * _ENOUGH * math.prod((*places, c)) > _MOST_ELEMENTS:
        return Gathering(tuple(strides), pads, whole)
    itemsize = _given(x).dtype.itemsize
    each = max(_LOAD_BYTES // itemsize, 1)
    channels = -(-c * math.prod(strides) // each) * each
    taps = whole[-1] // strides[-1]
    is_beside = itemsize <= _MOST_BYTES[tensor_float] and taps * channels <= _MOST_BESIDE
    return Gathering(tuple(strides), pads, whole, channels, taps if is_beside else 1)


def _given(x: Any) -> Any:
    """What an image is gathered from: halves that it was made of, or itself."""
    halves = narrow(x)
    return x if halves is None else halves


# --- the op ---------------------------------------------------------------------------------------


def _blocks(shape: Shape, strides: Counts, padding: Pairs) -> Shape:
    """How many blocks of places there are along each axis."""
    each: Any = zip(shape[1:-1], strides, padding, strict=True)
    return tuple((n + (before + after)) // s for n, s, (before, after) in each)


def _shapes(words: OpWords, specs: Any, attributes: Attributes) -> Shape:
    settled: Any = attributes
    (shape,) = (spec.shape for spec in specs)
    *before, last = _blocks(shape, settled["strides"], settled["padding"])
    beside = settled["beside"]
    return (shape[0], *before, last - (beside - 1), beside * settled["channels"])


def _numpy(x: Array, strides: Counts, padding: Pairs, channels: int, beside: int) -> Array:
    wide = np.pad(x, ((0, 0), *((before, max(after, 0)) for before, after in padding), (0, 0)))
    counts: Any = _blocks(x.shape, strides, padding)
    n, c = x.shape[0], x.shape[-1]
    made = np.zeros((n, *counts, channels), x.dtype)
    for number, place in enumerate(np.ndindex(*strides)):
        each = zip(place, counts, strides, strict=True)
        index = tuple(slice(at, at + k * s, s) for at, k, s in each)
        made[..., number * c : (number + 1) * c] = wide[(slice(None), *index)]
    columns = counts[-1] - (beside - 1)
    return np.concatenate([made[..., b : b + columns, :] for b in range(beside)], axis=-1)


def _reference(x: Array, strides: Counts, padding: Pairs, channels: int, beside: int) -> Array:
    """Element by element of x."""
    counts: Any = _blocks(x.shape, strides, padding)
    columns = counts[-1] - (beside - 1)
    made = np.zeros((x.shape[0], *counts[:-1], columns, beside * channels))
    for place in np.ndindex(*x.shape[1:-1]):
        at = [p + before for p, (before, _) in zip(place, padding, strict=True)]
        block = [p // s for p, s in zip(at, strides, strict=True)]
        if any(b >= n for b, n in zip(block, counts, strict=True)):
            continue
        inside = [p % s for p, s in zip(at, strides, strict=True)]
        first = int(np.ravel_multi_index(inside, strides)) * x.shape[-1]
        for column in range(max(block[-1] - beside + 1, 0), min(block[-1] + 1, columns)):
            begin = (block[-1] - column) * channels + first
            goal = (slice(None), *block[:-1], column, slice(begin, begin + x.shape[-1]))
            made[goal] = x[(slice(None), *place)]
    return made


def _samples(draw: Draw) -> list[Sample]:
    first = {"strides": (2, 2), "padding": ((1, 2), (3, -1)), "channels": 16, "beside": 1}
    other = {"strides": (1, 3), "padding": ((0, 1), (0, 0)), "channels": 8, "beside": 2}
    return [Sample((draw(2, 5, 6, 3),), first), Sample((draw(2, 4, 9, 2),), other)]


gathered_whole = Op(
    name="_gathered_whole",
    args=("x",),
    formula="blocks of `strides` places of pictures as channels, zeros around them and behind the last; "
    "`beside` neighbours of a row behind each other",
    kind=OpKind.LIBRARY,
    shapes=_shapes,
    dtypes=first_dtype,
    numpy=_numpy,
    vjp=NoGradient(why=WHY),
    reference=_reference,
    samples=_samples,
    attributes=dict.fromkeys(("strides", "padding", "channels", "beside"), REQUIRED),
    library=LibraryCall(
        "gathered",
        settings=("strides", "padding", "beside"),
        dtypes=DTYPES,
        whole=True,
        again=True,
        operations=lambda y, *operands: product(y),
    ),
)
