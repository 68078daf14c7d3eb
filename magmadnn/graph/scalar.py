"""Scalar expressions: one formula for NumPy, LLVM and CUDA.

A pointwise op writes its formula once, as a Python function of numbers::

    def sigmoid(x): return 1 / (1 + scalar.exp(-x))

Called with NumPy arrays it computes. Called with `Expr` arguments it builds a tree of the primitives
below, and the emitters print that tree as vector code. Only these primitives need code per target, and
their meaning is NumPy's: `minimum` and `maximum` pass NaN on, `floor_divide` and `remainder` round
towards minus infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError
from magmadnn.memory.dtypes import as_dtype

Scalar = Any  # an ndarray, a Python number, or an Expr


class Expr:
    """A node of a formula: the name of a primitive and its arguments.

    Two names are not primitives: `argument` (its number) and `constant` (its Python value).
    """

    __slots__ = ("args", "name")

    def __init__(self, name: str, args: tuple[Any, ...]) -> None:
        self.name = name
        self.args = args

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.args))})"

    def __bool__(self) -> bool:
        raise ArgumentError(
            "a formula is written once for all elements: choose with scalar.where, not with if, and, or"
        )

    __hash__ = object.__hash__

    def __add__(self, other: Scalar) -> Expr:
        return Expr("add", (self, lift(other)))

    def __radd__(self, other: Scalar) -> Expr:
        return Expr("add", (lift(other), self))

    def __sub__(self, other: Scalar) -> Expr:
        return Expr("subtract", (self, lift(other)))

    def __rsub__(self, other: Scalar) -> Expr:
        return Expr("subtract", (lift(other), self))

    def __mul__(self, other: Scalar) -> Expr:
        return Expr("multiply", (self, lift(other)))

    def __rmul__(self, other: Scalar) -> Expr:
        return Expr("multiply", (lift(other), self))

    def __truediv__(self, other: Scalar) -> Expr:
        return Expr("divide", (self, lift(other)))

    def __rtruediv__(self, other: Scalar) -> Expr:
        return Expr("divide", (lift(other), self))

    def __floordiv__(self, other: Scalar) -> Expr:
        return Expr("floor_divide", (self, lift(other)))

    def __mod__(self, other: Scalar) -> Expr:
        return Expr("remainder", (self, lift(other)))

    def __pow__(self, other: Scalar) -> Expr:
        if type(other) in (int, float) and other == 2:
            return self * self  # as NumPy computes it
        return Expr("power", (self, lift(other)))

    def __neg__(self) -> Expr:
        return Expr("negative", (self,))

    def __abs__(self) -> Expr:
        return Expr("absolute", (self,))

    def __lt__(self, other: Scalar) -> Expr:
        return Expr("less", (self, lift(other)))

    def __le__(self, other: Scalar) -> Expr:
        return Expr("less_equal", (self, lift(other)))

    def __gt__(self, other: Scalar) -> Expr:
        return Expr("greater", (self, lift(other)))

    def __ge__(self, other: Scalar) -> Expr:
        return Expr("greater_equal", (self, lift(other)))

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]  # a formula, as in NumPy
        return Expr("equal", (self, lift(other)))

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]  # likewise
        return Expr("not_equal", (self, lift(other)))


def lift(value: Scalar) -> Expr:
    """`value` as an expression."""
    return value if isinstance(value, Expr) else Expr("constant", (value,))


PRIMITIVES: dict[str, Callable[..., Any]] = {}


def _primitive(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes with `compute`, or builds an `Expr` where an argument is one."""

    def call(*args: Scalar) -> Any:
        if any(isinstance(arg, Expr) for arg in args):
            return Expr(name, tuple(map(lift, args)))
        return compute(*args)

    call.__name__ = name
    PRIMITIVES[name] = compute
    return call


def trace(formula: Callable[..., Any], arguments: int, **attributes: Any) -> Expr:
    """The expression that `formula` computes from its numbered arguments."""
    return lift(formula(*(Expr("argument", (i,)) for i in range(arguments)), **attributes))


