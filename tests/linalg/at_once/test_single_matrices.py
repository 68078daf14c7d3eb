"""QR, singular values and eigenvalues of one matrix that is there: LAPACK without NumPy between."""

from __future__ import annotations

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import NumericError
from magmadnn.linalg import _at_once

pytest.importorskip("scipy")
SHAPES = [(5, 5), (7, 3), (3, 7), (1, 1), (1, 5), (5, 1), (40, 40), (300, 301)]


def drawn(shape: tuple[int, int], kind: str) -> np.ndarray:
    draw = np.random.default_rng(shape)
    a = draw.normal(size=shape)
    return np.asarray(a + 1j * draw.normal(size=shape) if kind in "FD" else a, kind)


@pytest.fixture(params="fdFD")
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def limit(a: np.ndarray) -> float:
    """LAPACK's own errors are a few eps sqrt(n) of the matrix's norm, which here is about 2 sqrt(n)."""
    return float(20 * max(a.shape) * np.finfo(a.dtype).eps)


@pytest.mark.parametrize("mode", ["reduced", "complete"])
@pytest.mark.parametrize("shape", SHAPES)
def test_qr(kind: str, shape: tuple[int, int], mode: str) -> None:
    a = drawn(shape, kind)
    q, r = map(np.asarray, md.linalg.qr(a, mode))
    expected = np.linalg.qr(a, mode)  # type: ignore[call-overload]
    assert q.shape == expected[0].shape and r.shape == expected[1].shape
    assert q.dtype == r.dtype == a.dtype
    assert np.abs(q @ r - a).max() <= limit(a) and not np.tril(r, -1).any()
    assert np.abs(q.conj().T @ q - np.eye(q.shape[1])).max() <= limit(a)
    assert np.abs(np.abs(np.diag(r)) - np.abs(np.diag(expected[1]))).max() <= 10 * limit(a)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_svd(kind: str, shape: tuple[int, int], full: bool) -> None:
    a, k = drawn(shape, kind), min(shape)
    u, s, v = map(np.asarray, md.linalg.svd(a, full_matrices=full))
    expected = np.linalg.svd(a, full_matrices=full)
    assert [x.shape for x in (u, s, v)] == [x.shape for x in expected]
    assert u.dtype == v.dtype == a.dtype and s.dtype == expected[1].dtype
    assert np.abs(u[:, :k] * s @ v[:k] - a).max() <= limit(a)
    for columns in (u, v.conj().T):
        assert np.abs(columns.conj().T @ columns - np.eye(columns.shape[1])).max() <= limit(a)
    assert np.abs(s - expected[1]).max() <= limit(a)
    assert np.abs(np.asarray(md.linalg.svdvals(a)) - expected[1]).max() <= limit(a)


@pytest.mark.parametrize("half", ["L", "U"])
@pytest.mark.parametrize("n", [1, 5, 40, 150])
def test_eigh_reads_one_triangle(kind: str, n: int, half: str) -> None:
    a = drawn((n, n), kind)
    a = a + a.conj().T
    given = a.copy()
    others = np.triu_indices(n, 1) if half == "L" else np.tril_indices(n, -1)
    given[others] = np.nan
    for matrix in (given, np.where(np.isnan(given), 7, given)):
        w, v = map(np.asarray, md.linalg.eigh(matrix, half))
        assert w.dtype == np.linalg.eigvalsh(a).dtype and v.dtype == a.dtype
        assert np.abs(w - np.linalg.eigvalsh(a)).max() <= 2 * limit(a)
        assert np.abs(a @ v - v * w).max() <= 2 * limit(a)
        assert np.abs(np.asarray(md.linalg.eigvalsh(matrix, half)) - w).max() <= 2 * limit(a)


def test_numpy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("qr", "svd", "eigh", "eigvalsh"):
        monkeypatch.setattr(np.linalg, name, None)
    a = drawn((6, 6), "d")
    md.linalg.qr(a), md.linalg.svd(a), md.linalg.svdvals(a)
    md.linalg.eigh(a), md.linalg.eigvalsh(a)


def test_without_scipy_numpy_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_at_once, "lapack", lambda: None)
    a = drawn((6, 4), "d")
    q, r = map(np.asarray, md.linalg.qr(a))
    assert np.abs(q @ r - a).max() <= limit(a)
    assert np.allclose(md.linalg.svdvals(a), np.linalg.svd(a, compute_uv=False))
    assert np.allclose(md.linalg.eigvalsh(a.T @ a), np.linalg.eigvalsh(a.T @ a))


def test_huge_numbers_are_finite_and_holes_are_named() -> None:
    """A sum that overflows is no reason to refuse, nor to warn."""
    a = np.full((5, 5), 1.2e307) * (1 + np.eye(5) / 2)
    r = np.asarray(md.linalg.qr(a).R)
    assert np.isfinite(r).all()
    for name in ("qr", "svd", "svdvals", "eigh"):
        holes = np.eye(4)
        holes[2, 1] = np.inf
        with pytest.raises(NumericError, match=r"a holds inf at \[2, 1\]"):
            getattr(md.linalg, name)(holes)
