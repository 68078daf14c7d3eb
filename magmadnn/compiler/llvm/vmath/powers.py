"""power: |x|**y = exp(y log|x|), with the logarithm as a sum of two numbers.

float32 is computed in float64. In float64 the logarithm needs some 12 bits more than a float64 has,
since exp turns its absolute error into a relative one: its leading terms are kept as unevaluated sums
(T. J. Dekker, "A floating-point technique for extending the available precision", 1971).
"""

from __future__ import annotations

import math

from magmadnn.compiler.llvm.ir.builder import F32, F64, Code, Value, item_type

from .exponential import LN2_64, exp, exp_of_sum
from .floats import limited, magnitude, polynomial
from .logarithm import log, split

# (log((1 + s) / (1 - s)) / s - 2 - 2/3 s**2) / s**4 as a polynomial of s**2.
_TAIL = (
    0.3999999999999998, 0.2857142857144522, 0.22222222217510557, 0.1818181887349785,
    0.1538455665352827, 0.13336325797779283, 0.11674648172943093, 0.11990433870684389,
)  # fmt: skip
_TWO_THIRDS = (2.0 / 3.0, 3.700743415417188e-17)

Pair = tuple[Value, Value]  # a number as high + low, |low| at most half a last place of high


def power(code: Code, x: Value, y: Value) -> Value:
    """x**y with C's special cases: pow(x, 0) = pow(1, y) = 1; NaN for x < 0 and y not an integer."""
    if item_type(x.type) == F32:
        wide = [code.convert(value, F64) for value in (x, y)]
        size = exp(code, wide[1] * log(code, magnitude(code, wide[0])))
        return _signed(code, x, y, code.convert(size, F32))
    return _signed(code, x, y, _size(code, magnitude(code, x), y))


def _signed(code: Code, x: Value, y: Value, size: Value) -> Value:
    """The power from that of |x|: its sign, and the cases that have none."""
    whole = code.call_like("llvm.floor", y).equals(y)
    half = y * 0.5
    odd = whole & code.call_like("llvm.floor", half).differs(half)
    size = code.select(magnitude(code, x).equals(1.0), 1.0, size)
    sign = code.select(odd, x, code.lift(1.0, x.type))
    result = code.call_like("llvm.copysign", size, sign)
    impossible = (x < 0.0) & (x > -math.inf) & ~whole
    result = code.select(impossible | x.differs(x) | y.differs(y), math.nan, result)
    return code.select(y.equals(0.0) | x.equals(1.0), 1.0, result)


def _size(code: Code, x: Value, y: Value) -> Value:
    """x**y for x >= 0."""
    high, low = _log(code, x)
    simple = log(code, x) * y  # right where there is nothing to be exact about: 0 and infinity
    product = high * y
    rest = code.fma(high, y, -product) + low * y
    usual = (x > 0.0) & (x < math.inf) & (magnitude(code, product) < 800.0)
    product = code.select(usual, product, limited(code, simple, -800.0, 800.0))
    return exp_of_sum(code, limited(code, product, -746.0, 710.0), code.select(usual, rest, 0.0))


def _log(code: Code, x: Value) -> Pair:
    """log(x) for positive x, with about 66 bits: k log 2 + 2 s + 2/3 s**3 + ..., s = f / (2 + f)."""
    k, f = split(code, x)
    base = f + 2.0
    base_error = f - (base - 2.0)
    s = f / base
    s_low = (code.fma(-s, base, f) - s * base_error) / base
    z, z_low = _product(code, (s, s_low), (s, s_low))
    cubic = _product(
        code, (z, z_low), (code.lift(_TWO_THIRDS[0], x.type), code.lift(_TWO_THIRDS[1], x.type))
    )
    factor = _sum(code, cubic[0], cubic[1] + z * z * polynomial(code, z, _TAIL))
    factor = _sum(code, code.lift(2.0, x.type), factor[0], factor[1])
    fraction = _product(code, factor, (s, s_low))
    whole = k * LN2_64[0]
    whole_low = code.fma(k, LN2_64[0], -whole) + k * LN2_64[1]
    total = whole + fraction[0]
    error = fraction[0] - (total - whole)  # |whole| >= |fraction| or whole = 0
    return _sum(code, total, error + (whole_low + fraction[1]))


def _product(code: Code, a: Pair, b: Pair) -> Pair:
    high = a[0] * b[0]
    return high, code.fma(a[0], b[0], -high) + (a[0] * b[1] + a[1] * b[0])


def _sum(code: Code, a: Value, b: Value, low: Value | None = None) -> Pair:
    """a + b (+ low) where |a| >= |b|."""
    total = a + b
    error = b - (total - a)
    return total, error if low is None else error + low
