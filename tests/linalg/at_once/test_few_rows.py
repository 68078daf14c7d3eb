"""Eigenvectors of one symmetric matrix of some dozens of rows, by rotations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md

pytest.importorskip("scipy")
from magmadnn.runtime.cpu.matrices import rotations

RNG = np.random.default_rng(11)


def matrix(kind: str, n: int) -> np.ndarray:
    a = RNG.normal(size=(n, n))
    a, steps = a + a.T, np.geomspace(1, 1e-12, n)
    columns = np.linalg.qr(a)[0]
    return {
        "drawn": lambda: a,
        "definite": lambda: a @ a.T,
        "rank one": lambda: np.outer(a[0], a[0]),
        "falls": lambda: a * steps[:, None] * steps,
        "rises": lambda: (a * steps[:, None] * steps)[::-1, ::-1],
        "alike": lambda: (columns * np.where(np.arange(n) < n // 2, 1, 1 + 1e-9)) @ columns.T,
        "unit": lambda: 3 * np.eye(n),
        "one number": lambda: np.diag([2.0, *[0.0] * (n - 1)]),
        "three diagonals": lambda: 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1),
    }[kind]()


KINDS = (
    "drawn", "definite", "rank one", "falls", "rises", "alike", "unit", "one number", "three diagonals",
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 16, 33, 67, 105, 150])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_orthonormal_and_what_they_are_multiplied_by(
    kind: str, n: int, dtype: str
) -> None:
    """Of either triangle, whatever the other holds; errors of eps times the rows, as LAPACK's."""
    a = matrix(kind, n)
    a = ((a + a.T) / 2).astype(dtype)
    for lower in (True, False):
        other = np.full((n, n), 7.0, dtype)
        given = np.tril(a) + np.triu(other, 1) if lower else np.triu(a) + np.tril(other, -1)
        if n == 33:
            given = np.asfortranarray(given)
        found = rotations.eigen_of_few(given, lower)
        if found is None:  # numbers that LAPACK would scale
            assert np.abs(a).max() < 1e-11
            continue
        values, vectors = (x.astype("float64") for x in found)
        assert found[0].dtype == found[1].dtype == dtype and (np.diff(values) >= 0).all()
        unit = (n + 10) * np.finfo(dtype).eps
        wide = a.astype("float64")
        size = np.linalg.norm(wide, 2)
        assert np.abs(vectors.T @ vectors - np.eye(n)).max() <= unit
        assert np.abs(wide @ vectors - vectors * values).max() <= unit * size
        assert np.abs(values - np.linalg.eigvalsh(wide)).max() <= unit * size


def test_eigh_takes_them_for_some_dozens_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    original = rotations.eigen_of_few

    def counted(a: Any, lower: bool) -> Any:
        taken.append(len(a))
        return original(a, lower)

    monkeypatch.setattr(rotations, "eigen_of_few", counted)
    for n in (31, 32, 64, 192, 193):
        a = RNG.normal(size=(n, n))
        for uplo, given in (("L", np.tril(a)), ("U", np.triu(a))):
            values, vectors = md.linalg.eigh(given, uplo)
            both = given + given.T - np.diag(np.diag(a))
            left = both @ np.asarray(vectors) - np.asarray(vectors) * np.asarray(values)
            assert np.abs(left).max() <= 1e-12
    assert taken == [32, 32, 64, 64, 192, 192]
    md.linalg.eigh(RNG.normal(size=(64, 64)).astype("complex128"))
    md.linalg.eigvalsh(RNG.normal(size=(64, 64)))
    assert len(taken) == 6


@pytest.mark.parametrize("scale", [1e-200, 1e200, 0.0])
def test_numbers_whose_squares_are_too_large_or_too_small_are_left_to_lapack(scale: float) -> None:
    a = matrix("drawn", 40) * scale
    assert rotations.eigen_of_few(a, True) is None
    values, vectors = map(np.asarray, md.linalg.eigh(a))
    np.testing.assert_allclose(values, scale * np.linalg.eigvalsh(a / (scale or 1)), rtol=1e-9)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(40), atol=1e-13)
