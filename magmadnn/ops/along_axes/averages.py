"""Mean, variance, standard deviation and norm over axes, made of sums.

Of ops, not operators: arrays would follow NumPy's operators then, with other dtypes and with warnings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.graph.dim import Dim, product
from magmadnn.graph.node import size
from magmadnn.graph.operators import public
from magmadnn.memory.dtypes import DTYPES, is_complex, is_floating
from magmadnn.ops._arguments import dtype_of, ndim_of, shape_of, words_of
from magmadnn.ops.arithmetic import abs as abs_
from magmadnn.ops.arithmetic import cast, divide, square
from magmadnn.ops.elementary import sqrt

from .reductions import axes_of, deviations, sum, with_digits

_INTEGERS = tuple(d for d in DTYPES.values() if d.kind in "iu")
_LONG = (np.dtype(np.int64),)  # sums of others fit


def _count(name: str, x: Any, axis: Any) -> Any:
    """How many elements each result of a reduction is made of, as a number or a scalar node."""
    shape = shape_of(x)
    count = product([shape[a] for a in axes_of(words_of(name), axis, len(shape))])
    if isinstance(count, Dim):
        dtype = dtype_of(x)
        return size(count, dtype if is_floating(dtype) else np.float64)
    return float(count)


def _real(x: Any, dtypes: Sequence[Any] = _INTEGERS) -> Any:
    """X in float64 where it is of one of these dtypes, whose own sums, or squares, would wrap."""
    return cast(x, np.float64) if dtype_of(x) in dtypes else x


@public
def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The arithmetic mean over axes; float64 for integers, NaN over nothing.

    It is the sum, divided by the count: infinite where the sum is, as NumPy's.

    Args:
        x: [...], numbers.
        axis: one axis or several; None: all.
        keepdims: whether the axes stay, with size 1.
    """
    x, back = with_digits(_real(x, _LONG))
    count = _count("mean", x, axis)
    return back(divide(sum(x, axis, keepdims), count))


@public
def var(x: Any, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Any:
    """The variance over axes: `sum((x - mean)**2) / (n - ddof)` of n elements.

    Args:
        x: [...], numbers.
        axis: one axis or several; None: all.
        keepdims: whether the axes stay, with size 1.
        ddof: 1 for the estimate from a sample.
    """
    x, back = with_digits(x if is_floating(dtype_of(x)) else cast(x, np.float64))
    count = _count("var", x, axis) - float(ddof)
    return back(divide(deviations(x, axis, keepdims), count))


@public
def std(x: Any, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Any:
    """The standard deviation over axes: the square root of `var`; its gradient at 0 is NaN.

    x, axis, keepdims and ddof are as for `var`.
    """
    axes_of(words_of("std"), axis, ndim_of(x))
    x, back = with_digits(x)
    return back(sqrt(var(x, axis, keepdims, ddof)))


@public
def norm(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The Euclidean norm over axes: `sqrt(sum(|x|**2))`, in float64 for integers, real for complex numbers.

    Its gradient at 0 is NaN.

    x, axis and keepdims are as for `mean`.
    """
    axes_of(words_of("norm"), axis, ndim_of(x))
    if is_complex(dtype_of(x)):
        x = abs_(x)
    x, back = with_digits(_real(x))
    return back(sqrt(sum(square(x), axis, keepdims)))
