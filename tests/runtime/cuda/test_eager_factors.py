"""Eager calls of factors and exponentials in a GPU's memory, and what of them the host computes."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import available
from magmadnn.errors import MagmaDNNError, NumericError, ShapeError
from magmadnn.linalg import general_eigenvalues, orthogonal
from magmadnn.memory.dtypes import as_dtype
from magmadnn.tensor.eager.programs import Programs
from tests.runtime.cuda.devices import on
from tests.runtime.cuda.test_eager_calls import (
    RNG,
    WORD,
    counted,
    few_kernels,
    kept,
    listed,
    needs_compiler,
    square,
    there,
)  # fmt: skip

__all__ = ["few_kernels", "kept"]  # fixtures
L = md.linalg


@needs_compiler
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64"])
def test_exponentials_have_as_many_squares_as_each_matrix_needs(
    dtype: str, kept: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of skew matrices, whose exponentials turn vectors: no digits are lost, whatever is beside them."""
    half = RNG.normal(size=(4, 6, 6))
    a = half - half.swapaxes(-1, -2)
    a *= np.array([1e-6, 0.3, 4.0, 60.0 if dtype != "float16" else 8.0])[:, None, None]
    a = np.round(a).astype(dtype) if dtype == "int64" else a.astype(dtype)
    eps = {"float32": 1.2e-7, "float16": 1e-3}.get(dtype, 2.3e-16)
    with on("emulated"):
        for values in (a, a[0], a[3]):
            operand = there(values)
            L.expm(operand)
            copies = counted(monkeypatch)
            found = L.expm(operand)
            assert max(copies, default=0) <= WORD
            wanted = L.expm(md.asarray(values))
            assert (found.dtype, found.shape, found.kind) == (wanted.dtype, wanted.shape, md.DEVICE)
            for one, other, matrix in zip(
                found.read().reshape(-1, *values.shape[-2:]),
                wanted.read().reshape(-1, *values.shape[-2:]),
                values.reshape(-1, *values.shape[-2:]),
                strict=True,
            ):
                bound = 20 * eps * max(1, np.abs(matrix.astype("f8")).sum(0).max(initial=0))
                assert np.abs(one.astype("f8") - other.astype("f8")).max(initial=0) <= bound
    assert len(kept) == 5  # of norms by shapes, of exponentials by numbers of squares as well


def test_exponentials_that_a_gpu_does_not_find_are_the_hosts() -> None:
    """Those of norms that no squares lead to, and what is wrong."""
    skew = np.array([[0.0, 1e14], [-1e14, 0.0]])
    with on("emulated"):
        np.testing.assert_allclose(
            L.expm(there(skew)).read(), L.expm(skew).read(), rtol=1e-12, atol=1e-300
        )
        for shape in ((0, 3, 3), (2, 0, 0)):
            empty = L.expm(there(np.zeros(shape, "float32")))
            assert (empty.shape, empty.dtype.name, empty.kind) == (shape, "float32", md.DEVICE)
        with pytest.raises(NumericError, match=r"expm: a\[1\] holds nan at \[0, 1\]"):
            L.expm(there(np.stack([np.eye(2), np.array([[1.0, np.nan], [0, 1]])])))
        with pytest.raises(MagmaDNNError, match="expm: a must be square"):
            L.expm(there(np.ones((2, 3))))


@needs_compiler
def test_factors_of_more_rows_than_half_precision_counts() -> None:
    """Which row each was exchanged with is no number of the factors' dtype."""
    n = 300
    a = (RNG.normal(size=(n, n)) + 30 * np.roll(np.eye(n), 100, 0)).astype(as_dtype("bfloat16"))
    with on("emulated"):
        p, lower, upper = L.lu(there(a))
        lu, piv = L.lu_factor(there(a))
        assert lower.dtype == lu.dtype == a.dtype and piv.dtype == np.int64
        np.testing.assert_array_equal(piv.read(), L.lu_factor(a).piv.read())
        product = p.read().astype("f8") @ lower.read().astype("f8") @ upper.read().astype("f8")
        assert np.abs(product - a.astype("f8")).max() < 0.5
        x = L.lu_solve((lu, piv), there(a)).read().astype("f8")
        assert np.abs(x - np.eye(n)).max() < 0.1
        x = L.solve(there(a), there(a)).read().astype("f8")
        assert np.abs(x - np.eye(n)).max() < 0.01


