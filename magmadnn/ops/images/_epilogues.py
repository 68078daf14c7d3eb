"""Convolutions with what follows them, as one call of a library: another result added, bias, ReLU.

A scale for each filter goes into the filters, so that at prediction a normalisation by running statistics
costs nothing. In half precision filters are scaled before they are rounded, and the bias is rounded, as that
of a dense layer is.

Their images are packed: among others' channels the library takes twice as long for such a call, longer than
with a copy, and reads what it adds by the steps of its result, whatever it is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from magmadnn.graph.computed_by import LibraryCall
from magmadnn.graph.epilogue import Epilogue
from magmadnn.graph.node import Node, constant
from magmadnn.graph.op import Array, Draw, Op, OpKind, Sample, promote
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops.arithmetic import cast, multiply
from magmadnn.ops.movement import reshape

from ._library import (
    DTYPES,
    HALVES,
    SETTINGS,
    by_numpy,
    by_reference,
    calling,
    narrow,
    operations_of,
    outputs_of,
)
from ._pooled import joined


def absorbed(node: Node, epilogue: Epilogue) -> Any:
    """A convolution by the library with what follows it, in the dtype of that; None where it cannot be.

    In half precision a result that is added must be one of halves.
    """
    return absorbed_by(convolution_biased, convolution_added, node, epilogue)


def absorbed_by(biased: Op, with_sum: Op, node: Node, epilogue: Epilogue) -> Any:
    """The same by these ops, of one model or of many."""
    x, w = node.inputs
    wide = "float32" if node.dtype.name in HALVES else node.dtype.name
    if (scale := epilogue.scale) is not None:
        each = reshape(scale, (*scale.shape, *[1] * (w.ndim - scale.ndim)))
        scaled = multiply(_unrounded(w, wide), each)
        w = cast(scaled, node.dtype.name) if scaled.dtype != node.dtype else scaled
    settled, bias = {**node.attributes, "positive": epilogue.positive}, epilogue.shift
    if bias is None:
        bias = constant(np.zeros(w.shape[: w.ndim - len(settled["strides"]) - 1], wide))
    if bias.dtype != node.dtype:
        bias = cast(bias, node.dtype.name)
    added = epilogue.added
    if added is not None and added.dtype != node.dtype:
        added = narrow(added)
    if epilogue.added is not None and (added is None or added.dtype != node.dtype):
        return None
    made = (
        biased(x, w, bias, **settled) if added is None else with_sum(x, w, bias, added, **settled)
    )
    return cast(made, wide) if made.dtype.name != wide else made


def _unrounded(w: Node, wide: str) -> Any:
    """The filters in float32 or float64, before they were rounded to halves where they were."""
    if isinstance(w.op, Op) and w.op.kind is OpKind.MOVEMENT and len(w.inputs) == 1:
        return w.op(_unrounded(w.inputs[0], wide), **w.attributes)
    if w.op is cast and w.dtype.name in HALVES and w.inputs[0].dtype.name == wide:
        return w.inputs[0]
    return cast(w, wide) if w.dtype.name != wide else w


# --- the ops --------------------------------------------------------------------------------------


def _ended(x: Array, w: Array, positive: bool, others: tuple[Array, ...], settled: Any) -> Array:
    """The convolution of halves in float32, as the library sums, of integers wide enough; what follows."""
    if x.dtype.itemsize < 4:
        wide = np.float32 if is_floating(x.dtype) else np.int64
        x, w = x.astype(wide), w.astype(wide)
    total = by_numpy(x, w, **settled)
    for other in others:
        total = total + other.astype(total.dtype)
    return np.maximum(total, 0) if positive else total


def _biased_numpy(x: Array, w: Array, bias: Array, positive: bool, **settled: Any) -> Array:
    return _ended(x, w, positive, (bias,), settled)


def _added_numpy(
    x: Array, w: Array, bias: Array, z: Array, positive: bool, **settled: Any
) -> Array:
    return _ended(x, w, positive, (z, bias), settled)


def _biased_reference(x: Array, w: Array, bias: Array, positive: bool, **settled: Any) -> Array:
    y: Array = by_reference(x, w, **settled) + bias
    return np.where(y > 0, y, 0) if positive else y


def _added_reference(
    x: Array, w: Array, bias: Array, z: Array, positive: bool, **settled: Any
) -> Array:
    y: Array = by_reference(x, w, **settled) + (bias + z)
    return np.where(y > 0, y, 0) if positive else y


_1D = {"strides": (2,), "padding": ((1, 0),), "dilation": (1,), "groups": 1, "positive": True}
_2D = {
    "strides": (1, 2), "padding": ((1, 1), (0, 2)), "dilation": (2, 1), "groups": 2, "positive": False,
}  # fmt: skip


def _biased_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(2, 6, 3), draw(4, 3, 3), draw(4)), _1D)
    yield Sample((draw(2, 4, 7, 4), draw(6, 2, 3, 2), draw(6)), _2D)


def _added_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(2, 6, 3), draw(4, 3, 3), draw(4), draw(2, 3, 4)), _1D)
    yield Sample((draw(2, 4, 7, 4), draw(6, 2, 3, 2), draw(6), draw(2, 4, 4, 6)), _2D)


def _op(**parts: Any) -> Op:
    settings = (*SETTINGS, "positive")
    library = LibraryCall(
        "fprop_fused",
        settings=settings,
        dtypes=DTYPES,
        whole=True,
        operations=lambda y, x, w, *others: operations_of(y, w),
    )
    return calling(library, settings, shapes=outputs_of, dtypes=promote, **parts)


convolution_biased = _op(
    name="_convolution_biased",
    args=("x", "w", "bias"),
    formula="the convolution of x [n, *places, c] with w [o, *size, c / groups], plus bias [o]; at least 0 "
    "if positive",
    numpy=_biased_numpy,
    reference=_biased_reference,
    samples=_biased_samples,
    joins={"few_pooled": joined},
)

convolution_added = _op(
    name="_convolution_added",
    args=("x", "w", "bias", "z"),
    formula="the same plus z [n, *windows, o], before what is negative becomes 0",
    numpy=_added_numpy,
    reference=_added_reference,
    samples=_added_samples,
)
