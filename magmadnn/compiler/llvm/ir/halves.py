"""bfloat16 and float16 as vector code: 16 bits in memory, float32 in registers.

Conversions are those of NumPy and ml_dtypes bit for bit: rounded to nearest, ties to even; subnormal numbers
are kept, what is too large becomes an infinity, NaN stays NaN. float16 is converted by the CPU's instructions
where it has them (F16C, all 64-bit ARM); everything else is integer arithmetic on the bits, which needs no
run-time library.
"""

from __future__ import annotations

import struct

from .builder import F32, I16, I32, Code, Value

_SIGN = 0x8000
_INFINITY = 0x7F800000  # of float32
_OVERFLOW = 0x47800000  # 2^16: float16 has no such number
_NORMAL = 0x38800000  # 2^-14, the smallest normal number of float16
_HALF = 0x3F000000  # 0.5, beside which the last digit of float32 is the last of a subnormal float16
_REBIAS = (127 - 15) << 23  # from float16's exponents to float32's


def widened(code: Code, stored: Value, dtype: str) -> Value:
    """16 bits of memory as float32; exact."""
    if dtype == "float16" and code.halves:
        return code.from_half(stored)
    wide = code.widened(stored, I32)
    if dtype == "bfloat16":
        return code.bits(wide << 16, F32)
    shifted = (wide & 0x7FFF) << 13
    normal = shifted + _REBIAS
    exponent = wide & 0x7C00
    special = normal + _REBIAS  # 255, float32's exponent of infinity and NaN
    (least,) = struct.unpack("<f", struct.pack("<I", _NORMAL))
    small = code.bits(code.bits(normal + (1 << 23), F32) - least, I32)
    size = code.select(
        exponent.equals(0x7C00), special, code.select(exponent.equals(0), small, normal)
    )
    return code.bits(size | ((wide & _SIGN) << 16), F32)


def narrowed(code: Code, x: Value, dtype: str) -> Value:
    """float32 rounded to the 16 bits that memory keeps."""
    if dtype == "float16" and code.halves:
        return code.to_half(x)
    bits = code.bits(x, I32)
    made = _brain(code, x, bits) if dtype == "bfloat16" else _half(code, bits)
    return code.convert(made, I16)


def _brain(code: Code, x: Value, bits: Value) -> Value:
    high = bits.shift_right(16)
    nearest = (bits + 0x7FFF + (high & 1)).shift_right(16)
    return code.select(x.differs(x), (high & _SIGN) | 0x7FC0, nearest)


def _half(code: Code, bits: Value) -> Value:
    size = bits & 0x7FFFFFFF
    nearest = (size - _REBIAS + 0xFFF + (size.shift_right(13) & 1)).shift_right(13)
    small = code.bits(code.bits(size, F32) + 0.5, I32) - _HALF
    payload = (size & 0x7FFFFF).shift_right(13)
    nan = code.select(payload.equals(0), 1, payload) | 0x7C00
    large = code.select(size > _INFINITY, nan, 0x7C00)
    finite = code.select(size < _NORMAL, small, nearest)
    return code.select(size >= _OVERFLOW, large, finite) | (bits.shift_right(16) & _SIGN)


def rounded(code: Code, x: Value, dtype: str) -> Value:
    """float32 with the digits that the dtype has."""
    return widened(code, narrowed(code, x, dtype), dtype)
