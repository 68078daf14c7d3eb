"""Cholesky factors and equations of triangles by NumPy's and SciPy's arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import magmadnn as md
from magmadnn.errors import ArgumentError, CallError, ShapeError

la = md.linalg
DRAW = np.random.default_rng(8)


def drawn(*shape: int, dtype: str = "float64") -> np.ndarray:
    x = DRAW.normal(size=shape)
    return (x + 1j * DRAW.normal(size=shape) if dtype[0] == "c" else x).astype(dtype)


def herm(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x.conj(), -1, -2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("trans", [0, 1, 2, "N", "T", "C", np.int64(1)])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangles_are_solved_as_by_scipy(dtype: str, trans: Any, lower: bool, unit: bool) -> None:
    n, eps = 7, np.finfo(dtype).eps
    a = drawn(n, n, dtype=dtype) / 4 + 2 * np.eye(n, dtype=dtype)
    a[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = np.nan  # not read
    clean = np.tril(a) if lower else np.triu(a)
    if unit:
        np.fill_diagonal(a, np.nan)  # nor is the diagonal
    for b in (drawn(n, dtype=dtype), drawn(n, 3, dtype=dtype)):
        expected = scipy.linalg.solve_triangular(clean, b, trans, lower, unit)
        found = la.solve_triangular(a, b, trans, lower=lower, unit_diagonal=unit)
        x = md.variable("b", b)
        for made in (np.asarray(found), la.solve_triangular(a, x, trans, lower, unit).numpy()):
            assert made.dtype == expected.dtype and made.shape == expected.shape
            np.testing.assert_allclose(
                made, expected, rtol=0, atol=200 * eps * np.abs(expected).max()
            )


def test_the_upper_triangle_is_what_is_read_where_lower_is_left_out() -> None:
    a, b = drawn(4, 4) + 3 * np.eye(4), drawn(4)
    np.testing.assert_array_equal(la.solve_triangular(a, b), la.solve_triangular(np.triu(a), b))
    many = np.stack([a, 2 * a])
    np.testing.assert_allclose(
        la.solve_triangular(many, b)[1], la.solve_triangular(a, b).numpy() / 2
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_upper_factors_read_the_upper_triangle(dtype: str) -> None:
    x = drawn(2, 5, 5, dtype=dtype)
    a = x @ herm(x) + np.eye(5, dtype=dtype)
    expected = np.linalg.cholesky(a, upper=True)
    given = np.where(np.tril(np.ones((5, 5)), -1) > 0, np.nan, a)
    for made in (la.cholesky(given, upper=True), la.cholesky(md.variable("a", given), upper=True)):
        found = np.asarray(made.numpy())
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=0, atol=100 * np.finfo(dtype).eps * 10)
    np.testing.assert_array_equal(la.cholesky(a, upper=False), la.cholesky(a))


def test_gradients_of_what_is_not_read_are_0() -> None:
    a, b = md.variable("a", np.array([[2.0, 9.0], [3.0, 4.0]])), np.array([1.0, 5.0])
    made = md.ops.sum(la.solve_triangular(a, b, lower=True, unit_diagonal=True))
    np.testing.assert_array_equal(md.grad(made, a).numpy(), [[0, 0], [-1, 0]])  # x = 1, 5 - 3
    factor = la.cholesky(md.ops.swapaxes(a, 0, 1) @ a, upper=True)
    assert np.isfinite(md.grad(md.ops.sum(factor), a).numpy()).all()
    symmetric = md.variable("s", np.array([[4.0, 2.0], [7.0, 5.0]]))  # 7 is not read
    slope = md.grad(md.ops.sum(la.cholesky(symmetric, upper=True)), symmetric).numpy()
    assert slope[1, 0] == 0 and slope[0, 1] != 0


def test_mistakes() -> None:
    one = np.eye(3)
    with pytest.raises(ArgumentError, match='trans must be 0, 1 or 2, or "N", "T" or "C"'):
        la.solve_triangular(one, one, trans="H")
    with pytest.raises(ArgumentError, match=r"trans must be 0, 1 or 2, .* got True"):
        la.solve_triangular(one, one, True)
    with pytest.raises(ArgumentError, match="lower must be True or False, got 2"):
        la.solve_triangular(one, one, lower=2)  # type: ignore[arg-type]
    with pytest.raises(CallError, match="argument 'transpose' is not known"):
        la.solve_triangular(one, one, transpose=True)  # type: ignore[call-arg]
    with pytest.raises(ShapeError, match=r"cholesky: a must be square, got shape \(3, 4\)"):
        la.cholesky(np.ones((3, 4)), upper=True)
