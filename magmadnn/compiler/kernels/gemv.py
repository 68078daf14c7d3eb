"""Products of a matrix and a vector: C = op(A) op(B) where C is a single row or a single column."""

from __future__ import annotations

from dataclasses import dataclass

from .gemm import PLAIN_SLOTS, Epilogue, Loading


@dataclass(frozen=True)
class Gemv:
    """The kernel C = op(A) op(B) where C has one row, or one column; slots are those of `Gemm`.

    The vector's elements lie side by side where the matrix is read along k (see `along_k`).

    Attributes:
        dtype: float32 or float64, of everything but what loadings say.
        transpose_a: A is stored [k, m] rather than [m, k].
        transpose_b: B is stored [n, k] rather than [k, n].
        column: C is one column, `column0`, and rows `row0` to `row1` are computed; otherwise C is row
            `row0`, and columns `column0` to `column1` are.
        epilogue: what is done to the elements last.
        load_a: how A is read where it is no matrix of `dtype`.
        load_b: the same of B.
    """

    dtype: str
    transpose_a: bool = False
    transpose_b: bool = False
    column: bool = False
    epilogue: Epilogue | None = None
    load_a: Loading | None = None
    load_b: Loading | None = None

    @property
    def along_k(self) -> bool:
        """Whether the matrix is stored [elements of C, k], rather than [k, elements of C]."""
        return not self.transpose_a if self.column else self.transpose_b

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots."""
        return (*PLAIN_SLOTS, *(self.epilogue.slots if self.epilogue else ()))
