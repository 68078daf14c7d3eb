"""Activation functions, element by element; softmax stands in `probabilities.py`.

`-1.0 * x` stands where `-x` would do for real numbers: unsigned integers have no negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from magmadnn.graph import scalar as s
from magmadnn.graph.node import Node, with_inputs
from magmadnn.graph.op import Draw, Op, Sample
from magmadnn.memory.dtypes import is_floating

from ._pointwise import elementwise_reference, pointwise
from .arithmetic import cast, where
from .elementary import erf, exp

sigmoid = pointwise(
    "sigmoid", "1 / (1 + exp(-x))", lambda x: 1 / (1 + s.exp(-1.0 * x)),
    vjp=lambda g, y, x: g * y * (1 - y), reference=lambda x: np.exp(x) / (np.exp(x) + 1),
)  # fmt: skip
softsign = pointwise(
    "softsign", "x / (1 + |x|)", lambda x: x / (1 + s.maximum(x, -1.0 * x)),
    vjp=lambda g, y, x: g / (1 + abs(x)) / (1 + abs(x)),
    reference=elementwise_reference(lambda a: math.copysign(1 - 1 / (1 + math.fabs(a)), a)),
    notes="What the original calls a fast sigmoid.",
)  # fmt: skip


def _masked_earlier(node: Node) -> Node | None:
    """What is above 0 is told of what an operand was made of, where that is less; through conversions too."""
    given, y = node.inputs
    casts: list[Node] = []
    while isinstance(given.op, Op) and given.op is cast and is_floating(given.inputs[0].dtype):
        casts.append(given)
        (given,) = given.inputs
    if not isinstance(given.op, Op) or given.op.masked is None:
        return None
    made: Node | None = given.op.masked(given, y)
    if made is None:
        return None
    for one in reversed(casts):
        made = with_inputs(one, (made,))
    return made


# One op, which reads y: a mask would be stored beside y, though y tells all that it does.
_where_positive: Op = pointwise(
    "_where_positive", "g where y > 0, 0 elsewhere",
    lambda g, y: s.where(s.greater(y, 0), g, 0), args=("g", "y"),
    vjp=lambda h, z, g, y: (_where_positive(h, y), None),
    reference=lambda g, y: np.where(y > 0, g, 0), rewrites=(_masked_earlier,),
)  # fmt: skip
relu = pointwise(
    "relu", "max(x, 0)", lambda x: s.maximum(x, 0),
    vjp=lambda g, y, x: _where_positive(g, y),  # not maximum's rule: that gives half at 0
    reference=lambda x: (x + np.abs(x)) / 2,
    notes="The gradient at 0 is 0.",
)  # fmt: skip


def _leaky(x: Any, slope: float) -> Any:
    return s.where(s.greater(x, 0), x, x * slope)


leaky_relu = pointwise(
    "leaky_relu", "x where x > 0, slope * x elsewhere", _leaky,
    vjp=lambda g, y, x, slope: where(x > 0, g, slope * g),
    reference=lambda x, slope: np.maximum(x, 0) + slope * np.minimum(x, 0),
    attributes={"slope": 0.01},
    samples=lambda draw: [Sample((draw(5, 7),)), Sample((draw(11),), {"slope": 0.3})],
)  # fmt: skip


def _prelu_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7), draw.positive(7)))
    yield Sample((draw(3, 5, 7), draw.positive(1)))


prelu = pointwise(
    "prelu", "x where x > 0, slope * x elsewhere", _leaky, args=("x", "slope"),
    vjp=lambda g, y, x, slope: (where(x > 0, g, slope * g), where(x > 0, 0, g * x)),
    reference=lambda x, slope: np.maximum(x, 0) + slope * np.minimum(x, 0), samples=_prelu_samples,
    notes="The slope is trained: He, Zhang, Ren, Sun, ICCV 2015, eq. (1).",
)  # fmt: skip
elu = pointwise(
    "elu", "x where x > 0, alpha * (exp(x) - 1) elsewhere",
    lambda x, alpha: s.where(s.greater(x, 0), x, alpha * s.expm1(s.minimum(x, 0.0))),
    # minimum(x, 0.0) keeps exp from overflowing on the side that is not used
    vjp=lambda g, y, x, alpha: where(x > 0, g, g * (y + alpha)),
    reference=lambda x, alpha: np.where(x > 0, x, alpha * (np.exp(x) - 1)),
    attributes={"alpha": 1.0},
    samples=lambda draw: [Sample((draw(5, 7),)), Sample((draw(11),), {"alpha": 0.7})],
    notes="Clevert, Unterthiner, Hochreiter, ICLR 2016, eq. (16).",
)  # fmt: skip
softplus = pointwise(
    "softplus", "log(1 + exp(x))",
    lambda x: s.maximum(x, 0) + s.log1p(s.exp(s.minimum(x, -1.0 * x))),  # exp(-|x|)
    vjp=lambda g, y, x: g * sigmoid(x),
    reference=lambda x: np.logaddexp(0.0, x),
)  # fmt: skip
swish = pointwise(
    "swish", "x * sigmoid(x)", lambda x: x / (1 + s.exp(-1.0 * x)),
    vjp=lambda g, y, x: g * (sigmoid(x) + y * (1 - sigmoid(x))),
    reference=lambda x: x * np.exp(x) / (np.exp(x) + 1),
    notes="Ramachandran, Zoph, Le, arXiv:1710.05941, with beta = 1; also called SiLU.",
)  # fmt: skip
gelu = pointwise(
    "gelu", "x * (1 + erf(x / sqrt(2))) / 2",
    lambda x: 0.5 * x * (1 + s.erf(x * s.SQRT_HALF)),
    vjp=lambda g, y, x: g * (
        0.5 * (1 + erf(x * s.SQRT_HALF)) + x * s.INV_SQRT_2PI * exp(-0.5 * x * x)
    ),
    reference=elementwise_reference(lambda a: 0.5 * a * math.erfc(-a * math.sqrt(0.5))),
    notes="The exact form: Hendrycks, Gimpel, arXiv:1606.08415, section 2.",
)  # fmt: skip


def _rbf_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7), draw.positive(7)))
    yield Sample((draw(3, 5, 7), draw.positive(5, 1)))


def _rbf(x: Any, epsilon: Any) -> Any:
    scaled = 1.0 * epsilon * x
    return s.exp(-(scaled * scaled))


gaussian_rbf = pointwise(
    "gaussian_rbf", "exp(-(epsilon * x)**2)",
    _rbf, args=("x", "epsilon"),
    vjp=lambda g, y, x, epsilon: (
        -2 * g * y * epsilon * epsilon * x, -2 * g * y * epsilon * x * x
    ),
    reference=elementwise_reference(lambda a, e: math.exp(-math.pow(e * a, 2))),
    samples=_rbf_samples,
    notes="The Gaussian radial basis function of the MagmaDNN papers, eq. (5); epsilon may be trained.",
)  # fmt: skip
