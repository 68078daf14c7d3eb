"""Arithmetic, comparison and choice, element by element.

Names, promotion and special values are NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from magmadnn.errors import DTypeError
from magmadnn.graph import scalar as s
from magmadnn.graph.node import CONSTANT
from magmadnn.graph.op import Draw, Op, Sample
from magmadnn.graph.operators import public
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.memory.dtypes import as_dtype, is_complex, is_floating, limits_of

from ._arguments import dtype_attribute, dtype_of
from ._pointwise import (
    difference_of,
    drop_neutral,
    drop_pair,
    drop_round_trip,
    drop_unchanged,
    elementwise_reference,
    no_flow,
    pointwise,
    share_of,
)
from .elementary import log

_XY = ("x", "y")


def _exact(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A reference in exact fractions."""

    def rounded(a: Any, b: Any) -> float:
        from fractions import Fraction  # rarely needed

        return float(function(Fraction(float(a)), Fraction(float(b))))

    return elementwise_reference(rounded)


add = pointwise(
    "add", "x + y", lambda x, y: s.add(x, y), args=_XY,
    vjp=lambda g, z, x, y: (g, g), reference=_exact(lambda a, b: a + b),
    rewrites=(drop_neutral(-0.0),),  # not 0.0: -0.0 + 0.0 is 0.0
)  # fmt: skip
subtract = pointwise(
    "subtract", "x - y", lambda x, y: s.subtract(x, y), args=_XY,
    vjp=lambda g, z, x, y: (g, -g), reference=_exact(lambda a, b: a - b),
    rewrites=(drop_neutral(0.0, right_only=True),), stable=(difference_of,),
)  # fmt: skip
multiply = pointwise(
    "multiply", "x * y", lambda x, y: s.multiply(x, y), args=_XY,
    vjp=lambda g, z, x, y: (g * y, g * x), reference=_exact(lambda a, b: a * b),
    rewrites=(drop_neutral(1),),
)  # fmt: skip
divide = pointwise(
    "divide", "x / y", lambda x, y: s.divide(x, y), args=_XY,
    vjp=lambda g, z, x, y: (g / y, -g * z / y), reference=_exact(lambda a, b: a / b),
    rewrites=(drop_neutral(1, right_only=True),), stable=(share_of,),
)  # fmt: skip
floor_divide = pointwise(
    "floor_divide", "floor(x / y)", lambda x, y: s.floor_divide(x, y), args=_XY,
    vjp=no_flow, reference=_exact(lambda a, b: a // b),
)  # fmt: skip
remainder = pointwise(
    "remainder", "x - y * floor(x / y)", lambda x, y: s.remainder(x, y), args=_XY,
    vjp=lambda g, z, x, y: (g, -g * floor_divide(x, y)), reference=_exact(lambda a, b: a % b),
    notes="The result has the sign of y, as Python's and NumPy's `%`.",
)  # fmt: skip


def _power_vjp(g: Any, z: Any, x: Any, p: Any) -> Any:
    # 0 where both are 0, where p * x**(p - 1) would be 0 * inf; where x alone is 0, log(x) would be -inf
    lower = p - 1 if _has_no_zero(p) else where(logical_and(equal(p, 0), equal(x, 0)), 1, p - 1)
    return g * p * x**lower, g * z * log(where(equal(x, 0), 1, x))


def _has_no_zero(p: Any) -> bool:
    """Whether an exponent is known, and nowhere 0."""
    return p.op is CONSTANT and bool((p.value != 0).all())


def _power_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw.positive(5, 7), draw(5, 7)))
    yield Sample((draw.positive(3, 1, 7), draw(5, 1)))


power = pointwise(
    "power", "x ** p", lambda x, p: s.power(x, p), args=("x", "p"), vjp=_power_vjp,
    reference=elementwise_reference(lambda a, b: math.pow(float(a), float(b))), samples=_power_samples,
    notes=(
        "The gradient of p is y * log(x): NaN where x is negative, where only single p give a number, and 0 "
        "where x is 0 and p is not negative. That of x is 0 where both are 0."
    ),
)  # fmt: skip
negative = pointwise(
    "negative", "-x", lambda x: s.negative(x),
    vjp=lambda g, z, x: -g, reference=lambda x: 0.0 - x, rewrites=(drop_pair,),
)  # fmt: skip


def _direction(z: Any, x: Any) -> Any:
    """X / |x| of complex numbers, 0 where x is 0."""
    return x / cast(where(equal(z, 0), 1, z), x.dtype)


