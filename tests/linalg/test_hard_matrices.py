"""Residuals on matrices of known trouble, beside LAPACK's own called by SciPy and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl

import magmadnn as md
from magmadnn.errors import NumericError
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.linalg.factorisations.elimination import eliminated, order_of
from magmadnn.runtime import Executable

la = md.linalg
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)


def unitary(n: int, dtype: str) -> Array:
    a = RNG.normal(size=(n, n))
    b = 1j * RNG.normal(size=(n, n)) if dtype.startswith("complex") else 0
    return np.asarray(np.linalg.qr(a + b).Q)


def hard(n: int, dtype: str) -> Iterator[tuple[str, Array]]:
    """Square ones, and positive definite ones."""
    i, u, v = np.arange(n), unitary(n, dtype), unitary(n, dtype)
    yield "Hilbert", 1 / (1.0 + i[:, None] + i) * np.ones(())
    yield "condition", u * np.geomspace(1, 1e-10, n) @ v
    yield "graded", np.geomspace(1, 1e-12, n)[:, None] * u
    yield "clustered", u * np.where(i < n // 2, 1.0, 1 + 1e-9 * i) @ u.conj().T
    yield "rank", u[:, :3] @ v[:3]
    yield "denormal", u * 1e-310
    yield "large", u * 1e300


def by_plan(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a compiled program, which calls LAPACK itself."""

    def call(*operands: Array) -> Any:
        nodes = [placeholder(f"x{k}", Spec(x.shape, x.dtype)) for k, x in enumerate(operands)]
        found = function(*nodes)
        outputs = list(found) if isinstance(found, tuple) else [found]
        made = Executable(outputs).run(dict(zip(nodes, operands, strict=True)))
        return made if isinstance(found, tuple) else made[0]

    return call


def relative(left: Array, *sizes: float) -> float:
    """A residual in units of what it is made of."""
    size = float(np.prod(sizes))
    return float(np.abs(left).max()) / size if size else float(np.abs(left).max())


def grown(x: Array, power: int) -> Array:
    """X times two to a power, in two steps: one alone may be no float64."""
    return np.asarray(x) * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)


def scaled(a: Array) -> tuple[Array, int]:
    """The matrix of size 1, and the power of two that it was divided by."""
    power = int(np.frexp(np.abs(a).max())[1])
    return grown(a, -power), power


# name: residual of what a function gives for a (each as made from results r), our function, LAPACK's
def of_solve(a: Array, x: Array) -> float:
    unit, power = scaled(a)
    if not np.isfinite(x).all():
        return np.inf
    x = grown(x, power)
    return relative(unit @ x - 1, len(a) * max(np.abs(x).max(), 1))


def of_factors(a: Array, made: Array) -> float:
    unit, power = scaled(a)
    return relative(grown(made, -power) - unit, len(a))


def of_vectors(a: Array, w: Array, v: Array) -> float:
    unit, power = scaled(a)
    turned = v * grown(w, -power)
    return max(relative(unit @ v - turned, len(a)), relative(v.conj().T @ v - np.eye(len(a)), 1))


def residuals(name: str, a: Array, linalg: Any) -> float:
    if name == "solve":
        return of_solve(a, np.asarray(linalg.solve(a, np.ones(len(a), a.dtype))))
    if name == "lstsq":
        return of_solve(a, np.asarray(linalg.lstsq(a, np.ones((len(a), 1), a.dtype))[0])[:, 0])
    if name == "qr":
        q, r = map(np.asarray, linalg.qr(a))
        return max(of_factors(a, q @ r), relative(q.conj().T @ q - np.eye(len(a)), 1))
    if name == "svd":
        u, s, vh = map(np.asarray, linalg.svd(a))
        orthogonal = max(relative(x @ x.conj().T - np.eye(len(a)), 1) for x in (u, vh))
        return max(of_factors(a, u * s @ vh), orthogonal)
    if name == "eigh":
        w, v = map(np.asarray, linalg.eigh(a))
        assert (np.diff(w) >= 0).all()
        return of_vectors(a, w, v)
    if name == "cholesky":
        factor = np.asarray(linalg.cholesky(a))
        return of_factors(a, factor @ factor.conj().T)
    made = linalg.lu(a)
    return of_factors(a, np.asarray(made[0]) @ np.asarray(made[1]) @ np.asarray(made[2]))


