"""Rows by number: x[...], take (gather, embedding), its transpose scatter_add, and one_hot."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, DataError, DTypeError, IndexOutOfRangeError, ShapeError
from magmadnn.graph.dim import Dim, Shape, Size, product
from magmadnn.graph.node import places
from magmadnn.graph.node import size as size_node
from magmadnn.graph.op import REQUIRED, Array, Draw, NoGradient, Op, OpKind, Sample, takes_complex
from magmadnn.graph.operators import public
from magmadnn.graph.placing.axes import Axes
from magmadnn.graph.signature import (
    Attributes,
    OpWords,
    axes_text,
    axis_number,
    broadcast,
    by_signature,
    is_integer,
    shape_text,
)
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import StackedCall, last_axes
from magmadnn.memory.dtypes import is_floating

from ._arguments import as_shape, dtype_attribute, dtype_of, ndim_of
from ._pointwise import widened
from .along_axes.reductions import sum
from .arithmetic import cast, equal, logical_or, where
from .movement import broadcast_to, expand_dims, moveaxis, reshape, transpose
from .slicing import WHOLE, Entry, slice_


def _need_integers(words: OpWords, number: int, dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iu":
        raise DTypeError(
            f"{words.name}: {words.operand(number)} are {dtype.name}, expected integers; cast them"
        )


def _check_range(name: str, indices: Array, count: int) -> None:
    """Every index lies in 0 ... count - 1 (negative ones are not taken: they hide mistakes)."""
    wrong = (indices < 0) | (indices >= count)
    if wrong.any():
        place = tuple(int(i[0]) for i in np.nonzero(wrong)) if indices.ndim else ()
        at = f" at {shape_text(place)}" if place else ""
        allowed = f"is outside 0 to {count - 1}" if count else "finds an empty axis"
        raise DataError(f"{name}: index {indices[place]}{at} {allowed}")


# --- take -----------------------------------------------------------------------------------------


def _take_dtype(words: OpWords, dtypes: Sequence[Any], attributes: Attributes) -> Any:
    _need_integers(words, 1, dtypes[1])
    return dtypes[0]


def _take_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    axis, shape = attributes["axis"], specs[0].shape
    return (*shape[:axis], *specs[1].shape, *shape[axis + 1 :])


def _take_numpy(x: Array, indices: Array, axis: int) -> Array:
    _check_range("take", indices, x.shape[axis])
    return np.take(x, indices, axis)


def _take_reference(x: Array, indices: Array, axis: int = 0) -> Array:
    rows = np.moveaxis(x, axis, 0)
    picked = np.array([rows[int(i)] for i in indices.flat])
    picked = picked.reshape((*indices.shape, *rows.shape[1:]))
    return np.moveaxis(picked, range(indices.ndim), range(axis, axis + indices.ndim))


def _take_stacked(call: StackedCall) -> Any:
    """Each model's own rows lie behind those of the models before it."""
    x, indices = call.operands
    axis: int = call.attributes["axis"]
    if not call.is_stacked[1]:
        return take(x, indices, axis=axis + 1)
    if not call.is_stacked[0]:
        return moveaxis(take(x, indices, axis=axis), axis, 0)
    rows = moveaxis(x, axis + 1, 1)  # [models, n, others]
    places = _places_of_models(indices, rows.shape[1])
    rows = reshape(rows, (call.count * rows.shape[1], *rows.shape[2:]))
    return _moved(take(rows, places, axis=0), 1, axis, indices.ndim - 1)


def _places_of_models(indices: Any, n: Any) -> Any:
    """Places in the rows of all models, [models, ...] of 0 ... n - 1; -1 for one that is outside."""
    count, own = indices.shape[0], cast(indices, np.int64)
    number = size_node(n, np.int64)
    before = reshape(np.arange(count) * number, (count, *(1,) * (indices.ndim - 1)))
    return where(logical_or(own < 0, own >= number), -1, own + before)


def _moved(x: Any, start: int, by: int, count: int) -> Any:
    """The axes from `start` on, `count` of them, moved `by` places to the back."""
    order = [k for k in range(x.ndim) if not start <= k < start + count]
    order[start + by : start + by] = range(start, start + count)
    return transpose(x, tuple(order))


def _take_axes(specs: Sequence[Spec], attributes: Attributes) -> Axes:
    """Rows of the result are those of indices; the axis that they number must be whole."""
    x, at = [("x", k) for k in range(specs[0].ndim)], attributes["axis"]
    rows = [("rows", k) for k in range(specs[1].ndim)]
    operand = tuple(None if k == at else name for k, name in enumerate(x))
    return Axes((operand, tuple(rows)), (*x[:at], *rows, *x[at + 1 :]))