abs = pointwise(
    "abs", "|x|", lambda x: s.absolute(x),
    vjp=lambda g, z, x: g * (_direction(z, x) if is_complex(x.dtype) else sign(x)),
    reference=lambda x: np.sqrt(x * x),
)  # fmt: skip
sign: Op = pointwise(
    "sign", "-1, 0 or 1", lambda x: s.sign(x), vjp=no_flow, reference=lambda x: x / np.abs(x),
)  # fmt: skip
floor = pointwise(
    "floor", "the largest integer not above x", lambda x: s.floor(x),
    vjp=no_flow, reference=elementwise_reference(math.floor),
)  # fmt: skip
ceil = pointwise(
    "ceil", "the smallest integer not below x", lambda x: s.ceil(x),
    vjp=no_flow, reference=elementwise_reference(math.ceil),
)  # fmt: skip
square = pointwise(
    "square", "x * x", lambda x: s.multiply(x, x),
    vjp=lambda g, z, x: 2 * g * x, reference=elementwise_reference(lambda a: math.pow(a, 2)),
)  # fmt: skip


def _half_at_tie(g: Any, wins: Any, ties: Any) -> Any:
    return g * (cast(wins, g.dtype) + 0.5 * cast(ties, g.dtype))


maximum = pointwise(
    "maximum", "the larger of x and y", lambda x, y: s.maximum(x, y), args=_XY,
    vjp=lambda g, z, x, y: (_half_at_tie(g, x > y, equal(x, y)), _half_at_tie(g, y > x, equal(x, y))),
    reference=elementwise_reference(max),
    notes="NaN in either operand gives NaN. Where x equals y, each gets half of the gradient.",
)  # fmt: skip
minimum = pointwise(
    "minimum", "the smaller of x and y", lambda x, y: s.minimum(x, y), args=_XY,
    vjp=lambda g, z, x, y: (_half_at_tie(g, x < y, equal(x, y)), _half_at_tie(g, y < x, equal(x, y))),
    reference=elementwise_reference(min),
    notes="NaN in either operand gives NaN. Where x equals y, each gets half of the gradient.",
)  # fmt: skip


def _comparison(name: str, sign_text: str, scalar: Any, reference: Any) -> Op:
    return pointwise(
        name, f"x {sign_text} y", lambda x, y: scalar(x, y), args=_XY, vjp=no_flow,
        reference=np.vectorize(reference, otypes=[bool]), samples=_comparison_samples,
    )  # fmt: skip


def _comparison_samples(draw: Draw) -> Iterable[Sample]:
    x = draw(5, 7)
    yield Sample((x, np.where(draw(5, 7) > 0, x, draw(5, 7))))  # about half of them equal
    yield Sample((draw(3, 1, 7), draw(5, 1)))


equal: Op = _comparison("equal", "==", s.equal, lambda a, b: a == b)
not_equal = _comparison("not_equal", "!=", s.not_equal, lambda a, b: a != b)
less = _comparison("less", "<", s.less, lambda a, b: a < b)
less_equal = _comparison("less_equal", "<=", s.less_equal, lambda a, b: a <= b)
greater = _comparison("greater", ">", s.greater, lambda a, b: a > b)
greater_equal = _comparison("greater_equal", ">=", s.greater_equal, lambda a, b: a >= b)


def _truth_samples(count: int) -> Callable[[Draw], Iterable[Sample]]:
    def samples(draw: Draw) -> Iterable[Sample]:
        yield Sample(tuple(draw(5, 7) > 0 for _ in range(count)))

    return samples


logical_and = pointwise(
    "logical_and", "x and y", lambda x, y: s.logical_and(x, y), args=_XY, vjp=no_flow,
    reference=lambda x, y: (x != 0) & (y != 0), samples=_truth_samples(2),
)  # fmt: skip
logical_or = pointwise(
    "logical_or", "x or y", lambda x, y: s.logical_or(x, y), args=_XY, vjp=no_flow,
    reference=lambda x, y: (x != 0) | (y != 0), samples=_truth_samples(2),
)  # fmt: skip
logical_not = pointwise(
    "logical_not", "not x", lambda x: s.logical_not(x), vjp=no_flow,
    reference=lambda x: x == 0, samples=_truth_samples(1),
)  # fmt: skip
isnan = pointwise(
    "isnan", "x != x", lambda x: s.isnan(x), vjp=no_flow,
    reference=np.vectorize(math.isnan, otypes=[bool]),
    samples=lambda draw: [Sample((np.where(draw(5, 7) > 0, np.nan, draw(5, 7)),))],
)  # fmt: skip


