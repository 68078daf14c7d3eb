"""Solutions by refinement, eigenvalues of any matrices, and random comparisons with NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, NumericError

linalg = pytest.importorskip("scipy.linalg")
RNG = np.random.default_rng(77)
EPS = np.finfo(np.float64).eps


def conditioned(n: int, condition: float) -> np.ndarray:
    left, right = (np.linalg.qr(RNG.normal(size=(n, n))).Q for _ in range(2))
    return np.asarray(left * np.geomspace(1, 1 / condition, n) @ right)


@pytest.mark.parametrize("shape", [(60,), (60, 3)])
@pytest.mark.parametrize(
    ("condition", "ways"),
    [
        (1e2, ["refinement"]),
        (1e9, ["gmres", "refinement", "float64"]),
        (1e14, ["gmres", "float64"]),
    ],
)
def test_backward_errors_are_those_of_float64(
    condition: float, ways: list[str], shape: tuple[int, ...]
) -> None:
    a, b = conditioned(60, condition), RNG.normal(size=shape)
    found = md.linalg.solve(a, b, method="refine", info=True)
    assert found.way in ways
    assert found.residual <= 60 * EPS
    x = found.x.numpy()
    assert x.shape == b.shape
    bound = 60 * EPS * (np.linalg.norm(a, np.inf) * np.abs(x).max(0) + np.abs(b).max(0))
    assert (np.abs(a @ x - b).max(0) <= bound).all()
    assert found.iterations > 0 or found.way == "float64"


def test_positive_definite_matrices_and_those_beyond_float32() -> None:
    a = conditioned(40, 1e3)
    a, b = a @ a.T, RNG.normal(size=40)
    found = md.linalg.solve(a, b, method="refine", assume_a="pos", info=True)
    assert found.residual <= 40 * EPS
    large = md.linalg.solve(a * 1e60, b, method="refine", info=True)
    assert large.way == "float64" and large.residual <= 40 * EPS
    small = md.linalg.solve(a, b * 1e-50, method="refine").numpy()
    expected = large.x.numpy() * 1e10
    bound = 40 * EPS * np.linalg.cond(a)  # of both, to their backward errors
    assert np.abs(small - expected).max() <= 2 * bound * np.abs(expected).max()
    assert md.linalg.solve(np.eye(3), np.zeros((3, 0)), method="refine").shape == (3, 0)


def test_mistakes() -> None:
    singular = np.diag([1.0, 0.0, 2.0])
    for call, error, text in [
        (lambda: md.linalg.solve(singular, np.ones(3), method="refine"), NumericError, "pivot 2 of 3 is 0"),
        (
            lambda: md.linalg.solve(-np.eye(3), np.ones(3), method="refine", assume_a="pos"),
            NumericError, "leading minor of order 1 of 3",
        ),
        (lambda: md.linalg.solve(np.eye(3), np.ones(3), method="qr"), ArgumentError, 'method must be "lu"'),
        (lambda: md.linalg.solve(np.eye(3), np.ones(3), info=True), ArgumentError, 'go with method="refine"'),
        (
            lambda: md.linalg.solve(md.variable("a", np.eye(3)), np.ones(3), method="refine"),
            ArgumentError, "not Operations",
        ),
        (lambda: md.linalg.eig(np.diag([1.0, np.nan])), NumericError, r"eig: a holds nan at \[1, 1\]"),
        (lambda: md.linalg.eigvals(md.variable("a", np.eye(3))), ArgumentError, "not Operations"),
    ]:  # fmt: skip
        with pytest.raises(error, match=text):
            call()


def test_eigenvalues_of_any_matrices() -> None:
    a = RNG.normal(size=(3, 7, 7))
    values, vectors = (x.numpy() for x in md.linalg.eig(a))
    assert values.dtype == np.complex128
    np.testing.assert_allclose(a @ vectors, vectors * values[:, None], atol=1e-12)
    assert np.array_equal(md.linalg.eigvals(a), np.linalg.eigvals(a))


@pytest.mark.parametrize("always_complex", [False, True])
def test_eigenvalues_are_real_where_all_are(
    always_complex: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any NumPy: before 2.5 its results are real then, from 2.5 on they are complex."""
    eig, eigvals = np.linalg.eig, np.linalg.eigvals
    if always_complex:
        monkeypatch.setattr(np.linalg, "eig", lambda a: tuple(x + 0j for x in eig(a)))
        monkeypatch.setattr(np.linalg, "eigvals", lambda a: eigvals(a) + 0j)
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    for dtype, wide in (("f", "F"), ("d", "D")):
        for a, kind in (
            (np.diag([3.0, 2.0]).astype(dtype), dtype),
            (np.zeros((0, 0), dtype), dtype),
            (turn.astype(dtype), wide),
            (np.stack([turn, np.eye(2)]).astype(dtype), wide),
            (np.eye(2).astype(wide), wide),
        ):
            values, vectors = (x.numpy() for x in md.linalg.eig(a))
            assert values.dtype == vectors.dtype == md.linalg.eigvals(a).dtype == kind
            np.testing.assert_allclose(a @ vectors, vectors * values[..., None, :], atol=1e-6)


def compared(cases: int) -> None:
    """Residuals within 30 eps n of those of NumPy and SciPy, on matrices of any condition."""
    for _ in range(cases):
        n, k = (int(i) for i in RNG.integers(1, 24, 2))
        single = bool(RNG.integers(2))
        dtype = np.float32 if single else np.float64
        limit = 30 * np.finfo(dtype).eps * max(n, k, 3)
        a = conditioned(n, 10.0 ** RNG.integers(0, 5)).astype(dtype)
        b = RNG.normal(size=(n, k)).astype(dtype)
        x = md.linalg.solve(a, b).numpy()
        size = np.abs(a).sum(1).max() * np.abs(x).max() + np.abs(b).max()
        assert np.abs(a @ x - b).max() <= limit * size
        u, s, v = (y.numpy() for y in md.linalg.svd(b, full_matrices=False))
        assert np.abs(u * s @ v - b).max() <= limit * s[0]
        np.testing.assert_allclose(s, linalg.svdvals(b), atol=float(limit * s[0]))
        w, columns = (y.numpy() for y in md.linalg.eigh(a + a.T))
        assert np.abs((a + a.T) @ columns - columns * w).max() <= limit * max(np.abs(w).max(), 1e-3)
        np.testing.assert_allclose(w, linalg.eigvalsh(a + a.T), atol=float(limit * np.abs(w).max()))
        q, r = (y.numpy() for y in md.linalg.qr(b))
        assert np.abs(q @ r - b).max() <= limit * np.abs(b).max() * n**0.5
        p, lower, upper = (y.numpy() for y in md.linalg.lu(b))
        assert np.abs(p @ lower @ upper - b).max() <= limit * np.abs(upper).max() * n**0.5
        rows = RNG.normal(size=(n + k, n)).astype(dtype)
        right = rows @ np.ones(n, dtype)
        found = md.linalg.lstsq(rows, right)
        assert np.abs(found.x.numpy() - 1).max() <= limit * np.linalg.cond(rows) * n**0.5


def test_random_comparisons() -> None:
    compared(40)


@pytest.mark.long
def test_many_random_comparisons() -> None:
    compared(5000)
