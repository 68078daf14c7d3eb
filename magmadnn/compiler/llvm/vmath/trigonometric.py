"""sin and cos for all finite arguments: x = n pi/2 + r, then polynomials for |r| <= pi/4.

float32 is computed in float64. Up to 2**20, n pi/2 is subtracted in three parts whose products with n
are exact (Cody and Waite). Further out, where that would lose all digits, lanes are reduced one by one
with as many bits of 2/pi as they need (M. Payne, R. Hanek, "Radian reduction for trigonometric
functions", SIGNUM Newsletter 18, 1983).
"""

from __future__ import annotations

import functools
import math

from llvmlite import ir

from magmadnn.compiler.llvm.ir.builder import F32, F64, I64, Array, Code, Value, item_type

from .floats import magnitude, polynomial, rounded

_LIMIT = 2.0**20
# pi/2 as a sum; the first two have 33 bits, so that n times them is exact for n below 2**20.
_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)

# (sin(r) / r - 1) / r**2 and (cos(r) - 1 + r**2 / 2) / r**4 as polynomials of r**2.
_SIN = (
    -0.16666666666666666, 0.008333333333333323, -0.0001984126984125499, 2.7557319214148892e-06,
    -2.5052104900549033e-08, 1.6058365194377223e-10, -7.578625551361513e-13,
)  # fmt: skip
_COS = (
    0.041666666666666664, -0.0013888888888888874, 2.480158730157138e-05, -2.755731921532564e-07,
    2.087675435465663e-09, -1.1470291939591143e-11, 4.738048263869593e-14,
)  # fmt: skip


def sin(code: Code, x: Value) -> Value:
    """Sine; NaN at infinity. Keeps the sign of zero."""
    return code.select(x.equals(0.0), x, _turned(code, x, 0))


def cos(code: Code, x: Value) -> Value:
    """Cosine; NaN at infinity."""
    return _turned(code, x, 1)


def _turned(code: Code, x: Value, quarters: int) -> Value:
    """sin(x + quarters * pi/2)."""
    if item_type(x.type) == F32:
        return code.convert(_turned(code, code.convert(x, F64), quarters), F32)
    r, n = _reduced(code, x)
    z = r * r
    sine = code.fma(r, z * polynomial(code, z, _SIN), r)
    cosine = code.fma(z * z, polynomial(code, z, _COS), code.fma(z, -0.5, 1.0))
    place = n + quarters
    result = code.select((place & 1).equals(0), sine, cosine)
    result = code.select((place & 2).equals(0), result, -result)
    return code.select(magnitude(code, x) < math.inf, result, math.nan)


def _reduced(code: Code, x: Value) -> tuple[Value, Value]:
    """r and n where x = n pi/2 + r; of n the two low bits are right."""
    far = magnitude(code, x) > _LIMIT
    whole, n = rounded(code, code.select(far, 0.0, x), 2.0 / math.pi)
    near = x
    for part in _PARTS:
        near = code.fma(whole, -part, near)
    r, quarter = code.variable(near), code.variable(n)
    with code.when(code.any(far)):
        lanes = int(x.type.count) if isinstance(x.type, ir.VectorType) else 1
        xs, rs, ns = (code.stack(item, lanes) for item in (F64, F64, I64))
        for array, value in ((xs, x), (rs, near), (ns, n)):
            array.put(0, value)
        with code.loop(0, lanes) as lane:
            arrays = (xs.at(lane), rs.at(lane), ns.at(lane))
            with code.when(magnitude(code, xs[lane]) > _LIMIT):
                code.subroutine("reduce_far", _write_far, *arrays)
        if isinstance(x.type, ir.VectorType):
            r.value, quarter.value = rs.vector(0, lanes), ns.vector(0, lanes)
        else:
            r.value, quarter.value = rs[0], ns[0]
    return r.value, quarter.value


@functools.cache
def _two_over_pi() -> tuple[int, ...]:
    """The bits of 2/pi in 64-bit words, after one word of zeros.

    pi from Machin's formula, 16 arctan(1/5) - 4 arctan(1/239), in integers.
    """
    words, guard = 21, 64
    one = 1 << (64 * words + guard)

    def arctan_of_inverse(n: int) -> int:
        power, total, k = one // n, 0, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total

    pi = 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)
    bits = (2 * one * one // pi) >> guard
    return (0, *((bits >> (64 * (words - 1 - i))) & (2**64 - 1) for i in range(words)))


def _write_far(code: Code, x: Array, r: Array, n: Array) -> None:
    """One number beyond the limit: x[0] to r[0] and n[0]; anything for infinity.

    x = m 2**e with an integer m. Bits of 2/pi that m 2**e turns into multiples of 4 do not count; the
    next 192 give x 2/pi modulo 4 with 126 bits after the point.
    """
    bits = code.bits(x[0], I64)
    exponent = (bits.shift_right(52) & 0x7FF) - 1075
    m = (bits & ((1 << 52) - 1)) | (1 << 52)
    words = code.constants("two_over_pi", I64, _two_over_pi())
    first = exponent + 62  # the bit of weight 1/2 is bit 64 of the table
    index, shift = first.shift_right(6), first & 63
    window = [
        (words[index + i] << shift) | words[index + (i + 1)].shift_right(1).shift_right(63 - shift)
        for i in range(3)
    ]
    wide = ir.IntType(128)
    high, middle, low = (code.widened(m, wide) * code.widened(word, wide) for word in window)
    product = (high << 64) + middle + low.shift_right(64)
    fraction = product << 2
    negative = fraction < 0
    size = code.select(negative, -fraction, fraction)
    zeros = code.leading_zeros(size)
    top = code.narrowed((size << zeros).shift_right(64), I64)
    coarse = code.convert((top & -2048).shift_right(11), F64) * 2.0**11  # 53 bits: exact
    fine = code.convert(top & 2047, F64)
    high_part, low_part = _HALF_PI
    angle = code.fma(coarse, high_part, code.fma(coarse, low_part, fine * high_part))
    scale = code.bits((1023 - 64 - code.narrowed(zeros, I64)) << 52, F64)
    angle = angle * scale
    r[0] = code.select(bits < 0, -angle, angle)  # so far for |x|
    r[0] = code.select(negative, -r[0], r[0])
    quarter = code.narrowed(product.shift_right(126), I64) + code.select(
        negative, 1, code.integer(0)
    )
    n[0] = code.select(bits < 0, -quarter, quarter)
