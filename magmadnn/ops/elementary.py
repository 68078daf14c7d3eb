"""Elementary functions, element by element."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from magmadnn.graph import scalar as s
from magmadnn.graph.op import Draw, Op, Sample

from ._pointwise import elementwise_reference, log1p_of, log_of, pointwise, positive_samples


def _above_minus_one(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw.positive(5, 7) - 0.9,))


exp = pointwise(
    "exp", "e ** x", lambda x: s.exp(x), vjp=lambda g, y, x: g * y,
    reference=elementwise_reference(math.exp),
)  # fmt: skip
expm1 = pointwise(
    "expm1", "e ** x - 1", lambda x: s.expm1(x), vjp=lambda g, y, x: g * (y + 1),
    reference=elementwise_reference(math.expm1), notes="Keeps its digits near 0.",
)  # fmt: skip
log = pointwise(
    "log", "the natural logarithm of x", lambda x: s.log(x), vjp=lambda g, y, x: g / x,
    reference=elementwise_reference(math.log), samples=positive_samples,
    stable=(log_of,),
    notes="-inf at 0, NaN below. The original's log(x + 1e-8) is not needed: see log_softmax.",
)  # fmt: skip
log1p = pointwise(
    "log1p", "log(1 + x)", lambda x: s.log1p(x), vjp=lambda g, y, x: g / (x + 1),
    reference=elementwise_reference(math.log1p), samples=_above_minus_one,
    stable=(log1p_of,), notes="Keeps its digits near 0.",
)  # fmt: skip
sqrt = pointwise(
    "sqrt", "the square root of x", lambda x: s.sqrt(x), vjp=lambda g, y, x: 0.5 * g / y,
    reference=elementwise_reference(lambda a: math.exp(0.5 * math.log(a))), samples=positive_samples,
)  # fmt: skip
reciprocal = pointwise(
    "reciprocal", "1 / x", lambda x: s.divide(1, x), vjp=lambda g, y, x: -g * y * y,
    reference=elementwise_reference(lambda a: math.copysign(math.exp(-math.log(abs(a))), a)),
)  # fmt: skip
sin = pointwise(
    "sin", "the sine of x radians", lambda x: s.sin(x), vjp=lambda g, y, x: g * cos(x),
    reference=elementwise_reference(math.sin),
)  # fmt: skip
cos: Op = pointwise(
    "cos", "the cosine of x radians", lambda x: s.cos(x), vjp=lambda g, y, x: -g * sin(x),
    reference=elementwise_reference(math.cos),
)  # fmt: skip
tanh = pointwise(
    "tanh", "the hyperbolic tangent of x", lambda x: s.tanh(x),
    vjp=lambda g, y, x: g * (1 - y * y),
    reference=lambda x: np.expm1(2 * x) / (np.exp(2 * x) + 1),
)  # fmt: skip
erf = pointwise(
    "erf", "2 / sqrt(pi) * integral of exp(-t**2) from 0 to x", lambda x: s.erf(x),
    vjp=lambda g, y, x: g * s.TWO_OVER_SQRT_PI * exp(-x * x),
    reference=elementwise_reference(math.erf),
)  # fmt: skip
