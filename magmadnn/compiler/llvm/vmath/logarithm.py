"""log and log1p: x = 2**k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), and log(1 + f) from a fit."""

from __future__ import annotations

import math

from magmadnn.compiler.llvm.ir.builder import F32, Code, Value, item_type

from .exponential import LN2_64
from .floats import layout_of, polynomial

_LN2_32 = (0.693147182464599609375, -1.904654299957768e-09)

# (log(1 + f) - f + f**2 / 2) / f**3 in float32.
_LOG_32 = (
    0.3333331048488617, -0.24999986588954926, 0.20002226531505585, -0.16669252514839172,
    0.14218664169311523, -0.12384334951639175, 0.11872926354408264, -0.11789865791797638,
    0.06915540248155594,
)  # fmt: skip
# (log((1 + s) / (1 - s)) / s - 2) / s**2 as a polynomial of s**2, s = f / (2 + f), in float64.
_LOG_64 = (
    0.6666666666666666, 0.40000000000006286, 0.2857142856907296, 0.22222222648751364,
    0.18181775508443276, 0.15387097654772733, 0.1324996193316752, 0.13252755703671934,
)  # fmt: skip


def split(code: Code, x: Value) -> tuple[Value, Value]:
    """k as a float and f where x = 2**k (1 + f), for positive normal or subnormal x."""
    layout = layout_of(x)
    up = layout.mantissa + 1
    small = x < layout.tiny
    x = code.select(small, x * 2.0**up, x)
    root_half = code.bits(code.lift(math.sqrt(0.5), x.type), layout.bits)
    one = code.bits(code.lift(1.0, x.type), layout.bits)
    moved = code.bits(x, layout.bits) + (one - root_half)
    k = (moved >> layout.mantissa) - layout.bias
    k = k - code.select(small, code.lift(up, k.type), code.lift(0, k.type))
    mantissa = (moved & ((1 << layout.mantissa) - 1)) + root_half
    return code.convert(k, layout.item), code.bits(mantissa, layout.item) - 1.0


def _joined(code: Code, k: Value, f: Value, small: Value) -> Value:
    """k log 2 + log(1 + f) + small."""
    half_square = f * f * 0.5
    if item_type(f.type) == F32:
        high, low = _LN2_32
        tail = f * f * f * polynomial(code, f, _LOG_32) - half_square
    else:
        high, low = LN2_64
        s = f / (f + 2.0)
        z = s * s
        tail = s * (half_square + z * polynomial(code, z, _LOG_64)) - half_square
    return code.fma(k, high, f + (tail + code.fma(k, low, small)))


def log(code: Code, x: Value) -> Value:
    """Natural logarithm; -inf at 0, NaN below."""
    k, f = split(code, x)
    return _at_the_ends(code, x, 0.0, _joined(code, k, f, code.zero(x.type)))


def log1p(code: Code, x: Value) -> Value:
    """log(1 + x), without loss near 0: what rounding 1 + x loses is added as a small term."""
    total = x + 1.0
    k, f = split(code, total)
    lost = code.select(total > 2.0, 1.0 - (total - x), x - (total - 1.0))
    result = _joined(code, k, f, lost / total)
    result = code.select(x.equals(0.0), x, result)  # keeps the sign of zero
    return _at_the_ends(code, x, -1.0, result)


def _at_the_ends(code: Code, x: Value, pole: float, result: Value) -> Value:
    """`result` for x inside the domain; -inf at its pole, NaN below and for NaN, inf at inf."""
    outside = code.select(x.equals(pole), -math.inf, code.lift(math.nan, x.type))
    result = code.select(x > pole, result, outside)
    return code.select(x.equals(math.inf), x, result)
