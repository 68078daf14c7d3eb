"""Determinants, factors and spectra of spread matrices and stacks; shapes that data decides; refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import (
    ArgumentError,
    DTypeError,
    IndexOutOfRangeError,
    NumericError,
    ShapeError,
)

d = md.dmath
DRAW = np.random.default_rng(4)
EPS = 2.0**-52
SHAPES = [(7, 4), (4, 7), (6, 6), (1, 1), (5, 3, 4), (2, 3, 5, 5)]


@pytest.fixture(scope="module")
def homes() -> Iterator[list[Any]]:
    pytest.importorskip("mpi4py")
    with md.workers(3) as workers:
        yield [workers, md.dmath.local]


def spread(home: Any, x: np.ndarray) -> md.dmath.Matrix:
    return home.array(x, layout=d.Blocks(tuple(max(1, n // 2) for n in x.shape)))


def drawn(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    x = DRAW.standard_normal(shape)
    return (x + 1j * DRAW.standard_normal(shape) if dtype[0] == "c" else x).astype(dtype)


def herm(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x.conj(), -1, -2)


def close(found: Any, expected: np.ndarray, n: int = 8) -> None:
    found = np.asarray(found)
    tolerance = 30 * n * np.finfo(found.dtype).eps * max(np.abs(expected).max(initial=0), 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_factors_of_matrices_and_stacks(homes: list[Any], dtype: str) -> None:
    for home in homes:
        for shape in SHAPES:
            x = drawn(shape, dtype)
            m, n = shape[-2:]
            k, given = min(m, n), spread(home, x)
            for mode, size in (("reduced", k), ("complete", m)):
                q, r = map(np.asarray, d.qr(given, mode=mode))
                assert q.shape[-1] == r.shape[-2] == size and q.dtype == x.dtype
                close(q @ r, x)
                close(herm(q) @ q, np.broadcast_to(np.eye(size), (*shape[:-2], size, size)))
                assert not np.tril(r, -1).any()
            for whole in (False, True):
                u, s, vh = map(np.asarray, d.svd(given, full_matrices=whole))
                assert u.shape[-1] == (m if whole else k) and vh.shape[-2] == (n if whole else k)
                close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x)
                close(s, np.linalg.svd(x, compute_uv=False))
                assert s.dtype == np.dtype(dtype).type(0).real.dtype
            close(d.svdvals(given), np.linalg.svd(x, compute_uv=False))
            close(d.pinv(given), np.linalg.pinv(x), 200)


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_square_matrices(homes: list[Any], dtype: str) -> None:
    for home in homes:
        for shape in [(6, 6), (1, 1), (2, 3, 5, 5), (140, 140)]:
            x = drawn(shape, dtype) / np.sqrt(shape[-1])
            sign, log = map(np.asarray, d.slogdet(spread(home, x)))
            expected = np.linalg.slogdet(x)
            close(sign, expected[0], shape[-1])
            np.testing.assert_allclose(log, expected[1], rtol=0, atol=2e4 * np.finfo(log.dtype).eps)
            close(d.det(spread(home, x)), np.linalg.det(x), shape[-1])
            symmetric = x + herm(x)
            values, vectors = map(np.asarray, d.eigh(spread(home, symmetric)))
            close(values, np.linalg.eigvalsh(symmetric), shape[-1])
            close(symmetric @ vectors, vectors * values[..., None, :], shape[-1])
            close(d.eigvalsh(spread(home, symmetric)), values, shape[-1])


def test_complex_factors_and_solutions_of_several_panels(homes: list[Any]) -> None:
    """A = L L^H: to conjugate nothing is right within the first panel of 128 columns only."""
    x = drawn((300, 300), "complex128") / np.sqrt(300)
    positive, right = x @ herm(x) + np.eye(300), drawn((300, 2), "complex64")
    for home in homes:
        given = home.array(positive, layout=d.Rows())
        close(d.cholesky(given), np.linalg.cholesky(positive), 300)
        close(d.cholesky(given, upper=True), herm(np.linalg.cholesky(positive)), 300)
        close(d.solve(given, home.array(right)), np.linalg.solve(positive, right), 300)
        close(d.solve(given, right[:, 0]), np.linalg.solve(positive, right[:, 0]), 300)
        close(d.inv(given), np.linalg.inv(positive), 300)
        bad = d.solve(home.array(np.where(np.eye(300) > 0, np.nan, positive)), right)
        with pytest.raises(
            NumericError, match="solve: elimination meets NaN in column 0: the matrix"
        ):
            np.asarray(bad)


def test_norms_and_variances_of_complex_numbers_are_real(homes: list[Any]) -> None:
    x = drawn((7, 5), "complex64")
    for home in homes:
        given = spread(home, x)
        for found, expected in (
            (d.norm(given), np.linalg.norm(x)),
            (d.norm(given, axis=1), np.linalg.norm(x, axis=1)),
            (d.norm(given * 1e30), np.linalg.norm(x.astype(complex)) * 1e30),
            (given.var(axis=0), x.var(axis=0)),
            (given.std(correction=1), x.std(ddof=1)),
        ):
            made = np.asarray(found)
            assert found.dtype == made.dtype == np.float32
            np.testing.assert_allclose(made, expected, rtol=1e-5)
        for name in ("relu", "gelu", "sigmoid", "softmax", "log_softmax"):
            with pytest.raises(DTypeError, match=f"{name}: takes no"):
                getattr(d, name)(given)


def test_determinants_of_singular_and_of_not_finite_matrices(homes: list[Any]) -> None:
    x = np.ones((4, 4))
    x[0, 0] = np.nan
    for home in homes:
        assert np.asarray(d.det(home.array(np.ones((4, 4))))) == 0
        sign, log = d.slogdet(home.array(np.zeros((3, 3))))
        assert np.asarray(sign) == 0 and np.asarray(log) == -np.inf
        assert np.isnan(np.asarray(d.det(home.array(x))))
        big = home.array(np.eye(200) * 1e4)
        assert np.asarray(d.det(big)) == np.inf
        np.testing.assert_allclose(
            np.asarray(d.slogdet(big).logabsdet), 800 * np.log(10), rtol=1e-14
        )
        assert np.asarray(d.det(home.array(np.array([[0, 1], [1, 0]])))) == -1


def test_ranks(homes: list[Any]) -> None:
    a = DRAW.standard_normal((7, 3)) @ DRAW.standard_normal((3, 5))
    for home in homes:
        assert np.asarray(d.matrix_rank(spread(home, a))) == 3
        found = np.asarray(d.matrix_rank(spread(home, np.stack([a, 0 * a, a + 1]))))
        np.testing.assert_array_equal(found, [3, 0, 4])
        assert found.dtype == np.int64
        assert np.asarray(d.matrix_rank(home.array(np.diag([1.0, 0.1, 0.01])), rtol=0.05)) == 2
        assert np.asarray(d.matrix_rank(home.array(np.zeros((0, 3))))) == 0


def test_values_that_data_decides(homes: list[Any]) -> None:
    x = np.array([[3.0, np.nan, 0], [0, 3, np.nan]])
    for home in homes:
        found = d.unique_all(spread(home, x))
        np.testing.assert_array_equal(np.asarray(found.values), [0, 3, np.nan, np.nan])
        np.testing.assert_array_equal(np.asarray(found.indices), [2, 0, 1, 5])
        np.testing.assert_array_equal(np.asarray(found.counts), [2, 2, 1, 1])
        np.testing.assert_array_equal(np.asarray(found.inverse_indices), [[1, 2, 0], [0, 1, 3]])
        rows, columns = d.nonzero(spread(home, x))
        np.testing.assert_array_equal(np.asarray(rows), [0, 0, 1, 1])
        np.testing.assert_array_equal(np.asarray(columns), [0, 1, 1, 2])


def test_elements_along_axes(homes: list[Any]) -> None:
    x = DRAW.standard_normal((5, 6, 4))
    for home in homes:
        for axis in (0, 1, -1):
            places = np.argsort(x, axis=axis)[:, :3, :3] if axis == 0 else np.argsort(x, axis=axis)
            places = places if axis else np.argsort(x, axis=0)[:2]
            found = d.take_along_axis(spread(home, x), spread(home, places - 3), axis=axis)
            np.testing.assert_array_equal(
                np.asarray(found), np.take_along_axis(x, places - 3, axis)
            )
        with pytest.raises(IndexOutOfRangeError, match="index 5 is beyond axis 0 of size 5"):
            np.asarray(d.take_along_axis(spread(home, x), np.full((1, 6, 4), 5), axis=0))


def test_refusals(homes: list[Any]) -> None:
    for home in homes:
        x, bad = home.array(np.ones((3, 4))), np.full((3, 3), np.nan)
        for function in (d.det, d.slogdet, d.eigh, d.eigvalsh):
            with pytest.raises(ShapeError, match=r"needs square matrices .*\(3, 4\)"):
                function(x)
        with pytest.raises(ShapeError, match="svd: needs matrices"):
            d.svd(home.array(np.ones(3)))
        with pytest.raises(ArgumentError, match='mode must be "reduced" or "complete"'):
            d.qr(x, mode="full")
        with pytest.raises(ArgumentError, match="rtol must be a number from 0"):
            d.pinv(x, rtol=-1)
        with pytest.raises(ShapeError, match="axis -1 must have 3 elements"):
            d.cross(x, x)
        with pytest.raises(ShapeError, match="do not fit shape"):
            d.take_along_axis(x, np.zeros((2, 2), int), axis=0)
        with pytest.raises(DTypeError, match="indices are integers"):
            d.take_along_axis(x, np.zeros((3, 4)), axis=0)
        with pytest.raises(ArgumentError, match="n must be a whole number from 1"):
            home.fftfreq(0)
        with pytest.raises(NumericError, match="svd: SVD did not converge"):
            np.asarray(d.svd(home.array(bad)).S)
