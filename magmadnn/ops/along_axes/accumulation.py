"""Running sums along an axis, and counting, which is one of ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.computed_by import OwnKernel
from magmadnn.graph.dim import Dim, Shape, Size, product
from magmadnn.graph.node import Node, constant
from magmadnn.graph.op import Array, Op, OpKind, Sample
from magmadnn.graph.operators import public
from magmadnn.graph.signature import Attributes, OpWords, axes_text, axis_number
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import along_axis
from magmadnn.ops._pointwise import sum_dtype, widened
from magmadnn.ops.movement import broadcast_to


def _cumsum_canonical(
    words: OpWords, specs: Sequence[Spec], axis: Any, reverse: Any
) -> dict[str, Any]:
    ndim = specs[0].ndim
    if axis is None and ndim > 1:
        raise ShapeError(f"{words.name}: x has {axes_text(ndim)}; say along which one, as axis=-1")
    if not isinstance(reverse, (bool, np.bool)):
        raise ArgumentError(f"{words.name}: reverse must be True or False, got {reverse!r}")
    number = axis_number(words, 0 if axis is None else axis, ndim)
    return {"axis": number, "reverse": bool(reverse)}


def _cumsum_numpy(x: Array, axis: int, reverse: bool) -> Array:
    if reverse:
        return np.flip(np.cumsum(np.flip(widened(x), axis), axis=axis), axis)
    return np.asarray(np.cumsum(widened(x), axis=axis))


def _cumsum_reference(x: Array, axis: int | None = None, reverse: bool = False) -> Array:
    axis = axis or 0
    lower = np.tril(np.ones((x.shape[axis], x.shape[axis])))
    lower = lower.T if reverse else lower
    return np.moveaxis(np.tensordot(lower, np.moveaxis(x, axis, 0), 1), 0, axis)


def _lines(shape: Shape, attributes: Attributes) -> Shape:
    """[outer, columns], without the axis along which is summed."""
    axis = attributes["axis"]
    return (*shape[:axis], product(shape[axis + 1 :]))


def _sizes(shape: Shape, attributes: Attributes) -> dict[str, Size]:
    axis = attributes["axis"]
    return {"length": shape[axis], "columns": product(shape[axis + 1 :])}


cumsum: Op = Op(
    name="cumsum",
    args=("x",),
    formula="the running sum of x along an axis; with reverse, from its end",
    kind=OpKind.KERNEL,
    shapes=lambda words, specs, attributes: specs[0].shape,
    dtypes=sum_dtype,
    numpy=_cumsum_numpy,
    kernel=OwnKernel(
        "accumulate",
        dtypes=("float32", "float64", "int64"),
        walked=_lines,
        numbers=_sizes,
        settings=("reverse",),
        work="length",
    ),
    vjp=lambda g, y, x, axis, reverse: cumsum(g, axis, not reverse),
    reference=_cumsum_reference,
    samples=lambda draw: [
        Sample((draw(7),)),
        Sample((draw(5, 7),), {"axis": -1}),
        Sample((draw(3, 1, 5),), {"axis": 1}),
        Sample((draw(5, 7, 3),), {"axis": 1, "reverse": True}),
    ],
    attributes={"axis": None, "reverse": False},
    canonical=_cumsum_canonical,
    stacked=along_axis,
)


@public
def arange(count: Any) -> Any:
    """0, 1, ..., count - 1 in int64; the count may be a symbolic dimension."""
    if isinstance(count, Dim):
        one: Node = constant(np.ones((), np.int64))
        return cumsum(broadcast_to(one, (count,))) - 1
    return np.arange(count)