class Ours:
    """md.linalg, at once or compiled."""

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled

    def __getattr__(self, name: str) -> Any:
        function = getattr(la, name)
        return by_plan(function) if self.compiled else function


class Theirs:
    """NumPy's, which call LAPACK; what it has not is SciPy's."""

    def __getattr__(self, name: str) -> Any:
        return sl.lu if name == "lu" else getattr(np.linalg, name)


IN_GRAPHS = ("solve", "lstsq", "qr", "svd", "eigh", "cholesky")


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(
    ("name", "compiled"), [(n, c) for c in (False, True) for n in IN_GRAPHS] + [("lu", False)]
)
def test_residuals_are_near_those_of_lapack(name: str, dtype: str, compiled: bool) -> None:
    eps = np.finfo(np.float64).eps
    for n in (8, 33):
        for kind, a in hard(n, dtype):
            matrix = a.astype(dtype)
            if name == "cholesky":
                if kind in ("rank", "denormal"):
                    continue
                unit, power = scaled(matrix)
                matrix = grown(unit @ unit.conj().T + n * eps * 40 * np.eye(n), power)
            if name == "eigh":
                matrix = matrix / 2 + matrix.conj().T / 2
            try:
                theirs = residuals(name, matrix, Theirs())
            except np.linalg.LinAlgError:  # singular for NumPy, by rounding: for us too, or near it
                theirs = np.inf
            try:
                ours = residuals(name, matrix, Ours(compiled))
            except NumericError:
                assert theirs == np.inf or kind in ("rank", "denormal"), (kind, n)
                continue
            assert ours <= theirs + 30 * eps * n, (kind, n, ours, theirs)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_values_of_hilbert_graded_and_clustered_matrices(dtype: str) -> None:
    """Singular values and eigenvalues within 30 eps n of the largest, in NumPy's order."""
    eps = np.finfo(np.float64).eps
    for n in (8, 33):
        for kind, a in hard(n, dtype):
            a = a.astype(dtype)
            s = np.asarray(la.svdvals(a))
            expected = np.linalg.svd(a, compute_uv=False)
            assert np.abs(s - expected).max() <= 30 * eps * n * expected.max() + 5e-324 * n, kind
            symmetric = a / 2 + a.conj().T / 2
            w, expected = np.asarray(la.eigvalsh(symmetric)), np.linalg.eigvalsh(symmetric)
            largest = np.abs(expected).max()
            assert np.abs(w - expected).max() <= 30 * eps * n * largest + 5e-324 * n, kind


def test_elimination_without_scipy_divides_by_denormal_pivots() -> None:
    a = unitary(9, "complex128") * 1e-310
    found, pivots = eliminated(a)
    low, high = np.tril(found, -1) + np.eye(9), np.triu(found)
    assert np.abs(np.tril(found, -1)).max() <= 1 + 1e-10
    # numbers of size 1e-310 are multiples of 5e-324; sums of 9 products with numbers up to 1
    assert np.abs(low @ high - a[order_of(pivots)]).max() <= 30 * 9 * 5e-324


def test_a_cluster_is_compared_as_a_space() -> None:
    """Vectors of equal eigenvalues are any basis: the projection on their space is what there is."""
    n, eps = 33, np.finfo(np.float64).eps
    u = unitary(n, "float64")
    a = u * np.where(np.arange(n) < 7, 1.0, 2.0) @ u.T
    v = np.asarray(la.eigh((a + a.T) / 2).eigenvectors)[:, :7]
    assert np.abs(v @ v.T - u[:, :7] @ u[:, :7].T).max() <= 30 * eps * n  # the gap is 1