# erf in float64, from rational approximations on four ranges: W. J. Cody, "Rational Chebyshev
# approximations for the error function", Math. Comp. 23 (1969), in the coefficients of Sun's fdlibm.
_ERF_X = 8.45062911510467529297e-01
_PP = (
    1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
    -5.77027029648944159157e-03, -2.37630166566501626084e-05,
)  # fmt: skip
_QQ = (
    1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
    1.32494738004321644526e-04, -3.96022827877536812320e-06,
)  # fmt: skip
_PA = (
    -2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
    3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
    -2.16637559486879084300e-03,
)  # fmt: skip
_QA = (
    1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
    1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02,
)  # fmt: skip
_RA = (
    -9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e01,
    -6.23753324503260060396e01, -1.62396669462573470355e02, -1.84605092906711035994e02,
    -8.12874355063065934246e01, -9.81432934416914548592e00,
)  # fmt: skip
_SA = (
    1.0, 1.96512716674392571292e01, 1.37657754143519042600e02, 4.34565877475229228821e02,
    6.45387271733267880336e02, 4.29008140027567833386e02, 1.08635005541779435134e02,
    6.57024977031928170135e00, -6.04244152148580987438e-02,
)  # fmt: skip
_RB = (
    -9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e01,
    -1.60636384855821916062e02, -6.37566443368389627722e02, -1.02509513161107724954e03,
    -4.83519191608651397019e02,
)  # fmt: skip
_SB = (
    1.0, 3.03380607434824582924e01, 3.25792512996573918826e02, 1.53672958608443695994e03,
    3.19985821950859553908e03, 2.55305040643316442583e03, 4.74528541206955367215e02,
    -2.24409524465858183362e01,
)  # fmt: skip


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """c0 + c1 x + c2 x**2 + ... by Horner's rule."""
    total = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _erf_float64(x: Any) -> Any:
    a = np.abs(x)
    near = np.minimum(a, 0.84375)
    z = near * near
    small = near + near * (_polynomial(z, _PP) / _polynomial(z, _QQ))
    s = np.clip(a, 0.84375, 1.25) - 1.0
    middle = _ERF_X + _polynomial(s, _PA) / _polynomial(s, _QA)
    far = np.clip(a, 1.25, 6.0)
    s = 1.0 / (far * far)
    ratio = np.where(
        far < 1.0 / 0.35,
        _polynomial(s, _RA) / _polynomial(s, _SA),
        _polynomial(s, _RB) / _polynomial(s, _SB),
    )
    head = far.astype(np.float32).astype(np.float64)  # so that head * head is exact
    large = 1.0 - np.exp(-head * head - 0.5625) * np.exp((head - far) * (head + far) + ratio) / far
    result = np.where(a < 0.84375, small, np.where(a < 1.25, middle, large))
    return np.where(np.isnan(x), x, np.copysign(result, x))


def _erf(x: Any) -> Any:
    """erf(x), float64 inside, in the dtype that NumPy's exp would give."""
    like = np.exp(np.empty(0, np.asarray(x).dtype)).dtype
    return _erf_float64(np.asarray(x, np.float64)).astype(like)


def _where(condition: Any, x: Any, y: Any) -> Any:
    if getattr(condition, "dtype", None) != np.dtype(bool):
        condition = np.asarray(condition, bool)
    return np.where(condition, x, y)


def _power(x: Any, p: Any) -> Any:
    if np.asarray(x).dtype.kind in "iub" and np.asarray(p).dtype.kind == "i" and np.any(p < 0):
        raise ArgumentError("power: integers have no negative powers here; cast x to float32")
    return np.power(x, p)


add = _primitive("add", np.add)
subtract = _primitive("subtract", np.subtract)
multiply = _primitive("multiply", np.multiply)
divide = _primitive("divide", np.true_divide)
floor_divide = _primitive("floor_divide", np.floor_divide)
remainder = _primitive("remainder", np.remainder)
power = _primitive("power", _power)
negative = _primitive("negative", np.negative)
absolute = _primitive("absolute", np.absolute)
sign = _primitive("sign", np.sign)
floor = _primitive("floor", np.floor)
ceil = _primitive("ceil", np.ceil)
sqrt = _primitive("sqrt", np.sqrt)
exp = _primitive("exp", np.exp)
expm1 = _primitive("expm1", np.expm1)
log = _primitive("log", np.log)
log1p = _primitive("log1p", np.log1p)
sin = _primitive("sin", np.sin)
cos = _primitive("cos", np.cos)
tanh = _primitive("tanh", np.tanh)
erf = _primitive("erf", _erf)
minimum = _primitive("minimum", np.minimum)
maximum = _primitive("maximum", np.maximum)
equal = _primitive("equal", np.equal)
not_equal = _primitive("not_equal", np.not_equal)
less = _primitive("less", np.less)
less_equal = _primitive("less_equal", np.less_equal)
greater = _primitive("greater", np.greater)
greater_equal = _primitive("greater_equal", np.greater_equal)
logical_and = _primitive("logical_and", np.logical_and)
logical_or = _primitive("logical_or", np.logical_or)
logical_not = _primitive("logical_not", np.logical_not)
isnan = _primitive("isnan", np.isnan)
where = _primitive("where", _where)

SQRT_HALF = math.sqrt(0.5)
INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)


def cast(x: Scalar, dtype: object) -> Any:
    """`x` in another dtype."""
    target = as_dtype(dtype)
    if isinstance(x, Expr):
        return Expr("cast", (x, target.name))
    return (x if hasattr(x, "astype") else np.asarray(x)).astype(target)
