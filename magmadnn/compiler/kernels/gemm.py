"""Matrix products: C = op(A) op(B), row-major, with an epilogue folded in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from magmadnn.backends.cpu.forks import cached_property

from .formula import Formula
from .kernel import hashed_once
from .operands import Operand, Result, all_slots

MOST_AXES = 4  # of memory that make the rows of a factor, and as many its columns
PLAIN_SLOTS = ("row0", "row1", "column0", "column1", "k", "a", "lda", "b", "ldb", "c", "ldc")


class Epilogue(Protocol):
    """What is done to the elements of C before they are stored: a frozen dataclass, mostly `Finish`."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slots it adds to the argument block."""
        ...


@hashed_once
@dataclass(frozen=True)
class Finish:
    """An epilogue: the formula of the result, and further results, over `("product",)` and operands.

    Attributes:
        operands: what formulas read beside the product.
        results: what is stored besides.
        formula: what is stored as the product's result.
    """

    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    formula: Formula

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Names of the slots that it adds."""
        return all_slots([*self.operands, *self.results])


@dataclass(frozen=True)
class Loading:
    """How a product of float32 reads a factor of half precision; nothing else of it lies in memory.

    Attributes:
        stored: the factor's dtype in memory: that half, or float32, which is rounded on the way.
        digits: the half precision, bfloat16 or float16, that its elements have.
    """

    stored: str
    digits: str

    @classmethod
    def widening(cls, half: str) -> Loading:
        """Halves that become float32."""
        return cls(half, half)


def axis_slots(factor: str, side: str) -> tuple[str, ...]:
    """Slots of the axes that are "row" or "column" of "a" or "b": sizes and elements apart, inwards."""
    return tuple(
        f"{factor}_{side}_{what}{k}" for k in range(MOST_AXES) for what in ("size", "step")
    )


@hashed_once
@dataclass(frozen=True)
class Gemm:
    """The kernel C = op(A) op(B), for rows and columns of C.

    Slots: `row0, row1, column0, column1`, the part of C to compute; `k`; `a, lda, b, ldb, c, ldc`, the
    addresses of the whole matrices and the elements from row to row; then those of the axes of A, where they
    are joined, and of the epilogue.

    Attributes:
        dtype: float32 or float64, of everything but what loadings say.
        transpose_a: A is stored [k, m] rather than [m, k].
        transpose_b: B is stored [n, k] rather than [k, n].
        epilogue: what is done to the elements last.
        unread: nobody reads C afterwards, only what the epilogue stores besides: C is room for sums.
        blocking: how the emitter cuts its loops, in its own terms; None: by its own rule.
        load_a: how A is read where it is no matrix of `dtype`.
        load_b: the same of B. Emitters for devices know factors that are both stored as `halves` only.
        shared: "a" or "b", a factor that was copied for all parts of C, as the emitter says; then slot `lda`
            or `ldb` is the distance of the copy's blocks. "": both lie in memory as they are.
        joined_a: 0, or of how many axes of memory the rows of A are: then A is a matrix whose rows are
            the leading axes of a strided array, and its columns the others, each joined in their order.
            It is not transposed, loaded or shared, and `lda` is not used. Emitters for devices know none;
            their runtime takes two axes for a stack of products.
        joined_b: the same of B.
    """

    dtype: str
    transpose_a: bool = False
    transpose_b: bool = False
    epilogue: Epilogue | None = None
    unread: bool = False
    blocking: object | None = None
    load_a: Loading | None = None
    load_b: Loading | None = None
    shared: str = ""
    joined_a: int = 0
    joined_b: int = 0

    @property
    def joined(self) -> str:
        """Which factors have joined axes: their letters."""
        return "a" * (self.joined_a > 0) + "b" * (self.joined_b > 0)

    @property
    def halves(self) -> str | None:
        """The half precision in which both A and B are stored; None where they are not."""
        load = self.load_a
        return load.stored if load and load == self.load_b and load.stored == load.digits else None

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots."""
        sides = ((factor, side) for factor in self.joined for side in ("row", "column"))
        axes = [slot for factor, side in sides for slot in axis_slots(factor, side)]
        return (*PLAIN_SLOTS, *axes, *(self.epilogue.slots if self.epilogue else ()))
