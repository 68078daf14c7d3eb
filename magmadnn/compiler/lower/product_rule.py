"""Which kernel computes a matrix product of given sizes.

A rule that looks at sizes and strides only, never at clocks or threads: the kernel for a single row or
column, whose matrix is stored along k, sums in another order than the one for whole matrices (`gemv.py` of
the emitter), and so the choice belongs to the result.
"""

from __future__ import annotations

from collections.abc import Mapping

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.graph.dim import Size


def selected(gemm: Gemm, values: Mapping[str, Size]) -> Gemm | Gemv:
    """The kernel for a product.

    Args:
        gemm: the product.
        values: the slots of the whole product, from row 0 and column 0 on.
    """
    rows, columns = values["row1"], values["column1"]
    if gemm.joined or 1 not in (rows, columns):
        return gemm
    # A single element is best seen as a column: a row of A times the vector B.
    gemv = Gemv(
        gemm.dtype,
        gemm.transpose_a,
        gemm.transpose_b,
        columns == 1,
        gemm.epilogue,
        gemm.load_a,
        gemm.load_b,
    )
    if gemv.along_k and _vector_step(gemv, values) != 1:
        return gemm
    return gemv


def _vector_step(gemv: Gemv, values: Mapping[str, Size]) -> Size:
    """Elements from one element of the vector to the next."""
    if gemv.column:
        return 1 if gemv.transpose_b else values["ldb"]
    return values["lda"] if gemv.transpose_a else 1
