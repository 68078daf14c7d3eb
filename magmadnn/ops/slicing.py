"""Slices and paddings: parts of a value, or a value as a part of a larger one.

An index is a tuple with one entry for each axis: `("int", i)` drops the axis, `("slice", start, stop, step)`
keeps it. Both count from the front once they are settled. `x[...]` itself stands in `indexing.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from magmadnn.errors import ArgumentError, IndexOutOfRangeError, ShapeError, quoted
from magmadnn.graph.dim import Dim, Shape, Size, divide
from magmadnn.graph.node import Node
from magmadnn.graph.op import REQUIRED, Array, Draw, Op, OpKind, Sample
from magmadnn.graph.operators import public
from magmadnn.graph.placing.axes import Axes
from magmadnn.graph.signature import (
    Attributes,
    OpWords,
    axes_text,
    axis_number,
    is_integer,
    shape_text,
)
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import StackedCall
from magmadnn.memory.dtypes import is_complex, is_floating

from ._arguments import first_dtype, ndim_of, shape_of, words_of
from ._pointwise import drop_unchanged

Entry = tuple[Any, ...]
Box = tuple[Array, Any]  # a part of a result, and what it is: see `Op.boxes`
WHOLE: Entry = ("slice", None, None, 1)


def along(ndim: int, axis: int, entry: Entry) -> tuple[Entry, ...]:
    """The index that takes `entry` along one axis and everything along the others."""
    return (*[WHOLE] * axis, entry, *[WHOLE] * (ndim - axis - 1))


# --- slicing --------------------------------------------------------------------------------------


def _slice_canonical(words: OpWords, specs: Sequence[Spec], index: Any) -> dict[str, Any]:
    shape = specs[0].shape
    entries = [*index, *[WHOLE] * (len(shape) - len(index))]
    return {
        "index": tuple(
            _settled(words, axis, entry, size)
            for axis, (entry, size) in enumerate(zip(entries, shape, strict=True))
        )
    }


def _settled(words: OpWords, axis: int, entry: Entry, size: Size) -> Entry:
    """An entry that counts from the front; on an axis of unknown size as far as that is possible."""
    if not _is_entry(entry):
        raise ArgumentError(f"{words.name}: {quoted(entry)} is no index of axis {axis}")
    if entry[0] == "int":
        _check_place(words, axis, entry[1], size)
        return ("int", _from_front(entry[1], size))
    _, start, stop, step = entry
    if isinstance(size, Dim) or isinstance(start, Dim) or isinstance(stop, Dim):
        return ("slice", _from_front(start, size), _from_front(stop, size), step)
    places = range(*slice(start, stop, step).indices(size))
    if not places:
        return ("slice", 0, 0, 1)
    # stepping down to the front ends at -1, which a slice would read as the last element
    return ("slice", places.start, None if places.stop < 0 else places.stop, step)


def _is_entry(entry: object) -> bool:
    """Whether it is ("int", place) or ("slice", start, stop, step); graphs in files may hold anything."""
    if not isinstance(entry, (tuple, list)) or len(entry) < 2:
        return False
    kind, *places = entry
    if kind == "int" and len(places) == 1:
        return is_integer(places[0]) or isinstance(places[0], Dim)
    ends = all(one is None or is_integer(one) or isinstance(one, Dim) for one in places[:2])
    return (
        kind == "slice" and len(places) == 3 and ends and is_integer(places[2]) and places[2] != 0
    )


def _from_front(place: Any, size: Size) -> Any:
    return size + place if isinstance(place, int) and place < 0 else place


def _check_place(words: OpWords, axis: int, place: Any, size: Size) -> None:
    if isinstance(size, int) and isinstance(place, int) and not -size <= place < size:
        use = f"use {-size} to {size - 1}" if size else "the axis is empty"
        raise IndexOutOfRangeError(
            f"{words.name}: index {place} is outside axis {axis} of size {size}; {use}"
        )


def _slice_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    shape: list[Size] = []
    for axis, (entry, size) in enumerate(zip(attributes["index"], specs[0].shape, strict=True)):
        if entry[0] == "int":
            _check_place(words, axis, entry[1], size)
        else:
            shape.append(_length(words, axis, entry, size))
    return tuple(shape)


def _length(words: OpWords, axis: int, entry: Entry, size: Size) -> Size:
    """How many places an entry takes."""
    _, start, stop, step = entry
    if (start, stop) == (None, None) and step in (1, -1):
        return size
    first, last = 0 if start is None else start, size if stop is None else stop
    if isinstance(size, int) and isinstance(first, int) and isinstance(last, int):
        return len(range(*slice(start, stop, step).indices(size)))
    if step < 0 and (start, stop) != (None, None):
        raise ShapeError(
            f"{words.name}: axis {axis} has the unknown size {size}, so a step of {step} must take all "
            "of it; slice first, and reverse the result with [::-1]"
        )
    rest = size - last
    if isinstance(last, int) and isinstance(rest, Dim) and not rest.never_negative:
        raise ShapeError(
            f"{words.name}: axis {axis} has the unknown size {size}, so it cannot end at {stop}; "
            "end it with a negative number or not at all"
        )
    length: Size = last - first
    whole = max(length, 0) if isinstance(length, int) else length
    found: Size = (whole + (abs(step) - 1)) // abs(step)
    return found


def _numpy_index(index: Sequence[Entry]) -> tuple[Any, ...]:
    return tuple(e[1] if e[0] == "int" else slice(*e[1:]) for e in index)


def _check_places(index: Sequence[Entry], shape: Shape) -> None:
    """Look whether places lie on axes that were of unknown size."""
    for axis, entry in enumerate(index):
        if entry[0] == "int":
            _check_place(words_of("slice"), axis, entry[1], shape[axis])


def _slice_numpy(x: Array, index: Sequence[Entry]) -> Array:
    _check_places(index, x.shape)
    found: Array = x[_numpy_index(index)]
    return np.asarray(found) if isinstance(found, np.generic) else found


def _slice_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7),), {"index": (("slice", 1, 4, 1), ("slice", None, None, 2))})
    yield Sample((draw(5, 7),), {"index": (("int", -2),)})
    yield Sample((draw(3, 5, 2),), {"index": (("slice", None, None, -1), ("int", 1))})
    yield Sample((draw(7),), {"index": (("slice", 5, 1, -2),)})
    yield Sample((draw(7),), {"index": (("slice", -10, None, -1),)})


def _slice_reference(x: Array, index: Any) -> Array:
    for axis in reversed(range(len(index))):
        entry = index[axis]
        if entry[0] == "int":
            x = np.take(x, entry[1], axis)
        else:
            x = np.take(x, np.arange(x.shape[axis])[slice(*entry[1:])], axis)
    return x


def _drop_whole(node: Node) -> Node | None:
    whole = all(entry[0] == "slice" and entry[3] == 1 for entry in node.attributes["index"])
    return drop_unchanged(node) if whole else None


def _whole_names(index: Sequence[Any], shape: Shape) -> list[Any]:
    """Names of the axes that are taken whole; None for the others."""
    return [
        axis if entry[0] == "slice" and entry[1:] in ((0, n, 1), (0, None, 1)) else None
        for axis, (entry, n) in enumerate(zip(index, shape, strict=True))
    ]


def _slice_axes(specs: Sequence[Spec], attributes: Attributes) -> Axes:
    index = attributes["index"]
    names = _whole_names(index, specs[0].shape)
    kept = [axis for axis, entry in enumerate(index) if entry[0] != "int"]

    def local(given: Attributes, axis: int, size: Size) -> Attributes:
        part = list(index)
        part[kept[axis]] = ("slice", 0, size, 1)
        return {**given, "index": tuple(part)}

    return Axes((tuple(names),), tuple(names[a] for a in kept), local=local)


def _unslice_axes(specs: Sequence[Spec], attributes: Attributes) -> Axes:
    index, shape = attributes["index"], attributes["shape"]
    names = _whole_names(index, shape)
    kept = [axis for axis, entry in enumerate(index) if entry[0] != "int"]

    def local(given: Attributes, axis: int, size: Size) -> Attributes:
        part = list(index)
        part[axis] = ("slice", 0, size, 1)
        return {**given, "index": tuple(part)}

    return Axes((tuple(names[a] for a in kept),), tuple(names), sized="shape", local=local)


slice_: Op = Op(
    name="_slice",
    args=("x",),
    formula="x[index], for integers and slices",
    kind=OpKind.MOVEMENT,
    shapes=_slice_shapes,
    dtypes=first_dtype,
    numpy=_slice_numpy,
    vjp=lambda g, y, x, index: unslice(g, index=index, shape=x.shape),
    reference=_slice_reference,
    samples=_slice_samples,
    attributes={"index": ()},
    axes=_slice_axes,
    canonical=_slice_canonical,
    stacked=lambda call: call.again(call.operands, index=(WHOLE, *call.attributes["index"])),
    rewrites=(_drop_whole,),
)


def _unslice_numpy(g: Array, index: Any, shape: tuple[int, ...]) -> Array:
    _check_places(index, shape)
    out = np.zeros_like(g, shape=shape)
    out[_numpy_index(index)] = g
    return out


def _embedded(result: Array, index: Sequence[slice], inner: Array, value: float) -> Iterator[Box]:
    """The boxes of a result that is `value` but for `inner` at `index`, one slice for each axis.

    Along each axis in turn: what lies before, after and between the places of the index, as far as the axes
    before are inside.
    """
    inside = result
    for axis, places in enumerate(index):
        numbers = range(*places.indices(result.shape[axis]))
        if not numbers:
            yield inside, value
            return
        if numbers.step < 0:
            numbers, inner = numbers[::-1], np.flip(inner, axis)
        before = (slice(None),) * axis
        yield inside[(*before, slice(0, numbers.start))], value
        yield inside[(*before, slice(numbers[-1] + 1, None))], value
        if numbers.step > 1 and len(numbers) > 1:
            yield _between(inside, axis, numbers), value
        inside = inside[(*before, slice(numbers.start, numbers[-1] + 1, numbers.step))]
    yield inside, (0, inner)


def _between(x: Array, axis: int, numbers: range) -> Array:
    """A view of what lies between places of an axis, which becomes two: gaps, and places in a gap."""
    at = x[(slice(None),) * axis + (slice(numbers.start + 1, None),)]
    shape = (*x.shape[:axis], len(numbers) - 1, numbers.step - 1, *x.shape[axis + 1 :])
    stride = x.strides[axis]
    strides = (*x.strides[:axis], stride * numbers.step, stride, *x.strides[axis + 1 :])
    return as_strided(at, shape, strides)


def _unslice_boxes(result: Array, g: Array, index: Any, shape: tuple[int, ...]) -> Iterator[Box]:
    _check_places(index, result.shape)
    slices = [slice(e[1], e[1] + 1) if e[0] == "int" else slice(*e[1:]) for e in index]
    inner = g[(*(None if entry[0] == "int" else slice(None) for entry in index), ...)]
    return _embedded(result, slices, inner, 0)


def _unslice_stacked(call: StackedCall) -> Any:
    index, shape = call.attributes["index"], call.attributes["shape"]
    first: Entry = ("slice", 0, call.count, 1)
    return call.again(call.operands, index=(first, *index), shape=(call.count, *shape))


def _unslice_reference(g: Array, index: Any, shape: tuple[int, ...]) -> Array:
    places = _slice_reference(np.arange(np.prod(shape)).reshape(shape), index)
    flat = np.zeros(int(np.prod(shape)))
    for place, value in zip(places.flat, g.flat, strict=True):
        flat[int(place)] = value
    return flat.reshape(shape)


unslice: Op = Op(
    name="_unslice",
    args=("g",),
    formula="zeros of a shape, with g at index: the transpose of slicing",
    kind=OpKind.MOVEMENT,
    shapes=lambda words, specs, attributes: attributes["shape"],
    dtypes=first_dtype,
    numpy=_unslice_numpy,
    vjp=lambda g, y, x, index, shape: slice_(g, index=index),
    axes=_unslice_axes,
    rewrites=(_drop_whole,),
    boxes=_unslice_boxes,
    stacked=_unslice_stacked,
    reference=_unslice_reference,
    samples=lambda draw: [
        Sample((draw(3, 4),), {
            "index": (("slice", 1, 4, 1), ("slice", 0, 7, 2)), "shape": (5, 7),
        }),
        Sample((draw(7),), {"index": (("int", 3), ("slice", 0, 7, 1)), "shape": (5, 7)}),
    ],
    attributes={"index": (), "shape": REQUIRED},
)  # fmt: skip


@public
def flip(x: Any, axis: int) -> Any:
    """`x` in reverse order along an axis."""
    ndim = ndim_of(x)
    at = axis_number(words_of("flip"), axis, ndim)
    return slice_(x, index=along(ndim, at, ("slice", None, None, -1)))


@public
def split(x: Any, parts: int, axis: int = 0) -> list[Any]:
    """`x` cut into equal parts along an axis.

    Raises:
        ShapeError: if the axis does not divide into so many parts.
    """
    shape = shape_of(x)
    at = axis_number(words_of("split"), axis, len(shape))
    if not is_integer(parts) or parts < 1:
        raise ArgumentError(f"split: parts must be an integer from 1, got {parts!r}")
    try:
        size = divide(shape[at], int(parts))
    except ShapeError as error:
        raise ShapeError(
            f"split: axis {at} of x {shape_text(shape)} does not divide into {parts} equal parts"
        ) from error
    return [
        slice_(x, index=along(len(shape), at, ("slice", size * k, size * (k + 1), 1)))
        for k in range(parts)
    ]


@public
def unstack(x: Any, axis: int = 0) -> list[Any]:
    """The slices of x along an axis, which disappears: what iterating over x gives.

    Raises:
        ShapeError: if the size of the axis is not known yet.
    """
    shape = shape_of(x)
    at = axis_number(words_of("unstack"), axis, len(shape))
    if isinstance(shape[at], Dim):
        raise ShapeError(
            f"unstack: axis {at} of x {shape_text(shape)} has no known size; compute with all of x at once"
        )
    return [slice_(x, index=along(len(shape), at, ("int", i))) for i in range(shape[at])]


# --- padding --------------------------------------------------------------------------------------


def _pad_canonical(
    words: OpWords, specs: Sequence[Spec], widths: Any, value: Any
) -> dict[str, Any]:
    ndim = specs[0].ndim
    pairs = list(widths) if isinstance(widths, (list, tuple)) else []
    whole = [
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and all(is_integer(w) and w >= 0 for w in pair)
        for pair in pairs
    ]
    if len(pairs) != ndim or not all(whole):
        raise ShapeError(
            f"pad: widths need a pair (before, after) of sizes from 0 for each of {axes_text(ndim)}, "
            f"got {widths}"
        )
    if not isinstance(value, (bool, int, float)):
        raise ArgumentError(f"pad: value must be a number, got {type(value).__name__}")
    if not _holds(specs[0].dtype, value):
        raise ArgumentError(f"pad: {value} is no value of {specs[0].dtype.name}; cast x")
    return {"widths": tuple((int(a), int(b)) for a, b in pairs), "value": value}


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether a dtype has this number; floats round it."""
    if is_floating(dtype) or is_complex(dtype):
        return isinstance(value, float) or abs(value) < 2**1023  # what Python can convert
    low, high = (0, 1) if dtype == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(low <= value <= high) and value == int(value)


