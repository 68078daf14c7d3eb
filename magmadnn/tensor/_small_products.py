"""Products of many small matrices that are there: by native threads, where that is faster than NumPy."""

from __future__ import annotations

import math

import numpy as np

from magmadnn.graph.op import Array
from magmadnn.ops.contraction import compute_stacks_by

_LARGEST = 128  # rows and columns
_UNROLLED = 32  # sizes up to which a kernel is compiled for them alone
_LARGE, _LINE = 4 << 20, 64  # bytes of results that are stored past the caches, and of a cache line
_LEAST = 200_000  # multiply-adds of a stack, a call of NumPy's for a matrix counted as some
_CALL = 200


def product_of_stacks(x: Array, w: Array) -> Array | None:
    """x @ w for stacks of one real dtype, packed row by row; None for others."""
    if x.dtype.char not in "fd" or x.dtype != w.dtype or min(x.ndim, w.ndim) < 2:
        return None
    (m, k), n = x.shape[-2:], w.shape[-1]
    leading = x.shape[:-2]
    if w.shape[:-2] != leading:
        leading = np.broadcast_shapes(leading, w.shape[:-2])
    count = math.prod(leading)
    if not 0 < min(m, k, n) <= max(m, k, n) <= _LARGEST or count * (m * k * n + _CALL) < _LEAST:
        return None
    if count == 1 or not (x.flags.c_contiguous and w.flags.c_contiguous):
        return None
    from magmadnn.runtime.cpu.matrices.stacks import on_stack

    past = count * m * n * x.itemsize >= _LARGE and n * x.itemsize % _LINE == 0
    known = (m, k, n, int(past)) if max(m, k, n) <= _UNROLLED else ()
    return on_stack("gemm", (), (x, w), (m, n), known)


compute_stacks_by(product_of_stacks)