def _scatter_axes(specs: Sequence[Spec], attributes: Attributes) -> Axes:
    """Slices that are added may be shared out."""
    at, count = attributes["axis"], specs[1].ndim
    others = [("x", k) for k in range(specs[0].ndim - count)]
    rows = [("rows", k) for k in range(count)]
    result = (*others[:at], None, *others[at:])
    return Axes(((*others[:at], *rows, *others[at:]), tuple(rows)), result, adds=True)


take: Op = Op(
    name="take",
    args=("x", "indices"),
    formula="the slices of x along an axis that indices name",
    kind=OpKind.GATHER,
    shapes=_take_shapes,
    dtypes=_take_dtype,
    numpy=_take_numpy,
    vjp=lambda g, y, x, indices, axis: (
        scatter_add(g, indices, axis=axis, count=x.shape[axis]), None
    ),
    reference=_take_reference,
    samples=lambda draw: [
        Sample((draw(5, 7), draw.integers(3, low=0, high=5))),
        Sample((draw(5, 7), draw.integers(2, 3, low=0, high=7)), {"axis": 1}),
        Sample((draw(5), draw.integers(low=0, high=5))),
    ],
    attributes={"axis": 0},
    axes=_take_axes,
    integers=("indices",),
    stacked=_take_stacked,
    canonical=lambda words, specs, axis: {"axis": axis_number(words, axis, specs[0].ndim)},
    notes="x [..., n, ...], indices [any] of 0 ... n - 1. An index outside is a DataError.",
)  # fmt: skip


def _scatter_canonical(
    words: OpWords, specs: Sequence[Spec], axis: Any, count: Any
) -> dict[str, Any]:
    ndim = specs[0].ndim - specs[1].ndim + 1
    if ndim < 1:
        raise ShapeError(
            f"{words.name}: x has {axes_text(specs[0].ndim)}, expected at least the "
            f"{axes_text(specs[1].ndim)} of indices: {words.shapes(specs)}"
        )
    (size,) = as_shape(words, (count,))
    return {"axis": axis_number(words, axis, ndim), "count": size}


def _scatter_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    axis, ndim = attributes["axis"], specs[1].ndim
    shape = specs[0].shape
    if shape[axis : axis + ndim] != specs[1].shape:
        raise ShapeError(
            f"{words.name}: x from axis {axis} on must have the axes of indices: {words.shapes(specs)}"
        )
    return (*shape[:axis], attributes["count"], *shape[axis + ndim :])


def _scatter_numpy(x: Array, indices: Array, axis: int, count: int) -> Array:
    _check_range("scatter_add", indices, count)
    rows = np.moveaxis(x, range(axis, axis + indices.ndim), range(indices.ndim))
    rows = widened(rows)  # half precision is summed in float32
    out = np.zeros_like(rows, shape=(count, *rows.shape[indices.ndim :]), order="C")
    np.add.at(out, indices, rows)
    return np.moveaxis(out, 0, axis)


def _scatter_reference(x: Array, indices: Array, axis: int = 0, count: int = 0) -> Array:
    hot = (indices.reshape(-1, 1) == np.arange(count)).astype(np.float64)
    flat = x.reshape(*x.shape[:axis], indices.size, *x.shape[axis + indices.ndim :])
    return np.moveaxis(np.tensordot(hot.T, np.moveaxis(flat, axis, 0), 1), 0, axis)


def _scatter_stacked(call: StackedCall) -> Any:
    """Each model's own slices lie behind those of the models before it."""
    indices, axis = call.operands[1], call.attributes["axis"]
    n: Any = call.attributes["count"]
    if not call.is_stacked[1]:
        return call.again(call.operands, axis=axis + 1)
    x, ndim = call.whole(0), indices.ndim - 1
    order = [0, *range(axis + 1, axis + 1 + ndim), *range(1, axis + 1)]
    x = transpose(x, (*order, *range(axis + 1 + ndim, x.ndim)))
    found = scatter_add(x, _places_of_models(indices, n), axis=0, count=call.count * n)
    return moveaxis(reshape(found, (call.count, n, *found.shape[1:])), 1, axis + 1)


scatter_add: Op = Op(
    name="scatter_add",
    args=("x", "indices"),
    formula="zeros with count slices along an axis, to which the slices of x are added where indices say",
    kind=OpKind.SCATTER,
    shapes=_scatter_shapes,
    dtypes=_take_dtype,
    numpy=_scatter_numpy,
    vjp=lambda g, y, x, indices, axis, count: (take(g, indices, axis=axis), None),
    reference=_scatter_reference,
    samples=lambda draw: [
        Sample((draw(4, 7), draw.integers(4, low=0, high=5)), {"count": 5}),
        Sample((draw(3, 2, 5), draw.integers(2, 5, low=0, high=7)), {"axis": 1, "count": 7}),
    ],
    attributes={"axis": 0, "count": REQUIRED},
    axes=_scatter_axes,
    integers=("indices",),
    canonical=_scatter_canonical,
    stacked=_scatter_stacked,
    notes="The transpose of take. Several slices for one place are added in order.",
)
takes_complex(scatter_add)


