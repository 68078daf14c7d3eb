"""The kernel for a product follows from its sizes and strides alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.lower.size_rules import selected
from magmadnn.runtime import Executable
from magmadnn.runtime.threads import set_threads, thread_count

BOTH = list(itertools.product((False, True), repeat=2))


def values(m: int, k: int, n: int, lda: int = 1, ldb: int = 1) -> dict[str, int]:
    return {"row1": m, "column1": n, "k": k, "lda": lda, "ldb": ldb}


@pytest.mark.parametrize(("ta", "tb"), BOTH)
def test_single_rows_and_columns_have_a_kernel_of_their_own(ta, tb):
    made = Gemm("float32", ta, tb)
    assert selected(made, values(1, 7, 5)) == Gemv("float32", ta, tb, column=False)
    assert selected(made, values(5, 7, 1)) == Gemv("float32", ta, tb, column=True)
    assert selected(made, values(1, 7, 1)) == Gemv("float32", ta, tb, column=True)
    assert selected(made, values(2, 7, 2)) is made


def test_a_vector_with_gaps_beside_a_matrix_stored_along_k():
    for_column, for_row = Gemm("float32"), Gemm("float32", True, True)
    assert isinstance(selected(for_column, values(5, 7, 1, ldb=3)), Gemm)
    assert isinstance(selected(for_row, values(1, 7, 5, lda=3)), Gemm)
    # Where rows are added up, gaps cost nothing.
    assert isinstance(selected(Gemm("float32", True), values(5, 7, 1, ldb=3)), Gemv)


@pytest.mark.parametrize(("ta", "tb"), BOTH)
@pytest.mark.parametrize(("m", "n"), [(1, 1031), (1033, 1), (1, 1)])
def test_in_a_program(ta, tb, m, n):
    """Products of one row or column, with an epilogue, for one and two threads."""
    rng = np.random.default_rng(11)
    k, kept = 509, thread_count()
    a = rng.standard_normal((k, m) if ta else (m, k)).astype("f4")
    b = rng.standard_normal((n, k) if tb else (k, n)).astype("f4")
    bias = rng.standard_normal(n).astype("f4")
    x, y, z = (
        md.placeholder(s, v.shape, "float32") for s, v in zip("abz", (a, b, bias), strict=True)
    )
    product = md.ops.tanh((x.T if ta else x) @ (y.T if tb else y) + z)
    results = []
    try:
        for count in (1, 2):
            set_threads(count)
            program = Executable([product.node], [], executor="native")
            results += program.run({x.node: a, y.node: b, z.node: bias})
    finally:
        set_threads(kept)
    np.testing.assert_array_equal(*results)
    wide_a, wide_b = (v.astype("f8") for v in (a.T if ta else a, b.T if tb else b))
    bound = (k + 4) * np.finfo("f4").eps * (abs(wide_a) @ abs(wide_b) + abs(bias))
    assert (abs(results[0] - np.tanh(wide_a @ wide_b + bias)) <= bound).all()