def _pad_numpy(x: Array, widths: Any, value: Any) -> Array:
    shape = [n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)]
    number = float(value) if is_floating(x.dtype) else value  # ml_dtypes takes no large integers
    out = np.full_like(x, number, shape=shape)
    out[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, widths, strict=True))] = x
    return out


def _pad_vjp(g: Any, y: Any, x: Any, widths: Any, value: float) -> Any:
    index = tuple(
        ("slice", before, n + before, 1) for (before, _), n in zip(widths, x.shape, strict=True)
    )
    return slice_(g, index=index)


def _pad_boxes(result: Array, x: Array, widths: Any, value: float) -> Iterator[Box]:
    inside = [slice(before, before + n) for (before, _), n in zip(widths, x.shape, strict=True)]
    return _embedded(result, inside, x, float(value) if is_floating(x.dtype) else value)


def _pad_reference(x: Array, widths: Any, value: float = 0.0) -> Array:
    return np.pad(x, widths, constant_values=value) if widths else x


pad = Op(
    name="pad",
    args=("x",),
    formula="x with constant values around it; widths hold (before, after) for each axis",
    kind=OpKind.MOVEMENT,
    shapes=lambda words, specs, attributes: tuple(
        n + (a + b) for n, (a, b) in zip(specs[0].shape, attributes["widths"], strict=True)
    ),
    dtypes=first_dtype,
    numpy=_pad_numpy,
    vjp=_pad_vjp,
    boxes=_pad_boxes,
    reference=_pad_reference,
    samples=lambda draw: [
        Sample((draw(3, 5),), {"widths": ((1, 2), (0, 3))}),
        Sample((draw(5),), {"widths": ((2, 0),), "value": 1.5}),
    ],
    attributes={"widths": REQUIRED, "value": 0},
    canonical=_pad_canonical,
    stacked=lambda call: call.again(call.operands, widths=((0, 0), *call.attributes["widths"])),
    rewrites=(drop_unchanged,),
)
