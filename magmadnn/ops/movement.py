"""Movements: every element of the result is an element of an operand, or a constant.

Shapes change; values do not. Shapes may hold symbolic dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Dim, Shape, Size, divide, product
from magmadnn.graph.op import REQUIRED, Array, Draw, Op, OpKind, Sample, promote
from magmadnn.graph.operators import public
from magmadnn.graph.signature import Attributes, OpWords, axis_number, broadcast, shape_text
from magmadnn.graph.spec import Spec


def _first_dtype(words: OpWords, dtypes: Sequence[Any], attributes: Attributes) -> Any:
    return dtypes[0]


def _as_shape(words: OpWords, shape: Any) -> Shape:
    """A shape from a tuple, a list or one size."""
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    for size in sizes:
        if not isinstance(size, Dim) and (isinstance(size, bool) or not hasattr(size, "__index__")):
            raise ShapeError(f"{words.name}: a shape holds integers, got {size!r} in {shape!r}")
    return tuple(s if isinstance(s, Dim) else int(s) for s in sizes)


def _movement(**record: Any) -> Op:
    return Op(kind=OpKind.MOVEMENT, **{"dtypes": _first_dtype, **record})


# --- reshape --------------------------------------------------------------------------------------


def _reshape_canonical(words: OpWords, specs: Sequence[Spec], shape: Any) -> dict[str, Any]:
    sizes = _as_shape(words, shape)
    free = [i for i, s in enumerate(sizes) if s == -1]
    total = product(specs[0].shape)
    if len(free) > 1 or any(isinstance(s, int) and s < -1 for s in sizes):
        raise ShapeError(f"reshape: {shape_text(sizes)} may hold one -1 and no other negative size")
    if free:
        try:
            missing = divide(total, product([s for s in sizes if s != -1]))
        except ShapeError:
            missing = -1
        sizes = tuple(missing if s == -1 else s for s in sizes)
    if product(sizes) != total or -1 in sizes:
        raise ShapeError(
            f"reshape: x {shape_text(specs[0].shape)} has {total} elements, "
            f"which do not fit into {shape_text(_as_shape(words, shape))}"
        )
    return {"shape": sizes}


reshape = _movement(
    name="reshape",
    args=("x",),
    formula="x's elements in row-major order, in another shape; one size may be -1",
    shapes=lambda words, specs, attributes: attributes["shape"],
    numpy=lambda x, shape: x.reshape(shape),
    vjp=lambda g, y, x, shape: reshape(g, x.shape),
    reference=lambda x, shape: np.array(list(x.flat)).reshape(shape),
    samples=lambda draw: [
        Sample((draw(6, 5),), {"shape": (3, 10)}),
        Sample((draw(2, 3, 5),), {"shape": (-1, 5)}),
        Sample((draw(1),), {"shape": ()}),
    ],
    attributes={"shape": REQUIRED},
    canonical=_reshape_canonical,
)


@public
def flatten(x: Any) -> Any:
    """X [n, ...] -> [n, everything else]."""
    rest = product(x.shape[1:]) if len(x.shape) else 1
    return reshape(x, (x.shape[0] if len(x.shape) else 1, rest))


# --- axes -----------------------------------------------------------------------------------------


def _transpose_canonical(words: OpWords, specs: Sequence[Spec], axes: Any) -> dict[str, Any]:
    ndim = specs[0].ndim
    if axes is None:
        return {"axes": tuple(reversed(range(ndim)))}
    order = tuple(axis_number(words, a, ndim) for a in axes)
    if sorted(order) != list(range(ndim)):
        raise ShapeError(f"transpose: axes {tuple(axes)} do not name each of {ndim} axes once")
    return {"axes": order}


def _transpose_vjp(g: Any, y: Any, x: Any, axes: tuple[int, ...]) -> Any:
    return transpose(g, tuple(axes.index(i) for i in range(len(axes))))


transpose = _movement(
    name="transpose",
    args=("x",),
    formula="x with its axes in another order; all reversed where no order is given",
    shapes=lambda words, specs, attributes: tuple(specs[0].shape[a] for a in attributes["axes"]),
    numpy=lambda x, axes: x.transpose(axes),
    vjp=_transpose_vjp,
    reference=lambda x, axes=None: np.moveaxis(
        x, range(x.ndim)[::-1] if axes is None else axes, range(x.ndim)
    ),
    samples=lambda draw: [
        Sample((draw(5, 7),)),
        Sample((draw(2, 3, 5),), {"axes": (1, 2, 0)}),
        Sample((draw(2, 3, 5),), {"axes": (0, -1, 1)}),
    ],
    attributes={"axes": None},
    canonical=_transpose_canonical,
)


def _ndim(x: Any) -> int:
    return len(x.shape) if hasattr(x, "shape") else np.ndim(x)


@public
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """X with two axes exchanged."""
    order = list(range(_ndim(x)))
    words = OpWords("swapaxes", ("x",), "")
    a, b = (axis_number(words, axis, len(order)) for axis in (axis1, axis2))
    order[a], order[b] = order[b], order[a]
    return transpose(x, tuple(order))


@public
def moveaxis(x: Any, source: int, destination: int) -> Any:
    """X with one axis moved to another place, the others in their order."""
    words = OpWords("moveaxis", ("x",), "")
    a, b = (axis_number(words, axis, _ndim(x)) for axis in (source, destination))
    order = [i for i in range(_ndim(x)) if i != a]
    order.insert(b, a)
    return transpose(x, tuple(order))


@public
def expand_dims(x: Any, axis: int = 0) -> Any:
    """X with a new axis of size 1 at `axis` of the result."""
    shape = list(x.shape if hasattr(x, "shape") else np.shape(x))
    at = axis_number(OpWords("expand_dims", ("x",), ""), axis, len(shape) + 1)
    shape.insert(at, 1)
    return reshape(x, tuple(shape))


@public
def squeeze(x: Any, axis: Any = None) -> Any:
    """X without its axes of size 1, or without those that `axis` names.

    Raises:
        ShapeError: if a named axis is longer than 1.
    """
    shape = x.shape if hasattr(x, "shape") else np.shape(x)
    words = OpWords("squeeze", ("x",), "")
    if axis is None:
        axes = {i for i, size in enumerate(shape) if size == 1}
    else:
        axes = {
            axis_number(words, a, len(shape))
            for a in (axis if isinstance(axis, tuple) else (axis,))
        }
    for a in axes:
        if shape[a] != 1:
            raise ShapeError(
                f"squeeze: axis {a} of x {shape_text(tuple(shape))} is {shape[a]}, expected 1"
            )
    return reshape(x, tuple(size for i, size in enumerate(shape) if i not in axes))


# --- broadcasting ---------------------------------------------------------------------------------


def _broadcast_canonical(words: OpWords, specs: Sequence[Spec], shape: Any) -> dict[str, Any]:
    sizes = _as_shape(words, shape)
    target = Spec(sizes, specs[0].dtype)
    both = broadcast(
        OpWords("broadcast_to", ("x", "shape"), ""),
        [specs[0], target],
        [(0, specs[0].shape), (1, sizes)],
    )
    if both != sizes:
        raise ShapeError(
            f"broadcast_to: x {shape_text(specs[0].shape)} does not broadcast to {shape_text(sizes)}"
        )
    return {"shape": sizes}


broadcast_to = _movement(
    name="broadcast_to",
    args=("x",),
    formula="x repeated along new axes and axes of size 1, to a shape",
    shapes=lambda words, specs, attributes: attributes["shape"],
    numpy=lambda x, shape: np.broadcast_to(x, shape),
    vjp=lambda g, y, x, shape: g,  # the sweep sums over what was repeated
    reference=lambda x, shape: x * np.ones(shape),
    samples=lambda draw: [
        Sample((draw(5, 1),), {"shape": (3, 5, 7)}),
        Sample((draw(7),), {"shape": (2, 7)}),
    ],
    attributes={"shape": REQUIRED},
    canonical=_broadcast_canonical,
)


@public
def expand(x: Any, shape: Any) -> Any:
    """The same as `broadcast_to`."""
    return broadcast_to(x, shape)


@public
def tile(x: Any, repeats: Sequence[int]) -> Any:
    """X repeated `repeats[i]` times along axis i; one number for each axis."""
    shape = tuple(x.shape) if hasattr(x, "shape") else np.shape(x)
    if len(repeats) != len(shape):
        raise ShapeError(f"tile: x has {len(shape)} axes, got {len(repeats)} repeats")
    paired = [size for r, n in zip(repeats, shape, strict=True) for size in (r, n)]
    single = [size for n in shape for size in (1, n)]
    copies = broadcast_to(reshape(x, tuple(single)), tuple(paired))
    return reshape(copies, tuple(r * n for r, n in zip(repeats, shape, strict=True)))


# --- joining --------------------------------------------------------------------------------------


def _concat_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    axis = attributes["axis"]
    first = specs[0].shape
    total: Size = 0
    for number, spec in enumerate(specs):
        others = [(a, s) for a, s in enumerate(spec.shape) if a != axis]
        if spec.ndim != len(first):
            raise ShapeError(f"concat: all operands need {len(first)} axes: {words.shapes(specs)}")
        for a, size in others:
            if size != first[a]:
                raise ShapeError(
                    f"concat: axis {a} is {first[a]} in {words.operand(0)} but {size} in "
                    f"{words.operand(number)}; only axis {axis} may differ: {words.shapes(specs)}"
                )
        total = spec.shape[axis] + total
    return (*first[:axis], total, *first[axis + 1 :])


def _concat_vjp(g: Any, y: Any, *xs: Any, axis: int) -> tuple[Any, ...]:
    parts = []
    start: Size = 0
    for x in xs:
        stop = x.shape[axis] + start
        index = [("slice", None, None, 1)] * x.ndim
        index[axis] = ("slice", start, stop, 1)
        parts.append(_slice(g, index=tuple(index)))
        start = stop
    return tuple(parts)


def _concat_reference(*xs: Array, axis: int = 0) -> Array:
    out = np.empty(
        [
            sum(x.shape[a] for x in xs) if a == axis % xs[0].ndim else n
            for a, n in enumerate(xs[0].shape)
        ]
    )
    start = 0
    for x in xs:
        np.moveaxis(out, axis, 0)[start : start + x.shape[axis]] = np.moveaxis(x, axis, 0)
        start += x.shape[axis]
    return out


concat = _movement(
    name="concat",
    args=("*xs",),
    formula="the list xs, one after the other along an axis",
    shapes=_concat_shapes,
    dtypes=promote,
    numpy=lambda *xs, axis: np.concatenate(xs, axis=axis),
    vjp=_concat_vjp,
    reference=_concat_reference,
    samples=lambda draw: [
        Sample((draw(2, 5), draw(3, 5), draw(1, 5))),
        Sample((draw(2, 5), draw(2, 3)), {"axis": -1}),
        Sample((draw(5),)),
    ],
    attributes={"axis": 0},
    canonical=lambda words, specs, axis: {"axis": axis_number(words, axis, specs[0].ndim)},
)


@public
def stack(xs: Sequence[Any], axis: int = 0) -> Any:
    """The list xs, which all have one shape, along a new axis."""
    shapes = {tuple(x.shape) if hasattr(x, "shape") else np.shape(x) for x in xs}
    if len(shapes) != 1:
        raise ShapeError(f"stack: all operands need one shape, got {len(shapes)} different ones")
    return concat([expand_dims(x, axis) for x in xs], axis=axis)


@public
def split(x: Any, parts: int, axis: int = 0) -> list[Any]:
    """X cut into equal parts along an axis.

    Raises:
        ShapeError: if the axis does not divide into so many parts.
    """
    words = OpWords("split", ("x",), "")
    axis = axis_number(words, axis, _ndim(x))
    size = divide(x.shape[axis], parts)
    pieces = []
    for k in range(parts):
        index: list[Any] = [("slice", None, None, 1)] * _ndim(x)
        index[axis] = ("slice", size * k, size * (k + 1), 1)
        pieces.append(_slice(x, index=tuple(index)))
    return pieces


# --- slicing --------------------------------------------------------------------------------------
# An index is a tuple with one entry for each axis of x: ("slice", start, stop, step) or ("int", i).


def _slice_canonical(words: OpWords, specs: Sequence[Spec], index: Any) -> dict[str, Any]:
    entries = list(index) + [("slice", None, None, 1)] * (specs[0].ndim - len(index))
    return {
        "index": tuple(
            _settle_entry(words, axis, entry, size)
            for axis, (entry, size) in enumerate(zip(entries, specs[0].shape, strict=True))
        )
    }


def _settle_entry(words: OpWords, axis: int, entry: Any, size: Size) -> tuple[Any, ...]:
    """An entry with start and stop counted from the front, where the axis has a known size."""
    if entry[0] == "int":
        if isinstance(size, int) and not -size <= entry[1] < size:
            raise ShapeError(
                f"{words.name}: index {entry[1]} is outside axis {axis} of size {size}; "
                f"use {-size} to {size - 1}"
            )
        return ("int", entry[1] % size if isinstance(size, int) else entry[1])
    _, start, stop, step = entry
    if isinstance(size, int) and not isinstance(start, Dim) and not isinstance(stop, Dim):
        start, stop, step = slice(start, stop, step).indices(size)
        # stepping down to the front ends at -1, which a slice would read as the last element
        return ("slice", start, None if stop < 0 else stop, step)
    return ("slice", start, stop, step)


def _entry_size(words: OpWords, axis: int, entry: Any, size: Size) -> Size:
    _, start, stop, step = entry
    if (start, stop) == (None, None) and step in (1, -1):
        return size
    if isinstance(size, int) and not isinstance(start, Dim) and not isinstance(stop, Dim):
        return len(range(*slice(start, stop, step).indices(size)))
    if step != 1:
        raise ShapeError(f"{words.name}: axis {axis} has the unknown size {size}; use a step of 1")
    first = 0 if start is None else start
    last = size if stop is None else stop
    first = size + first if isinstance(first, int) and first < 0 else first
    last = size + last if isinstance(last, int) and last < 0 else last
    if isinstance(last, int) and stop is not None and isinstance(size, Dim):
        raise ShapeError(
            f"{words.name}: axis {axis} has the unknown size {size}, so it cannot end at {stop}; "
            "end it with a negative number or not at all"
        )
    return last - first


def _slice_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    return tuple(
        _entry_size(words, axis, entry, size)
        for axis, (entry, size) in enumerate(zip(attributes["index"], specs[0].shape, strict=True))
        if entry[0] == "slice"
    )


def _numpy_index(index: Any) -> tuple[Any, ...]:
    return tuple(e[1] if e[0] == "int" else slice(*e[1:]) for e in index)


def _slice_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7),), {"index": (("slice", 1, 4, 1), ("slice", None, None, 2))})
    yield Sample((draw(5, 7),), {"index": (("int", -2),)})
    yield Sample((draw(3, 5, 2),), {"index": (("slice", None, None, -1), ("int", 1))})
    yield Sample((draw(7),), {"index": (("slice", 5, 1, -2),)})


def _slice_reference(x: Array, index: Any) -> Array:
    for axis in reversed(range(len(index))):
        entry = index[axis]
        if entry[0] == "int":
            x = np.take(x, entry[1], axis)
        else:
            x = np.take(x, list(range(x.shape[axis]))[slice(*entry[1:])], axis)
    return x


_slice = _movement(
    name="_slice",
    args=("x",),
    formula="x[index], for integers and slices",
    shapes=_slice_shapes,
    numpy=lambda x, index: x[_numpy_index(index)],
    vjp=lambda g, y, x, index: _unslice(g, index=index, shape=x.shape),
    reference=_slice_reference,
    samples=_slice_samples,
    attributes={"index": ()},
    canonical=_slice_canonical,
)


def _unslice_numpy(g: Array, index: Any, shape: tuple[int, ...]) -> Array:
    out = np.zeros(shape, g.dtype)
    out[_numpy_index(index)] = g
    return out


def _unslice_reference(g: Array, index: Any, shape: tuple[int, ...]) -> Array:
    where = _slice_reference(np.arange(np.prod(shape)).reshape(shape), index)
    flat = np.zeros(int(np.prod(shape)))
    for place, value in zip(where.flat, g.flat, strict=True):
        flat[int(place)] = value
    return flat.reshape(shape)


_unslice = _movement(
    name="_unslice",
    args=("g",),
    formula="zeros of a shape, with g at index: the transpose of slicing",
    shapes=lambda words, specs, attributes: attributes["shape"],
    numpy=_unslice_numpy,
    vjp=lambda g, y, x, index, shape: _slice(g, index=index),
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
def getitem(x: Any, index: Any) -> Any:
    """`x[index]` for integers, slices, `None`, `...` and integer arrays (along the first axis).

    Masks make shapes that depend on data; take them of a Tensor, or use `where`.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    if len(entries) == 1 and (hasattr(entries[0], "dtype") or isinstance(entries[0], list)):
        from .indexing import take

        return take(
            x, entries[0] if hasattr(entries[0], "dtype") else np.asarray(entries[0]), axis=0
        )
    used = sum(e is not None and e is not ... for e in entries)
    if used > _ndim(x):
        raise ShapeError(f"getitem: {used} indices for x, which has {_ndim(x)} axes")
    fill = [slice(None)] * (_ndim(x) - used)
    at = next((k for k, e in enumerate(entries) if e is ...), len(entries))
    entries = entries[:at] + fill + entries[at + 1 :]
    y = _slice(x, index=tuple(_entry(e) for e in entries if e is not None))
    result_axis = 0
    for entry in entries:
        if entry is None:
            y = expand_dims(y, result_axis)
        result_axis += 0 if entry is not None and not isinstance(entry, slice) else 1
    return y


