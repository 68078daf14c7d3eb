"""Rows by number: take (gather, embedding), its transpose scatter_add, and one_hot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.errors import DataError, DTypeError, ShapeError
from magmadnn.graph.dim import Shape
from magmadnn.graph.op import REQUIRED, Array, Draw, NoGradient, Op, OpKind, Sample
from magmadnn.graph.operators import public
from magmadnn.graph.signature import Attributes, OpWords, axis_number, by_signature, shape_text
from magmadnn.graph.spec import Spec, as_dtype

from .movement import expand_dims


def _need_integers(words: OpWords, dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iu":
        raise DTypeError(f"{words.name}: indices are {dtype.name}, expected integers; cast them")


def _check_range(name: str, indices: Array, count: int) -> None:
    """Every index lies in 0 ... count - 1 (negative ones are not taken: they hide mistakes)."""
    wrong = (indices < 0) | (indices >= count)
    if wrong.any():
        place = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong)))
        raise DataError(
            f"{name}: index {np.atleast_1d(indices)[place]} at {place} is outside 0 to {count - 1}"
        )


# --- take -----------------------------------------------------------------------------------------


def _take_dtype(words: OpWords, dtypes: Sequence[Any], attributes: Attributes) -> Any:
    _need_integers(words, dtypes[1])
    return dtypes[0]


def _take_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    axis, shape = attributes["axis"], specs[0].shape
    return (*shape[:axis], *specs[1].shape, *shape[axis + 1 :])


def _take_numpy(x: Array, indices: Array, axis: int) -> Array:
    _check_range("take", indices, x.shape[axis])
    return np.take(x, indices, axis)


def _take_reference(x: Array, indices: Array, axis: int = 0) -> Array:
    rows = np.moveaxis(x, axis, 0)
    picked = np.array([rows[int(i)] for i in indices.flat]).reshape(*indices.shape, *rows.shape[1:])
    return np.moveaxis(picked, range(indices.ndim), range(axis, axis + indices.ndim))


take = Op(
    name="take",
    args=("x", "indices"),
    formula="the slices of x along an axis that indices name",
    kind=OpKind.MOVEMENT,
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
    canonical=lambda words, specs, axis: {"axis": axis_number(words, axis, specs[0].ndim)},
    notes="x [..., n, ...], indices [any] of 0 ... n - 1. An index outside is a DataError.",
)  # fmt: skip


def _scatter_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    axis, ndim = attributes["axis"], specs[1].ndim
    shape = specs[0].shape
    if shape[axis : axis + ndim] != specs[1].shape:
        raise ShapeError(
            f"{words.name}: axes {axis} to {axis + ndim - 1} of x {shape_text(shape)} must be those of "
            f"indices {shape_text(specs[1].shape)}"
        )
    return (*shape[:axis], attributes["count"], *shape[axis + ndim :])


def _scatter_numpy(x: Array, indices: Array, axis: int, count: int) -> Array:
    _check_range("scatter_add", indices, count)
    rows = np.moveaxis(x, range(axis, axis + indices.ndim), range(indices.ndim))
    out = np.zeros((count, *rows.shape[indices.ndim :]), x.dtype)
    np.add.at(out, indices, rows)
    return np.moveaxis(out, 0, axis)


def _scatter_reference(x: Array, indices: Array, axis: int = 0, count: int = 0) -> Array:
    hot = (indices.reshape(-1, 1) == np.arange(count)).astype(np.float64)
    flat = x.reshape(*x.shape[:axis], indices.size, *x.shape[axis + indices.ndim :])
    return np.moveaxis(np.tensordot(hot.T, np.moveaxis(flat, axis, 0), 1), 0, axis)


scatter_add = Op(
    name="scatter_add",
    args=("x", "indices"),
    formula="zeros with count slices along an axis, to which the slices of x are added where indices say",
    kind=OpKind.OTHER,
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
    notes="The transpose of take. Several slices for one place are added in order.",
)


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
    _need_integers(words, dtypes[0])
    return attributes["dtype"]


def _one_hot_numpy(indices: Array, depth: int, dtype: Any) -> Array:
    _check_range("one_hot", indices, depth)
    return (indices[..., None] == np.arange(depth)).astype(dtype)


def _one_hot_reference(indices: Array, depth: int = 0, dtype: Any = None) -> Array:
    return np.eye(depth)[indices.astype(int)]


def _one_hot_samples(draw: Draw) -> list[Sample]:
    return [
        Sample((draw.integers(7, low=0, high=5),), {"depth": 5}),
        Sample((draw.integers(3, 2, low=0, high=3),), {"depth": 3, "dtype": "float64"}),
    ]


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
    canonical=lambda words, specs, depth, dtype: {"depth": depth, "dtype": as_dtype(dtype)},
    notes="indices [any] of 0 ... depth - 1 -> [any, depth]. An index outside is a DataError.",
)


# --- take_class -----------------------------------------------------------------------------------


def _take_class_numpy(x: Array, classes: Array) -> Array:
    _check_range("take_class", classes, x.shape[-1])
    return np.take_along_axis(x, classes[..., None], -1)[..., 0]


take_class = Op(
    name="take_class",
    args=("x", "classes"),
    formula="from each row of x, the element of its class",
    kind=OpKind.OTHER,
    shapes=by_signature("... k, ... -> ..."),
    dtypes=_take_dtype,
    numpy=_take_class_numpy,
    vjp=lambda g, y, x, classes: (
        one_hot(classes, x.shape[-1], g.dtype) * expand_dims(g, -1), None
    ),
    reference=lambda x, classes: (x * np.eye(x.shape[-1])[classes.astype(int)]).sum(-1),
    samples=lambda draw: [
        Sample((draw(5, 7), draw.integers(5, low=0, high=7))),
        Sample((draw(2, 3, 5), draw.integers(2, 3, low=0, high=5))),
    ],
    notes="x [..., k], classes [...] of 0 ... k - 1 -> [...]. An index outside is a DataError.",
)  # fmt: skip
