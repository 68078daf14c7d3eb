"""What the functions of this folder share: the layout of floating-point numbers, polynomials, scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from magmadnn.compiler.llvm.ir.builder import F32, F64, I32, I64, Code, Number, Value, item_type


@dataclass(frozen=True)
class Layout:
    """A floating-point format.

    Attributes:
        item: its LLVM type.
        bits: the integer type of the same size.
        mantissa: bits of the mantissa that are stored.
        bias: of the exponent.
        tiny: the smallest normal number.
    """

    item: Any
    bits: Any
    mantissa: int
    bias: int
    tiny: float

    @property
    def magic(self) -> float:
        """1.5 * 2**mantissa: adding it rounds to an integer, which then stands in the low bits."""
        return 1.5 * 2.0**self.mantissa


_LAYOUTS = {
    F32: Layout(F32, I32, 23, 127, 2.0**-126),
    F64: Layout(F64, I64, 52, 1023, 2.0**-1022),
}


def layout_of(x: Value) -> Layout:
    """The format of the elements of `x`."""
    return _LAYOUTS[item_type(x.type)]


def polynomial(code: Code, x: Value, coefficients: Sequence[float]) -> Value:
    """c0 + c1 x + c2 x**2 + ... by Horner's rule."""
    *others, last = coefficients
    total = code.lift(last, x.type)
    for c in reversed(others):
        total = code.fma(x, total, c)
    return total


def spread_polynomial(code: Code, x: Value, coefficients: Sequence[float]) -> Value:
    """The same by Estrin's scheme: pairs, pairs of pairs: few operations that wait for each other."""
    terms = [code.lift(c, x.type) for c in coefficients]
    power = x
    while len(terms) > 1:
        pairs = [code.fma(power, b, a) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[2 * len(pairs) :]
        power = power * power
    return terms[0]


def rounded(code: Code, x: Value, factor: float) -> tuple[Value, Value]:
    """The integer nearest to x * factor, as a float and as an integer; any value where x is NaN.

    |x * factor| must stay below 2**(mantissa - 1). No conversion is used, as LLVM gives one of NaN no
    meaning.
    """
    layout = layout_of(x)
    shifted = code.fma(x, factor, layout.magic)
    magic = code.bits(code.lift(layout.magic, x.type), layout.bits)
    return shifted - layout.magic, code.bits(shifted, layout.bits) - magic


def power_of_two(code: Code, n: Value, like: Value) -> Value:
    """2**n for integers n of a normal number's range."""
    layout = layout_of(like)
    return code.bits((n + layout.bias) << layout.mantissa, layout.item)


def scaled(code: Code, x: Value, n: Value) -> Value:
    """x * 2**n for x near 1, rounded once, subnormal results and overflow included."""
    half = n >> 1  # in two steps, as 2**n alone may be out of range
    return x * power_of_two(code, half, x) * power_of_two(code, n - half, x)


def limited(code: Code, x: Value, low: float, high: float) -> Value:
    """x between `low` and `high`; NaN stays NaN."""
    below = code.select(code.lift(high, x.type) < x, high, x)
    return code.select(code.lift(low, x.type) > below, low, below)


def magnitude(code: Code, x: Value) -> Value:
    """|x|."""
    return code.call_like("llvm.fabs", x)


def with_sign(code: Code, x: Value, sign: Number) -> Value:
    """|x| with the sign of `sign`."""
    return code.call_like("llvm.copysign", x, sign)


def by_layout(x: Value, single: Any, double: Any) -> Any:
    """`single` for float32 elements, `double` for float64."""
    return single if item_type(x.type) == F32 else double