def _entry(item: Any) -> tuple[Any, ...]:
    if isinstance(item, slice):
        if item.step == 0:
            raise ArgumentError("getitem: the step of a slice must not be 0")
        return ("slice", item.start, item.stop, 1 if item.step is None else item.step)
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        raise ArgumentError(
            f"getitem: an index is an integer, a slice, None or ..., got {item!r}; "
            "masks are taken of a Tensor, or written with where"
        )
    return ("int", int(item))


@public
def flip(x: Any, axis: int) -> Any:
    """X in reverse order along an axis."""
    index: list[Any] = [("slice", None, None, 1)] * _ndim(x)
    index[axis_number(OpWords("flip", ("x",), ""), axis, _ndim(x))] = ("slice", None, None, -1)
    return _slice(x, index=tuple(index))


# --- padding --------------------------------------------------------------------------------------


def _pad_canonical(
    words: OpWords, specs: Sequence[Spec], widths: Any, value: float
) -> dict[str, Any]:
    pairs = tuple((int(a), int(b)) for a, b in widths)
    if len(pairs) != specs[0].ndim or any(w < 0 for pair in pairs for w in pair):
        raise ShapeError(
            f"pad: widths need a pair of sizes from 0 for each of {specs[0].ndim} axes, got {widths}"
        )
    return {"widths": pairs, "value": value}


def _pad_vjp(g: Any, y: Any, x: Any, widths: Any, value: float) -> Any:
    index = tuple(
        ("slice", before, n + before, 1) for (before, _), n in zip(widths, x.shape, strict=True)
    )
    return _slice(g, index=index)


def _pad_reference(x: Array, widths: Any, value: float = 0.0) -> Array:
    out = np.full([n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)], float(value))
    out[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, widths, strict=True))] = x
    return out


pad = _movement(
    name="pad",
    args=("x",),
    formula="x with constant values around it; widths hold (before, after) for each axis",
    shapes=lambda words, specs, attributes: tuple(
        n + (a + b) for n, (a, b) in zip(specs[0].shape, attributes["widths"], strict=True)
    ),
    numpy=lambda x, widths, value: np.pad(x, widths, constant_values=value),
    vjp=_pad_vjp,
    reference=_pad_reference,
    samples=lambda draw: [
        Sample((draw(3, 5),), {"widths": ((1, 2), (0, 3))}),
        Sample((draw(5),), {"widths": ((2, 0),), "value": 1.5}),
    ],
    attributes={"widths": REQUIRED, "value": 0},
    canonical=_pad_canonical,
)