@public
def gather(x: Any, indices: Any, axis: int = 0) -> Any:
    """The same as `take`."""
    return take(x, indices, axis=axis)


@public
def embedding(indices: Any, table: Any) -> Any:
    """The rows of a table: indices [any] of 0 ... n - 1, table [n, d] -> [any, d]."""
    return take(table, indices, axis=0)


# --- one_hot --------------------------------------------------------------------------------------


def _one_hot_dtype(words: OpWords, dtypes: Sequence[Any], attributes: Attributes) -> Any:
    _need_integers(words, 0, dtypes[0])
    return attributes["dtype"]


def _one_hot_numpy(indices: Array, depth: int, dtype: Any) -> Array:
    _check_range("one_hot", indices, depth)
    return np.equal(indices[..., None], np.arange(depth)).astype(dtype)


def _one_hot_reference(indices: Array, depth: int = 0, dtype: Any = None) -> Array:
    return np.asarray(np.eye(depth)[indices.astype(int)])


def _one_hot_canonical(
    words: OpWords, specs: Sequence[Spec], depth: Any, dtype: Any
) -> dict[str, Any]:
    (size,) = as_shape(words, (depth,))
    return {"depth": size, "dtype": dtype_attribute(words, dtype)}


def _one_hot_samples(draw: Draw) -> list[Sample]:
    return [
        Sample((draw.integers(7, low=0, high=5),), {"depth": 5}),
        Sample((draw.integers(3, 2, low=0, high=3),), {"depth": 3, "dtype": "float64"}),
    ]


def _one_hot_nodes(indices: Any, depth: Any, dtype: Any) -> Any:
    """The same in other ops. Of real numbers an index outside gives NaN; of others `take` finds it.

    (A guarded run finds that NaN, and is repeated with NumPy, which says what is wrong.)
    """
    classes, end = _classes(depth)
    if not is_floating(dtype):
        known = take(classes, indices, axis=0)
        return cast(equal(expand_dims(known, -1), classes), dtype)
    rows = expand_dims(indices, -1)
    hot = cast(equal(rows, classes), dtype)
    return where(logical_or(rows < 0, rows >= end), np.nan, hot)


def _classes(count: Size) -> tuple[Any, Any]:
    """0 ... count - 1, and count, as operands."""
    if isinstance(count, Dim):
        return places(count), size_node(count, np.int64)
    return np.arange(count), count


one_hot = Op(
    name="one_hot",
    args=("indices",),
    formula="1 where the place along a new last axis equals the index, 0 elsewhere",
    kind=OpKind.OTHER,
    shapes=lambda words, specs, attributes: (*specs[0].shape, attributes["depth"]),
    dtypes=_one_hot_dtype,
    numpy=_one_hot_numpy,
    vjp=NoGradient("its operand is an integer"),
    reference=_one_hot_reference,
    samples=_one_hot_samples,
    attributes={"depth": REQUIRED, "dtype": "float32"},
    integers=("indices",),
    places=lambda indices, depth, dtype: depth,
    canonical=_one_hot_canonical,
    stacked=last_axes,
    decompose=_one_hot_nodes,
    any_size=True,
    notes="indices [any] of 0 ... depth - 1 -> [any, depth]. An index outside is a DataError.",
)


# --- take_class -----------------------------------------------------------------------------------


def _take_class_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    _ROWS(words, specs[:1], attributes)  # x has an axis of classes
    return broadcast(words, specs, [(0, specs[0].shape[:-1]), (1, specs[1].shape)])


_ROWS = by_signature("... k -> ...")


def _take_class_numpy(x: Array, classes: Array) -> Array:
    _check_range("take_class", classes, x.shape[-1])
    rows = np.broadcast_shapes(x.shape[:-1], classes.shape)
    x = np.broadcast_to(x, (*rows, x.shape[-1]))
    places = np.broadcast_to(classes, rows)[..., None]
    return np.asarray(np.take_along_axis(x, places, -1)[..., 0])


def _take_class_stacked(call: StackedCall) -> Any:
    ndim = max(call.ndim(0) - 1, call.ndim(1))
    return call.again([call.aligned(0, ndim + 1), call.aligned(1, ndim)])


