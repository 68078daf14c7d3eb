"""Shared by the tests of this folder: targets to test on, and kernels called with NumPy arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.llvm.ir.target import Target, host
from magmadnn.compiler.llvm.kernel import scratch_bytes

# The host's instructions with other vector widths: LLVM splits what the registers cannot hold, so the
# code paths of AVX-512 and NEON run, and must give the same bits, on any machine.
WIDTHS = [
    replace(host(), vector_bytes=b, vector_registers=r) for b, r in ((16, 32), (32, 16), (64, 32))
]


def call(made: Any, target: Target, batch: int = 0, **slots: Any) -> None:
    """Run a kernel with `slots` as its argument block."""
    loaded = kernel.load([made], target)[0]
    loaded(kernel.block(made, **slots), kernel.scratch(scratch_bytes(made, target)), batch)


def gemm(
    made: Gemm | Gemv,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    target: Target,
    tiles: list[tuple[int, int, int, int]] | None = None,
    **slots: Any,
) -> np.ndarray:
    """Run a Gemm or Gemv on all of `c` or on its `tiles` (row0, row1, column0, column1); returns `c`."""
    k = a.shape[0] if made.transpose_a else a.shape[1]
    for row0, row1, column0, column1 in tiles or [(0, c.shape[0], 0, c.shape[1])]:
        call(
            made,
            target,
            row0=row0,
            row1=row1,
            column0=column0,
            column1=column1,
            k=k,
            a=a,
            lda=a.strides[0] // a.itemsize,
            b=b,
            ldb=b.strides[0] // b.itemsize,
            c=c,
            ldc=c.strides[0] // c.itemsize,
            **slots,
        )
    return c


def matrix(
    rng: np.random.Generator, rows: int, columns: int, dtype: str, spare: int = 0
) -> np.ndarray:
    """Random elements of both signs, in rows `columns + spare` elements apart."""
    return rng.standard_normal((rows, columns + spare)).astype(dtype)[:, :columns]
