"""How the factors of a matrix product come from memory into copies: as they are, or converted on the way.

A factor of half precision is stored so, or in float32, and then it is rounded here. What a copy holds is
either float32, one element for each step of k; or, for CPUs that add products of pairs of bfloat16
(AVX512-BF16), words of 32 bits: the elements of two steps of k, the first in the low bits. Where k is odd
the last word has a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from magmadnn.compiler.kernels.gemm import Gemm, Loading
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.llvm.expressions.formulas import memory_item
from magmadnn.compiler.llvm.ir.builder import FLOATS, I16, I32, Array, Code, Value
from magmadnn.compiler.llvm.ir.halves import narrowed, rounded, widened
from magmadnn.compiler.llvm.ir.target import Target

Across = Callable[[Value, int, Value | None], Value]


@dataclass(frozen=True)
class Reader:
    """Reads one factor.

    Attributes:
        dtype: of the product.
        loading: how the factor is read; None: as it lies in memory.
        pairs: whether copies hold words of two elements.
    """

    dtype: str
    loading: Loading | None = None
    pairs: bool = False

    @property
    def item(self) -> Any:
        """The type of an element in memory."""
        return memory_item(self.loading.stored) if self.loading else FLOATS[self.dtype]

    @property
    def copied(self) -> Any:
        """The type of an element of a copy."""
        return I32 if self.pairs else FLOATS[self.dtype]

    @property
    def per_step(self) -> int:
        """Steps of k that one element of a copy holds."""
        return 2 if self.pairs else 1

    @property
    def name(self) -> str:
        """What the code depends on, as a part of a name."""
        way = f"{self.loading.stored}_{self.loading.digits}" if self.loading else self.dtype
        return f"{way}{'_pairs' * self.pairs}"

    def steps(self, depth: Value) -> Value:
        """Elements of a copy for `depth` steps of k."""
        return (depth + 1) // 2 if self.pairs else depth

    def number(self, code: Code, start: Array, index: Value) -> Value:
        """One element, in the product's dtype."""
        return self._real(code, start[index])

    def vector(self, code: Code, start: Array, at: Value, lanes: int, mask: Value | None) -> Value:
        """Elements side by side in the product's dtype, zero where `mask` is false."""
        return self._real(code, start.vector(at, lanes, mask))

    def across(
        self, code: Code, start: Array, row: Value, depth: Value
    ) -> Iterator[tuple[Value, Across]]:
        """Loops over rows `row` apart: the number of each element of a copy, and what reads some of them."""
        if not self.pairs:
            with code.loop(0, depth) as p:
                source = start.at(p * row)
                yield p, lambda j, lanes, mask: self.vector(code, source, j, lanes, mask)
            return
        with code.loop(0, depth // 2) as p:
            low = start.at(p * 2 * row)
            yield p, self._words(code, low, low.at(row))
        with code.when((depth % 2).equals(1)):
            yield depth // 2, self._words(code, start.at((depth - 1) * row), None)

    def _words(self, code: Code, low: Array, high: Array | None) -> Across:
        def read(j: Value, lanes: int, mask: Value | None) -> Value:
            word = code.widened(self._bits(code, low.vector(j, lanes, mask)), I32)
            if high is None:
                return word
            upper = code.widened(self._bits(code, high.vector(j, lanes, mask)), I32)
            return word | (upper << 16)

        return read

    def along(
        self, code: Code, depth: Value, lanes: int
    ) -> Iterator[tuple[Value, Callable[[Array], Value]]]:
        """Loops over `depth` elements of rows: where in a copy `lanes` of them begin, and what reads them."""
        wide = lanes * self.per_step
        whole = depth - depth % wide

        def read(at: Value, mask: Value | None) -> Callable[[Array], Value]:
            return lambda row: self._copied(code, row.vector(at, wide, mask))

        with code.loop(0, whole, wide) as at:
            yield at // self.per_step, read(at, None)
        with code.when(whole < depth):
            yield whole // self.per_step, read(whole, code.first(depth - whole, wide))

    def _copied(self, code: Code, stored: Value) -> Value:
        """Elements of a row as a copy holds them."""
        if not self.pairs:
            return self._real(code, stored)
        return code.joined(self._bits(code, stored), I32)

    def _real(self, code: Code, stored: Value) -> Value:
        """What was loaded, in the product's dtype."""
        if self.loading is None:
            return stored
        if self.loading.stored == self.loading.digits:
            return widened(code, stored, self.loading.digits)
        return rounded(code, stored, self.loading.digits)

    def _bits(self, code: Code, stored: Value) -> Value:
        """What was loaded, as 16 bits each."""
        assert self.loading is not None
        if stored.type.element == I16:
            return stored
        return narrowed(code, stored, self.loading.digits)


def readers_of(product: Gemm | Gemv, target: Target) -> tuple[Reader, Reader]:
    """How A and B are read on a target.

    A rule of kernel and CPU: products of pairs are added in an order of their own (`dots.py`), so
    nothing that is measured may choose them.
    """
    loads = (product.load_a, product.load_b)
    halves = [loading.digits for loading in loads if loading is not None]
    pairs = target.dots and isinstance(product, Gemm) and halves == ["bfloat16"] * 2
    a, b = (Reader(product.dtype, loading, pairs) for loading in loads)
    return a, b