def _take_class_nodes(x: Any, classes: Any) -> Any:
    """The same in other ops. Of real numbers a class outside gives NaN; of others `take` finds it.

    (A guarded run finds that NaN, and is repeated with NumPy, which says what is wrong.)
    """
    count = x.shape[-1]
    rows = _take_class_shapes(take_class.words, [x.spec, classes.spec], {})
    x, classes = broadcast_to(x, (*rows, count)), broadcast_to(classes, rows)
    numbers, end = _classes(count)
    if not is_floating(x.dtype):
        return _taken_by_place(x, take(numbers, classes, axis=0), rows, end)
    found = sum(where(equal(expand_dims(classes, -1), numbers), x, 0), axis=-1)
    return where(logical_or(classes < 0, classes >= end), np.nan, found)


def _taken_by_place(x: Any, classes: Any, rows: Shape, count: Any) -> Any:
    """Elements of x [*rows, count] by their places in all of it; each class is one of its row."""
    total = product(rows)
    numbers, _ = _classes(total)
    found = numbers * count + reshape(classes, (total,))
    return reshape(take(reshape(x, (total * x.shape[-1],)), found, axis=0), rows)


take_class = Op(
    name="take_class",
    args=("x", "classes"),
    formula="from each row of x, the element of its class",
    kind=OpKind.OTHER,
    shapes=_take_class_shapes,
    dtypes=_take_dtype,
    integers=("classes",),
    places=lambda x, classes: x.shape[-1],
    numpy=_take_class_numpy,
    vjp=lambda g, y, x, classes: (
        one_hot(classes, x.shape[-1], g.dtype) * expand_dims(g, -1), None
    ),
    reference=lambda x, classes: (x * np.eye(x.shape[-1])[classes.astype(int)]).sum(-1),
    samples=lambda draw: [
        Sample((draw(5, 7), draw.integers(5, low=0, high=7))),
        Sample((draw(2, 3, 5), draw.integers(3, low=0, high=5))),
    ],
    decompose=_take_class_nodes,
    stacked=_take_class_stacked,
    any_size=True,
    notes="x [..., k], classes [...] of 0 ... k - 1 -> [...]. An index outside is a DataError.",
)  # fmt: skip


# --- x[...] ---------------------------------------------------------------------------------------


@public
def getitem(x: Any, index: Any) -> Any:
    """`x[index]` for integers, slices, `None`, `...`, and one integer array (along the first axis).

    Masks make shapes that depend on data; take them of a Tensor, or use `where`.

    Raises:
        IndexOutOfRangeError: if there are too many indices, or an integer is outside its axis.
        ArgumentError: for anything else as an index.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    if len(entries) == 1 and _is_array(entries[0]):
        return _rows(x, entries[0])
    ndim = ndim_of(x)
    used = len([e for e in entries if e is not None and e is not ...])
    if used > ndim:
        raise IndexOutOfRangeError(f"getitem: {used} indices for x, which has {axes_text(ndim)}")
    at = next((k for k, e in enumerate(entries) if e is ...), len(entries))
    entries = [*entries[:at], *[builtins.slice(None)] * (ndim - used), *entries[at + 1 :]]
    y = slice_(x, index=tuple(_entry(e) for e in entries if e is not None))
    axis = 0
    for entry in entries:
        if entry is None:
            y = expand_dims(y, axis)
        axis += entry is None or isinstance(entry, builtins.slice)
    return y


@public
def slice(x: Any, index: Any) -> Any:
    """The same as `x[index]`: `slice(x, (0, np.s_[1:3]))`."""
    return getitem(x, index)


def _is_array(item: Any) -> bool:
    """Whether an index is an array; an integer of NumPy's is an integer."""
    return isinstance(item, list) or (hasattr(item, "dtype") and not isinstance(item, np.integer))


def _rows(x: Any, indices: Any) -> Any:
    """The rows of x that an array names."""
    if dtype_of(indices) == np.bool_:
        raise ArgumentError("getitem: masks are taken of a Tensor, or written with where")
    return take(x, np.asarray(indices) if isinstance(indices, list) else indices, axis=0)


def _entry(item: Any) -> Entry:
    """One index as `slice_` takes it."""
    if not isinstance(item, builtins.slice):
        if not is_integer(item):
            got = "an array" if hasattr(item, "shape") else repr(item)
            raise ArgumentError(
                f"getitem: an index is an integer, a slice, None or ..., got {got}; "
                "masks are taken of a Tensor, or written with where"
            )
        return ("int", int(item))
    if item == builtins.slice(None):
        return WHOLE
    for bound in (item.start, item.stop, item.step):
        if not (bound is None or isinstance(bound, Dim) or is_integer(bound)):
            raise ArgumentError(f"getitem: a slice is made of integers, got {bound!r}")
    if item.step == 0:
        raise ArgumentError("getitem: the step of a slice must not be 0")
    start, stop, step = (
        b if b is None or isinstance(b, Dim) else int(b) for b in (item.start, item.stop, item.step)
    )
    return ("slice", start, stop, 1 if step is None else step)
