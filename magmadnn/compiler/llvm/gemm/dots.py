"""Sums of products of pairs of bfloat16, by the instruction of AVX512-BF16.

A lane of A and B is a word of two elements (`read.py`). The instruction adds the product of the upper
ones first, then that of the lower ones, each rounded to nearest, ties to even, as an FMA does; subnormal
numbers count as zero, and become zero. So an element of C is one chain in the order k = 1, 0, 3, 2, ...
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from magmadnn.compiler.llvm.ir.builder import Code, Value, item_bytes, vector


class _BFloat(ir.Type):  # type: ignore[misc]  # llvmlite has no types of its own
    """LLVM's bfloat, which llvmlite does not name."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def pair_dot(code: Code, a: Value, b: Value, total: Value) -> Value:
    """`total` with the products of both elements of each word of `a` and `b` added."""
    lanes = int(total.type.count)
    halves = vector(_BFloat(), 2 * lanes)
    operands = [code.ir.bitcast(word.ir, halves) for word in (a, b)]
    bits = 8 * lanes * item_bytes(total.type)
    name = f"llvm.x86.avx512bf16.dpbf16ps.{bits}"
    return code.intrinsic(name, total.type, [total.ir, *operands])