@needs_compiler
def test_results_of_the_host_lie_where_the_operand_does() -> None:
    a = square(4, 4)
    with on("emulated"):
        for call in (L.eig, L.eigvals, L.lu, lambda a: L.qr(a, pivoting=True)):
            for one, other in zip(listed(call(there(a))), listed(call(a)), strict=True):
                assert one.kind is md.DEVICE
                np.testing.assert_allclose(one.read(), other.read(), atol=1e-13)
        high = L.lu(there(square(4, 3)))
        assert [x.shape for x in high] == [(4, 4), (4, 3), (3, 3)] and high.L.kind is md.DEVICE


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_a_triangle_alone_makes_no_columns(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R is that of Q R, of any shape; complex ones have it by both."""
    draw = np.random.default_rng(8)
    with on("emulated"):
        for shape in ((5, 3), (3, 5), (2, 4, 4), (7, 1), (0, 3), (3, 0)):
            a = np.round(3 * draw.normal(size=shape)).astype(dtype)
            both = L.qr(there(a)).R
            with monkeypatch.context() as without:
                if a.size:  # none of which are the host's
                    without.setattr(orthogonal, "decomposed", None)
                found = L.qr(there(a), mode="r")
            assert (found.shape, found.dtype, found.kind) == (both.shape, both.dtype, md.DEVICE)
            np.testing.assert_array_equal(found.read(), both.read())
        a = square(4, 4) + 1j * square(4, 4)
        np.testing.assert_allclose(L.qr(there(a), mode="r").read(), L.qr(a).R.read(), atol=1e-13)
        with pytest.raises(NumericError, match=r"qr: a holds nan at \[0, 0\]"):
            L.qr(there(np.full((3, 2), np.nan)), mode="r")


@needs_compiler
def test_eigenvalues_of_one_large_matrix_are_found_on_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a library that NumPy stands for here; what it cannot do, the host does or refuses."""
    calls: list[str] = []

    def noted(name: str) -> Any:
        def call(a: np.ndarray) -> Any:
            calls.append(name)
            if a[0, 0] == 7:
                raise np.linalg.LinAlgError("no convergence")
            found = getattr(np.linalg, name)(a)
            return found + 0j if name == "eigvals" else tuple(x + 0j for x in found)

        return call

    library = SimpleNamespace(
        cuda=SimpleNamespace(Device=lambda number: nullcontext()), asarray=lambda a: a.read(),
        isfinite=np.isfinite, ascontiguousarray=np.ascontiguousarray,
        linalg=SimpleNamespace(eig=noted("eig"), eigvals=noted("eigvals")),
    )  # fmt: skip
    monkeypatch.setattr(general_eigenvalues, "array_library", lambda: library)
    monkeypatch.setattr(general_eigenvalues, "LEAST_ON_DEVICE", 5)
    monkeypatch.setattr(general_eigenvalues, "LEAST_COMPLEX", 5)
    monkeypatch.setitem(
        sys.modules, "cupyx", SimpleNamespace(errstate=lambda linalg: nullcontext())
    )
    a = square(5, 5)
    symmetric = a + a.T
    a[0, 1], a[1, 0] = 20, -20  # which gives a pair of complex eigenvalues
    failing, holes = a.copy(), a.copy()
    failing[0, 0], holes[1, 2] = 7, np.nan
    with on("emulated"):
        for values in (a, symmetric, failing, a + 1j * symmetric, symmetric + 0j):
            w, v = L.eig(there(values))
            exact, alone = np.linalg.eig(values)[0], L.eigvals(there(values))
            assert w.dtype == v.dtype == alone.dtype == (float if values is symmetric else complex)
            np.testing.assert_allclose(w.read(), exact, rtol=1e-12)
            np.testing.assert_allclose(values @ v.read(), v.read() * w.read(), atol=1e-12)
            np.testing.assert_allclose(alone.read(), exact, rtol=1e-12)
        assert calls == ["eig", "eigvals"] * 5
        for name in ("eig", "eigvals"):
            with pytest.raises(NumericError, match=rf"{name}: a holds nan at \[1, 2\]"):
                getattr(L, name)(there(holes))
            with pytest.raises(ShapeError, match=name):
                getattr(L, name)(there(a[:, :4]))
            for others in (square(2, 5, 5), square(4, 4)):
                getattr(L, name)(there(others))
        assert len(calls) == 10


@pytest.mark.gpu
@pytest.mark.skipif(not available()[0], reason="no GPU")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_eigenvalues_of_the_device(dtype: str) -> None:
    n = max(general_eigenvalues.LEAST_ON_DEVICE, general_eigenvalues.LEAST_COMPLEX)
    a = RNG.normal(size=(n, n)).astype(dtype)
    eps = np.finfo(dtype).eps
    for values in (a, a + a.T, a + 1j * a[::-1]):
        w, v = (x.numpy() for x in L.eig(md.Tensor.holding(values, "DEVICE")))
        exact = np.linalg.eigvals(values.astype("d" if values.dtype.kind == "f" else "D"))
        alone = L.eigvals(md.Tensor.holding(values, "DEVICE")).numpy()
        for found in (w, alone):  # real where no imaginary part is left
            assert found.dtype.kind == "f" or found.imag.any()
            assert found.real.dtype == dtype
        assert v.dtype == w.dtype
        assert np.abs(values @ v - v * w).max() <= 20 * n * eps * np.abs(exact).max()
        np.testing.assert_allclose(np.linalg.norm(v, axis=0), 1, rtol=50 * eps)
        size = np.abs(exact).max()
        for found in (w, alone):
            apart = np.abs(np.sort_complex(found)[:, None] - exact[None]).min(0).max()
            assert apart <= 50 * n * eps * size