def _where_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7) > 0, draw(5, 7), draw(5, 7)))
    yield Sample((draw(5, 1) > 0, draw(3, 1, 7), draw(7)))


where: Op = pointwise(
    "where", "x where condition holds, y elsewhere", lambda c, x, y: s.where(c, x, y),
    args=("condition", "x", "y"), integers=("condition",),
    vjp=lambda g, z, c, x, y: (None, where(c, g, 0), where(c, 0, g)),
    reference=lambda c, x, y: np.choose(c.astype(int), [y, x]), samples=_where_samples,
)  # fmt: skip


def _faded_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7),), {"below": 0.5})
    yield Sample((draw(11),), {"below": 0.3})


# One op: optimisers have two of it for each parameter, and passes look at every node.
_faded: Op = pointwise(
    "_faded", "0 where |x| < below, x elsewhere",
    lambda x, below: s.where(s.less(s.absolute(x), below), 0.0, x),
    attributes={"below": 0.0}, vjp=lambda g, z, x, below: where(abs(x) < below, 0, g),
    reference=lambda x, below: x * ~(np.abs(x) < below), samples=_faded_samples,
)  # fmt: skip


def faded(x: Any) -> Any:
    """x, with 0 in place of elements that are below the smallest normal number; NaN stays."""
    return _faded(x, below=float(limits_of(dtype_of(x)).tiny))


def _clip_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7), np.float64(-0.71), np.float64(0.53)))
    yield Sample((draw(5, 7), -draw.positive(7), draw.positive(5, 1)))


def _clip_vjp(g: Any, z: Any, x: Any, low: Any, high: Any) -> tuple[Any, ...]:
    # where low is above high, high is what comes out
    return (
        where(logical_and(x >= low, x <= high), g, 0),
        where(logical_and(x < low, low <= high), g, 0),
        where(maximum(x, low) > high, g, 0),
    )


_clip = pointwise(
    "_clip", "minimum(maximum(x, low), high)",
    lambda x, low, high: s.minimum(s.maximum(x, low), high), args=("x", "low", "high"),
    vjp=_clip_vjp, samples=_clip_samples,
    reference=lambda x, low, high: np.sort([np.sort([x, low + 0 * x], 0)[1], high + 0 * x], 0)[0],
)  # fmt: skip


@public
def clip(x: Any, low: Any = None, high: Any = None) -> Any:
    """`minimum(maximum(x, low), high)`; a bound of None does not bound.

    x gets the gradient where it lies within the bounds, a bound where it is what comes out.
    """
    dtype = dtype_of(x)
    if is_complex(dtype):
        raise DTypeError(
            f"clip: x is {dtype.name}; give its real, imag or abs, which have an order"
        )
    lowest, highest = _limits(dtype)
    return _clip(x, lowest if low is None else low, highest if high is None else high)


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Python numbers that bound nothing of a dtype."""
    if is_floating(dtype):
        return -math.inf, math.inf
    if dtype == np.bool_:
        return False, True
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _cast_to(words: OpWords, specs: Sequence[Spec], dtype: Any) -> Attributes:
    settled = dtype_attribute(words, dtype)
    if is_complex(specs[0].dtype) and not is_complex(as_dtype(settled)):
        raise DTypeError(
            f"cast: x is {specs[0].dtype.name}; take its real, imag or abs for {settled}"
        )
    return {"dtype": settled}


def _of_cast(g: Any, x: Any) -> Any:
    if is_complex(g.dtype):
        return g  # of real numbers the sweep takes the real part
    return cast(g, x.dtype) if is_floating(x.dtype) else None


cast: Op = pointwise(
    "cast", "x in another dtype", lambda x, dtype: s.cast(x, dtype),
    vjp=lambda g, z, x, dtype: _of_cast(g, x),
    reference=lambda x, dtype: x,
    samples=lambda draw: [
        Sample((draw(5, 7),), {"dtype": dtype})
        for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "bool")
    ],
    attributes={"dtype": "float32"},
    canonical=_cast_to,
    rewrites=(drop_unchanged, drop_round_trip),
    notes=(
        "Floats lose their fraction on the way to integers. What is out of range, and NaN, become what NumPy "
        "makes of them on x86: the least integer of int32 and int64; in uint8 the low byte of that in int32. "
        "On other processors NumPy, and so what is not compiled, gives other integers there. "
        "Gradients go back in the dtype of x."
    ),
)  # fmt: skip
stop_gradient = pointwise(
    "stop_gradient", "x, as a constant for the gradient", lambda x: x,
    vjp=no_flow, reference=lambda x: x, rewrites=(drop_unchanged,),
)  # fmt: skip
