"""exp and expm1: x = n log 2 + r, exp(x) = 2**n exp(r), with a polynomial for |r| <= log(2) / 2."""

from __future__ import annotations

import math
import struct

from magmadnn.compiler.llvm.ir.builder import F32, I32, Code, Value

from .floats import (
    by_layout,
    layout_of,
    limited,
    polynomial,
    power_of_two,
    rounded,
    scaled,
    spread_polynomial,
)

LOG2_E = 1.0 / math.log(2.0)
LN2_32 = (0.693145751953125, 1.42860682030941723e-06)  # the first part has 12 bits to spare
_LN2_WHOLE = (0.693147182464599609375, -1.904654299957768e-09)
LN2_64 = (0.6931471805599453, 2.3190468138462996e-17)

# (exp(r) - 1 - r) / r**2, minimax for the error relative to exp; Remez exchange in 240-bit arithmetic.
_EXP_32 = (0.5, 0.166665181517601, 0.04166620224714279, 0.008369024842977524, 0.0013950725551694632)
_EXP_TABLE = (0.500064492225647, 0.1666685789823532)  # the same for |r| <= log(2) / 16
_EXP_64 = (
    0.5000000000000013, 0.166666666666667, 0.0416666666665131, 0.008333333333306808,
    0.0013888888947682252, 0.0001984126991825282, 2.4801489199473823e-05, 2.7557215516293985e-06,
    2.7631562022743493e-07, 2.511811186243635e-08,
)  # fmt: skip


def _reduced(code: Code, x: Value) -> tuple[Value, Value, Value]:
    """n, r and exp(r) - 1 - r where x = n log 2 + r."""
    whole, n = rounded(code, x, LOG2_E)
    high, low = by_layout(x, LN2_32, LN2_64)
    r = code.fma(whole, -low, code.fma(whole, -high, x))
    rest = r * r * polynomial(code, r, by_layout(x, _EXP_32, _EXP_64))
    return n, r, rest


def exp(code: Code, x: Value) -> Value:
    """e**x; at most MAX_ULP["exp"] units in the last place from the true value, subnormals included.

    2**n may be out of range, so it is a product of two powers. Adding twice the exponent's bias while
    rounding gives both by shifts alone.
    """
    low, high = by_layout(x, (-104.0, 89.0), (-746.0, 710.0))  # beyond, the result is 0 or inf
    layout = layout_of(x)
    shifted, rest = _shifted(code, limited(code, x, low, high), 2 * layout.bias)
    n = code.bits(shifted, layout.bits)
    half = n.shift_right(1)
    powers = [code.bits(k << layout.mantissa, layout.item) for k in (half, n - half)]
    return _times_exp(code, powers[0], rest) * powers[1]


def exp_below_zero(code: Code, x: Value) -> Value:
    """e**x for x <= 0, as accurate, in less time: 2**n is 2**(n + k) 2**-k with a k that suits all."""
    low, spare = by_layout(x, (-104.0, 64), (-746.0, 512))
    x = code.select(code.lift(low, x.type) > x, low, x)
    scale: float = 2.0**-spare
    return _normal(code, x, spare) * scale


def exp_scaled(code: Code, x: Value) -> Value:
    """2**64 e**x, in float64 2**512 e**x, for sums whose largest x `is_central`.

    Small results are not rounded to subnormal numbers. No less than the result for x = -131 (float64: -1063).
    NaN for NaN and inf; other x that are too large give any number.
    """
    low, spare = by_layout(x, (-131.0, 64), (-1063.0, 512))
    x = code.select(code.lift(low, x.type) > x, low, x)
    write = _by_table if layout_of(x).mantissa < 30 else _normal
    return write(code, x, spare)


def is_central(code: Code, x: Value) -> Value:
    """Whether `exp_scaled` serves for a row whose largest element is x.

    Sums of 2**24 terms are finite then, and the least result is 0 beside that for x: e**(-131 + 27) is in
    float32.
    """
    bound: float = by_layout(x, 27.0, 300.0)
    return (x >= -bound) & (x <= bound)


def _normal(code: Code, x: Value, spare: int) -> Value:
    """e**x 2**spare, for results that are normal numbers."""
    layout = layout_of(x)
    shifted, rest = _shifted(code, x, layout.bias + spare)
    power = code.bits(code.bits(shifted, layout.bits) << layout.mantissa, layout.item)
    return _times_exp(code, power, rest)


def _by_table(code: Code, x: Value, spare: int) -> Value:
    """e**x 2**spare in float32, for results that are normal numbers: x = n log(2) / 8 + r.

    A table in a register has the eight 2**(k / 8). The higher bits of n belong to the exponent: one addition
    of integers makes 2**(n / 8), as the table lacks what its places add to the last bits of the exponent.
    """
    magic = layout_of(x).magic
    shifted = code.fma(x, 8 * LOG2_E, magic)
    whole = shifted - magic
    near = code.fma(whole, -_LN2_WHOLE[0] / 8, x)
    r = code.fma(whole, -_LN2_WHOLE[1] / 8, near)
    n = code.bits(shifted, I32)
    powers = [bits + (spare << 23) for bits in _POWERS]
    power = code.bits(code.looked_up(powers, n) + (n << 20), F32)
    small = code.fma(near * near, polynomial(code, near, _EXP_TABLE), r)
    return code.fma(small, power, power)


_POWERS = [struct.unpack("<i", struct.pack("<f", 2.0 ** (k / 8)))[0] - (k << 20) for k in range(8)]


def _shifted(code: Code, x: Value, add: int) -> tuple[Value, tuple[Value, Value]]:
    """A float with n + `add` in its low bits, and r, where x = n log 2 + r: nearly, and to all digits.

    n is multiplied before anything is rounded, so the first part of log 2 needs no bits to spare.
    """
    magic = layout_of(x).magic + add
    shifted = code.fma(x, LOG2_E, magic)
    whole = shifted - magic
    high, low = by_layout(x, _LN2_WHOLE, LN2_64)
    near = code.fma(whole, -high, x)
    return shifted, (near, code.fma(whole, -low, near))


def _times_exp(code: Code, factor: Value, argument: tuple[Value, Value]) -> Value:
    """factor * exp(r), rounded once at the end; the factor is a power of two."""
    near, r = argument
    if layout_of(r).mantissa < 30:  # a short chain, so the fewest instructions win
        rest = polynomial(code, near, _EXP_32)  # which need not wait for the last digits
    else:
        rest = spread_polynomial(code, r, _EXP_64)
    small = code.fma(r * r, rest, r)
    return code.fma(small, factor, factor)


def exp_of_sum(code: Code, x: Value, small: Value) -> Value:
    """e**(x + small), for a `small` so small that e**small is 1 + small."""
    n, r, rest = _reduced(code, x)
    rest = code.fma(small, (r + rest) + 1.0, rest)
    return scaled(code, (r + rest) + 1.0, n)


def expm1(code: Code, x: Value) -> Value:
    """e**x - 1, without loss near 0.

    (exp(r) - 1 + 1 - 2**-n) * 2**n, where the sum of r and 1 - 2**-n is kept with its rounding error.
    """
    low, high = by_layout(x, (-20.0, 89.0), (-40.0, 710.0))  # below, the result is -1
    n, r, rest = _reduced(code, limited(code, x, low, high))
    most = by_layout(x, 100, 1000)  # from there on 2**-n is nothing beside 1
    base = 1.0 - power_of_two(code, -code.select(n > most, most, n), x)
    total = base + r
    error = r - (total - base)
    result = scaled(code, total + (error + rest), n)
    return code.select(x.equals(0.0), x, result)  # keeps the sign of zero
