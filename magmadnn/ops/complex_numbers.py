"""Complex numbers: their parts, and which ops take them.

Gradients follow PyTorch's convention: that of a real L with respect to z = x + i y is dL/dx + i dL/dy, the
direction of steepest ascent. Of an op that is differentiable in z the sweep makes it from the formula for
real numbers (`graph/transforms/gradient.py`); the ops here have rules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from magmadnn.errors import DTypeError
from magmadnn.graph.op import Draw, Op, OpKind, Sample, takes_complex
from magmadnn.graph.operators import public
from magmadnn.graph.signature import Attributes, OpWords, elementwise
from magmadnn.graph.transforms.stacking import elementwise as stacked_elementwise
from magmadnn.memory.dtypes import is_complex

from .along_axes.reductions import prod, sum
from .arithmetic import (
    abs as abs_,
)
from .arithmetic import (
    add,
    cast,
    divide,
    equal,
    isnan,
    multiply,
    negative,
    not_equal,
    square,
    stop_gradient,
    subtract,
    where,
)  # fmt: skip
from .contraction import matmul
from .elementary import cos, exp, log, reciprocal, sin, sqrt

takes_complex(
    *(abs_, add, cast, divide, equal, isnan, multiply, negative, not_equal, square, stop_gradient),
    *(subtract, where, matmul, cos, exp, log, reciprocal, sin, sqrt, prod, sum),
)


def _real_dtype(words: OpWords, dtypes: Sequence[np.dtype[Any]], attributes: Attributes) -> Any:
    return np.zeros(0, dtypes[0]).real.dtype


def _part(name: str, formula: str, numpy: Callable[..., Any], dtypes: Any, vjp: Any) -> Op:
    def samples(draw: Draw) -> list[Sample]:
        return [Sample((draw(5, 7) + 1j * draw(5, 7),))]

    made = Op(
        name=name,
        args=("x",),
        formula=formula,
        kind=OpKind.OTHER,
        shapes=elementwise,
        dtypes=dtypes,
        numpy=numpy,
        vjp=vjp,
        reference=numpy,
        samples=samples,
        stacked=stacked_elementwise,
    )
    takes_complex(made)
    return made


real_part = _part("_real", "Re x", np.real, _real_dtype, lambda g, y, x: cast(g, x.dtype))
imaginary_part = _part("_imag", "Im x", np.imag, _real_dtype, lambda g, y, x: cast(g, x.dtype) * 1j)
conjugate: Op = _part(
    "_conj", "Re x - i Im x", np.conj, lambda words, dtypes, attributes: dtypes[0],
    lambda g, y, x: conjugate(g),
)  # fmt: skip
argument = _part(
    "_angle", "the angle of x", np.angle, _real_dtype,
    # of a full turn is 2 pi |x|: the direction i x / |x|^2
    lambda g, y, x: g * (x * 1j / cast(square(abs_(x)), x.dtype)),
)  # fmt: skip


def _kept(x: Any) -> bool:
    """Whether an operand is of real numbers, of which nothing changes."""
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    return not is_complex(dtype)


@public
def real(x: Any) -> Any:
    """The real part, of the dtype of half the size; a real operand as it is."""
    return x if _kept(x) else real_part(x)


@public
def imag(x: Any) -> Any:
    """The imaginary part, of the dtype of half the size; 0 for a real operand."""
    return x * 0 if _kept(x) else imaginary_part(x)


@public
def conj(x: Any) -> Any:
    """The conjugate Re x - i Im x; a real operand as it is."""
    return x if _kept(x) else conjugate(x)


@public
def angle(x: Any) -> Any:
    """The angle of complex numbers in radians, above -pi and up to pi.

    Raises:
        DTypeError: for real numbers.
    """
    if _kept(x):
        raise DTypeError("angle: x must be complex; cast it to complex64 or complex128")
    return argument(x)
