"""What sizes decide of a kernel: rules that look at sizes and strides only, never at clocks or threads.

Which kernel computes a matrix product: the one for a single row or column, whose matrix is stored along k,
sums in another order than the one for whole matrices (`gemv.py` of the emitter), so the choice belongs to the
result.

Which results are stored past the caches: a cache line that is stored is first read from memory, unless it is
stored past the caches, in whole vectors. That saves a third of the traffic of a kernel that reads one matrix
and writes another, but whoever reads the result next finds nothing of it in a cache. It changes no bit.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.kernels.operands import FULL, Result
from magmadnn.compiler.kernels.rows import Rows
from magmadnn.graph.dim import Size

_BYTES = {"float32": 4, "float64": 8}
_SHARE = 0.25  # of the last cache: of larger results that nobody reads in the same plan little would be left
_LARGE = 16 << 20  # bytes, too many for any: a last cache of hundreds of MiB serves many cores


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


def streaming(
    rows: Rows,
    values: Mapping[str, int],
    read_later: Container[str],
    last_cache_bytes: int,
    vector_bytes: int,
) -> Rows:
    """The kernel with the results that are stored past the caches.

    Args:
        rows: the kernel.
        values: its slots, for the whole matrix.
        read_later: names of results that are read again in the same run: only where they are larger than
            the last cache are they gone from there by then.
        last_cache_bytes: size of the last cache.
        vector_bytes: of a vector register.
    """
    operands = {values[operand.name] for operand in rows.operands}

    def is_streamed(result: Result) -> bool:
        if result.spread != FULL or result.dtype not in _BYTES:
            return False
        if values[result.name] in operands:
            return False  # its lines are in the cache already
        item = _BYTES[result.dtype]
        starts = (values[result.name], item * values[f"{result.name}_row"])
        sizes = (item * values["column1"],)
        few = min(_SHARE * last_cache_bytes, _LARGE)
        least = last_cache_bytes if result.name in read_later else few
        whole = all(number % vector_bytes == 0 for number in (*starts, *sizes))
        return whole and item * values["row1"] * values["column1"] >= least

    stored = (result for stage in rows.stages for result in stage.store)
    streamed = tuple(r.name for r in stored if is_streamed(r))
    return rows if streamed == rows.streamed else replace(rows, streamed=streamed)
