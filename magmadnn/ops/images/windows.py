"""Windows over the places of an image: which of them there are, and a view of their elements.

Images are channels-last: `[n, *places, c]` with one, two or more axes of places (time; height, width). A
window takes `size[a]` places along axis a, `dilation[a]` apart, and so reaches over
`(size - 1) * dilation + 1` of them; the next window begins `strides[a]` further.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from magmadnn.errors import ArgumentError, ShapeError, quoted
from magmadnn.graph.dim import Dim, Shape, Size
from magmadnn.graph.op import REQUIRED, Array, Op, OpKind, Sample
from magmadnn.graph.signature import Attributes, OpWords, axes_text, is_integer, shape_text
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import StackedCall
from magmadnn.ops._arguments import first_dtype
from magmadnn.ops.arithmetic import add
from magmadnn.ops.movement import reshape
from magmadnn.ops.slicing import pad, slice_, unslice

Pairs = tuple[tuple[int, int], ...]
Counts = tuple[int, ...]


# --- settings -------------------------------------------------------------------------------------


def check_image(words: OpWords, spec: Spec, places: int | None = None) -> int:
    """How many axes of places x has.

    Raises:
        ShapeError: if there are none, or not `places`.
    """
    found = spec.ndim - 2
    if found < 1 or (places is not None and found != places):
        names = "n, places..., c" if places is None else ", ".join(["n", *["places"] * places, "c"])
        raise ShapeError(
            f"{words.name}: {words.operand(0)} must be [{names}], got {shape_text(spec.shape)} with "
            f"{axes_text(spec.ndim)}; images without an axis of channels get one by expand_dims(x, -1)"
        )
    return found


def beyond_plain(settled: Attributes) -> str:
    """The first of strides, dilation and groups of a convolution that is not 1, as text; empty if none is."""
    for name in ("strides", "dilation"):
        if {*settled[name]} != {1}:
            return f"{name} {settled[name]}"
    return f"{settled['groups']} groups" if settled["groups"] != 1 else ""


def counts_of(words: OpWords, what: str, value: Any, axes: int) -> Counts:
    """A number from 1 for each axis of places, from one number or one for each.

    Raises:
        ArgumentError: for anything else.
    """
    each = tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes
    if len(each) != axes or not all(is_integer(n) and n >= 1 for n in each):
        raise ArgumentError(
            f"{words.name}: {what} must be an integer from 1, or one for each of {axes_text(axes)} of "
            f"places, got {quoted(value)}"
        )
    return tuple(int(n) for n in each)


def one_of(words: OpWords, what: str, value: Any, known: Sequence[str]) -> str:
    """A word of a list.

    Raises:
        ArgumentError: for anything else.
    """
    if not isinstance(value, str) or value not in known:
        names = ", ".join(f'"{name}"' for name in known)
        raise ArgumentError(f"{words.name}: {what} must be one of {names}, got {quoted(value)}")
    return value


def reach_of(size: Sequence[int], dilation: Sequence[int]) -> Counts:
    """Over how many places a window reaches, for each axis."""
    return tuple((k - 1) * d + 1 for k, d in zip(size, dilation, strict=True))


def pads_of(words: OpWords, padding: Any, places: Shape, reach: Counts, strides: Counts) -> Pairs:
    """Places that are added before and after each axis.

    Args:
        words: of the op that is called.
        padding: "valid" (none), "same" (as TensorFlow defines it: `ceil(places / stride)` windows, the odd
            place after), a number for both ends of all axes, one for each axis, or a pair for each axis.
        places: sizes of the axes.
        reach: of a window.
        strides: of the windows.

    Raises:
        ArgumentError: for another padding.
        ShapeError: if a window reaches further than the padded places.
    """
    if padding == "same":
        pairs = tuple(
            _same(words, axis, *each)
            for axis, each in enumerate(zip(places, reach, strides, strict=True), 1)
        )
    else:
        pairs = pairs_of(words, 0 if padding == "valid" else padding, len(places))
    for axis, (pair, span, n) in enumerate(zip(pairs, reach, places, strict=True), 1):
        if isinstance(n, int) and n + sum(pair) < span:
            raise ShapeError(
                f"{words.name}: a window reaches over {span} along axis {axis}, but x has {n} places there"
                f"{f', {n + sum(pair)} with padding' if sum(pair) else ''}: use a smaller window, or more "
                "padding"
            )
    return pairs


def _same(words: OpWords, axis: int, n: Size, span: int, stride: int) -> tuple[int, int]:
    if stride == 1:
        total = span - 1
    elif isinstance(n, Dim):
        raise ShapeError(
            f'{words.name}: padding "same" with the stride {stride} depends on the size of axis {axis}, '
            f"which is not known ({n}); declare it in Input, or give the padding in numbers"
        )
    else:
        total = max((-(-n // stride) - 1) * stride + span - n, 0)
    return total // 2, total - total // 2


def pairs_of(words: OpWords, padding: Any, axes: int) -> Pairs:
    """A pair for each axis, from padding in numbers.

    Raises:
        ArgumentError: for anything else.
    """
    each = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * axes
    pairs = [tuple(p) if isinstance(p, (tuple, list)) else (p, p) for p in each]
    if len(pairs) != axes or not all(
        len(p) == 2 and all(is_integer(n) and n >= 0 for n in p) for p in pairs
    ):
        raise ArgumentError(
            f'{words.name}: padding must be "valid", "same", an integer from 0, or an integer or a pair '
            f"(before, after) for each of {axes_text(axes)} of places, got {quoted(padding)}"
        )
    return tuple((int(a), int(b)) for a, b in pairs)


def windows_along(
    places: Sequence[Size], pads: Pairs, reach: Counts, strides: Counts
) -> tuple[Size, ...]:
    """How many windows there are along each axis."""
    return tuple(
        (n + (before + after) - span) // stride + 1
        for n, (before, after), span, stride in zip(places, pads, reach, strides, strict=True)
    )


def counts_of_windows(places: Shape, size: Sequence[Size], settled: Attributes) -> Shape:
    """The same from the settled attributes of a convolution, and the sizes of its windows."""
    reach = reach_of(size, settled["dilation"])  # type: ignore[arg-type]  # sizes of filters are known
    return windows_along(places, settled["padding"], reach, settled["strides"])


def padded(x: Any, pads: Pairs) -> Any:
    """`x` with zeros around its places."""
    return pad(x, widths=((0, 0), *pads, (0, 0))) if any(map(any, pads)) else x


def at_tap(x: Any, tap: Counts, windows: Shape, strides: Counts, dilation: Counts) -> Any:
    """Of padded places those that lie at one place, `tap`, of each window: [n, *windows, c]."""
    index: list[Any] = [("slice", None, None, 1)]
    for k, count, stride, apart in zip(tap, windows, strides, dilation, strict=True):
        start = k * apart
        index.append(("slice", start, (count - 1) * stride + (start + 1), stride))
    return slice_(x, index=(*index, ("slice", None, None, 1)))


# --- the view -------------------------------------------------------------------------------------


def view(x: Array, size: Counts, strides: Counts, dilation: Counts) -> Array:
    """`[n, *places, c]` as `[n, *windows, *size, c]`, without copying."""
    counts = windows_along(x.shape[1:-1], ((0, 0),) * len(size), reach_of(size, dilation), strides)
    of_places = x.strides[1:-1]
    return as_strided(
        x,
        (x.shape[0], *map(int, counts), *size, x.shape[-1]),  # type: ignore[arg-type]
        (
            x.strides[0],
            *(s * step for s, step in zip(of_places, strides, strict=True)),
            *(s * step for s, step in zip(of_places, dilation, strict=True)),
            x.strides[-1],
        ),
        writeable=False,
    )


def _shapes(words: OpWords, specs: Sequence[Spec], attributes: Any) -> Shape:
    shape, size = specs[0].shape, attributes["size"]
    reach = reach_of(size, attributes["dilation"])
    counts = windows_along(shape[1:-1], ((0, 0),) * len(size), reach, attributes["strides"])
    return (shape[0], *counts, *size, shape[-1])


def _vjp(g: Any, y: Any, x: Any, size: Counts, strides: Counts, dilation: Counts) -> Any:
    total: Any = None
    for tap in np.ndindex(*size):
        part = slice_(g, index=_tap_of(tap))
        place = at_tap_gradient(part, x.shape, tap, strides, dilation)
        total = place if total is None else add(total, place)
    return total


def _tap_of(tap: Counts) -> tuple[Any, ...]:
    whole = ("slice", None, None, 1)
    return (whole, *[whole] * len(tap), *(("int", k) for k in tap), whole)


def at_tap_gradient(g: Any, shape: Shape, tap: Counts, strides: Counts, dilation: Counts) -> Any:
    """The transpose of `at_tap`: zeros of a shape with g where a tap of the windows lies."""
    index: list[Any] = [("slice", 0, shape[0], 1)]
    for k, count, stride, apart in zip(tap, g.shape[1:-1], strides, dilation, strict=True):
        start = k * apart
        index.append(("slice", start, (count - 1) * stride + (start + 1), stride))
    return unslice(g, index=(*index, ("slice", 0, shape[-1], 1)), shape=shape)


def _stacked(call: StackedCall) -> Any:
    """The images of all models one after the other."""
    (x,) = call.operands
    found = call.again([reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))])
    return reshape(found, (*x.shape[:2], *found.shape[1:]))


def _reference(x: Array, size: Counts, strides: Counts, dilation: Counts) -> Array:
    counts = [
        len(range(0, n - (k - 1) * d, s))
        for n, k, s, d in zip(x.shape[1:-1], size, strides, dilation, strict=True)
    ]
    out = np.empty((x.shape[0], *counts, *size, x.shape[-1]))
    for place in np.ndindex(*counts):
        for tap in np.ndindex(*size):
            at = tuple(
                p * s + k * d for p, s, k, d in zip(place, strides, tap, dilation, strict=True)
            )
            out[(slice(None), *place, *tap)] = x[(slice(None), *at)]
    return out


windows = Op(
    name="_windows",
    args=("x",),
    formula="x [n, *places, c] as [n, *windows, *size, c]: the places of each window",
    kind=OpKind.MOVEMENT,
    stacked=_stacked,
    shapes=_shapes,
    dtypes=first_dtype,
    numpy=view,
    vjp=_vjp,
    reference=_reference,
    samples=lambda draw: [
        Sample((draw(2, 7, 3),), {"size": (3,), "strides": (2,), "dilation": (1,)}),
        Sample((draw(2, 5, 6, 3),), {"size": (3, 2), "strides": (1, 2), "dilation": (1, 2)}),
    ],
    attributes={"size": REQUIRED, "strides": REQUIRED, "dilation": REQUIRED},
)
