"""Softmax and what goes with it, in forms that keep their digits.

softmax       x [..., n] -> exp(x - m) / sum(exp(x - m)), m the largest along the axis
log_softmax   x - logsumexp(x): no logarithm of a number near 0 is ever taken

The sum is at least 1, so it is divided by once for each row, and its reciprocal multiplies the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from magmadnn.graph.dim import Dim
from magmadnn.graph.op import Array, Draw, Op, OpKind, Sample, promote_floating
from magmadnn.graph.operators import public
from magmadnn.graph.signature import axis_number
from magmadnn.graph.transforms.stacking import along_axis
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops._arguments import dtype_of, ndim_of, words_of
from magmadnn.ops._pointwise import widened
from magmadnn.ops.arithmetic import abs, add, cast, less, stop_gradient, subtract, where
from magmadnn.ops.elementary import exp, log
from magmadnn.ops.movement import squeeze

from .reductions import axes_of, max, sum, with_digits


def _axis(words: Any, specs: Any, axis: Any) -> dict[str, Any]:
    return {"axis": axis_number(words, axis, specs[0].ndim)}


def _samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7),))
    yield Sample((draw(3, 5, 2),), {"axis": 1})
    yield Sample((draw(1),))


def _centred(x: Array, axis: int) -> Array:
    """X minus its largest along the axis, in float32 or float64."""
    wide = widened(x) if is_floating(x.dtype) else x.astype(np.float64)
    largest = wide.max(axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(wide - largest)


def _softmax_numpy(x: Array, axis: int) -> Array:
    e = np.exp(_centred(x, axis))
    return np.asarray(e * (1 / e.sum(axis=axis, keepdims=True)))


def _log_softmax_numpy(x: Array, axis: int) -> Array:
    c = _centred(x, axis)
    return np.asarray(c - np.log(np.exp(c).sum(axis=axis, keepdims=True)))


def _centred_nodes(x: Any, axis: int) -> tuple[Any, Callable[[Any], Any]]:
    """`_centred` in ops, and what brings a result back to the dtype of the op."""
    wide, back = with_digits(x if is_floating(x.dtype) else cast(x, "float64"))
    return wide - max(wide, axis, keepdims=True), back


def _may_be_empty(x: Any, axis: int) -> bool:
    return isinstance(x.shape[axis], Dim) or x.shape[axis] == 0


def _softmax_nodes(x: Any, axis: int) -> Any:
    if x.shape[axis] == 0:
        return None
    c, back = _centred_nodes(x, axis)
    e = exp(c)
    return back(e * (1 / sum(e, axis, keepdims=True)))


def _log_softmax_nodes(x: Any, axis: int) -> Any:
    if x.shape[axis] == 0:
        return None
    c, back = _centred_nodes(x, axis)
    return back(c - log(sum(exp(c), axis, keepdims=True)))


def _log_softmax_vjp(g: Any, y: Any, x: Any, axis: int) -> Any:
    """g - softmax(x) * sum(g), of the same exponentials as the forward formula's."""
    total = sum(g, axis=axis, keepdims=True)
    if _may_be_empty(x, axis):
        return g - exp(y) * total
    c, back = _centred_nodes(x, axis)
    e = exp(c)
    return g - back(e * (total / sum(e, axis, keepdims=True)))


softmax = Op(
    name="softmax",
    args=("x",),
    formula="exp(x) / sum(exp(x)) along an axis",
    kind=OpKind.REDUCTION,
    shapes=lambda words, specs, attributes: specs[0].shape,
    dtypes=promote_floating,
    numpy=_softmax_numpy,
    vjp=lambda g, y, x, axis: y * (g - sum(g * y, axis=axis, keepdims=True)),
    reference=lambda x, axis=-1: (
        1
        / np.exp(np.expand_dims(x, axis % x.ndim + 1) - np.expand_dims(x, axis % x.ndim)).sum(
            axis % x.ndim
        )
    ),
    samples=_samples,
    attributes={"axis": -1},
    canonical=_axis,
    decompose=_softmax_nodes,
    stacked=along_axis,
    any_size=True,
)
log_softmax = Op(
    name="log_softmax",
    args=("x",),
    formula="x - log(sum(exp(x))) along an axis",
    kind=OpKind.REDUCTION,
    shapes=lambda words, specs, attributes: specs[0].shape,
    dtypes=promote_floating,
    numpy=_log_softmax_numpy,
    vjp=_log_softmax_vjp,
    reference=lambda x, axis=-1: x - np.logaddexp.reduce(x, axis=axis, keepdims=True),
    samples=_samples,
    attributes={"axis": -1},
    canonical=_axis,
    decompose=_log_softmax_nodes,
    stacked=along_axis,
    any_size=True,
)


@public
def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """log(sum(exp(x))) over axes, without overflow: the largest x is taken out first.

    float64 for integers.

    Args:
        x: [...], numbers.
        axis: one axis or several; None: all.
        keepdims: whether the axes stay, with size 1.
    """
    axes = axes_of(words_of("logsumexp"), axis, ndim_of(x))
    x, back = with_digits(x if is_floating(dtype_of(x)) else cast(x, "float64"))
    top = max(x, axes, keepdims=True)
    # an infinite largest stays where it is: inf - inf would be NaN
    top = stop_gradient(where(less(abs(top), math.inf), top, 0))
    total = add(log(sum(exp(subtract(x, top)), axes, keepdims=True)), top)
    return back(total if keepdims else squeeze(total, axes))
