"""Factors by strips: on the processor, on a GPU where there is one, and where all copies are late."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import pytest
import scipy.linalg

import magmadnn as md
from magmadnn.backends.cuda import available
from magmadnn.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    NumericError,
    OutOfMemoryError,
    ShapeError,
)
from tests.linalg.delayed_place import DelayedPlace

ooc = md.linalg.out_of_core
DTYPES = ("float32", "float64", "complex64", "complex128")
SIZES = (1, 2, 7, 53, 131, 301)
HAS_DEVICE, REASON = available()
GPU = [pytest.mark.gpu, pytest.mark.skipif(not HAS_DEVICE, reason=f"no GPU: {REASON}")]
DEVICES = ["cpu", "delayed", pytest.param("cuda", marks=GPU)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where functions are computed; "delayed" stands in for the processor."""
    if request.param != "delayed":
        return str(request.param)
    seeds = count(crc32(request.node.name.encode()))
    for name in ("cholesky_factor", "elimination", "solving"):
        monkeypatch.setattr(
            f"magmadnn.linalg.out_of_core.{name}.place_of", lambda _: DelayedPlace(next(seeds))
        )
    return "cpu"


def matrix(n: int, dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng((seed, n))
    a = rng.standard_normal((n, n))
    return (a + 1j * rng.standard_normal((n, n)) if dtype.startswith("c") else a).astype(dtype)


def definite(n: int, dtype: str) -> np.ndarray:
    a = matrix(n, dtype)
    return (a @ a.conj().T + n * np.eye(n)).astype(dtype)


def limit(n: int, dtype: str, device: str) -> int | None:
    """Memory for a few strips; a GPU's libraries want workspace that depends on it."""
    width = max(n // 12, 1)
    return 9 * n * width * np.dtype(dtype).itemsize if device == "cpu" else (1 << 20)


def unit(a: np.ndarray) -> float:
    """What errors of sums of n products are measured in."""
    return float(len(a) * np.finfo(a.dtype).eps * np.abs(a).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_cholesky_factors(n: int, dtype: str, device: str) -> None:
    a = definite(n, dtype)
    only = np.tril(a) + np.triu(np.full_like(a, 7e3), 1)  # nothing above the diagonal is read
    factor = ooc.cho_factor(only, memory_limit=limit(n, dtype, device), device=device)
    lower = np.tril(factor.c).astype(complex)
    assert factor.lower is True
    assert np.abs(lower @ lower.conj().T - a).max() <= 4 * unit(a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_lu_factors_have_scipys_pivots(n: int, dtype: str, device: str) -> None:
    a = matrix(n, dtype)
    found = ooc.lu_factor(a, memory_limit=limit(n, dtype, device), device=device)
    if device == "cpu" or a.dtype.kind == "f":
        assert found.piv.tolist() == scipy.linalg.lu_factor(a)[1].tolist()
    lower = np.tril(found.lu, -1).astype(complex) + np.eye(n)
    rows = np.arange(n)
    for row, other in enumerate(found.piv):
        rows[[row, other]] = rows[[other, row]]
    assert np.abs(lower).max() <= 1.4143  # pivots of complex columns are the largest by |re| + |im|
    assert np.abs(lower @ np.triu(found.lu) - a[rows]).max() <= 10 * unit(a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_solutions(n: int, dtype: str, device: str) -> None:
    b = matrix(n, dtype, 1)[:, : min(3, n)]
    given: dict[str, Any] = {"memory_limit": limit(n, dtype, device), "device": device}
    if given["memory_limit"]:
        given["memory_limit"] += 2 * b.nbytes
    a = matrix(n, dtype)
    factors = ooc.lu_factor(a, **given)
    for trans, op in enumerate((a, a.T, a.conj().T)):
        x = ooc.lu_solve(factors, b, trans, **given)
        assert x.shape == b.shape and x.dtype == a.dtype
        assert np.abs(op.astype(complex) @ x - b).max() <= 10 * unit(a) * np.abs(x).max()
    spd = definite(n, dtype)
    x = ooc.cho_solve(ooc.cho_factor(spd, **given), b[:, 0], **given)
    assert x.shape == (n,)
    assert np.abs(spd.astype(complex) @ x - b[:, 0]).max() <= 10 * unit(spd) * np.abs(x).max()
    assert np.array_equal(ooc.solve(a, b, **given), ooc.lu_solve(factors, b, **given))
    assert np.array_equal(ooc.solve(spd, b[:, 0], assume_a="pos", **given), x)


def test_graded_matrices_exchange_rows_far_apart(device: str) -> None:
    a = matrix(97, "float64") * np.logspace(-9, 9, 97)[:, None]
    found = ooc.lu_factor(a, memory_limit=limit(97, "float64", device), device=device)
    assert found.piv.tolist() == scipy.linalg.lu_factor(a)[1].tolist()
    assert (found.piv > np.arange(97) + 8).sum() > 20


def test_factors_may_take_the_place_of_the_matrix(device: str) -> None:
    a, spd = matrix(90, "float64"), definite(90, "float64")
    given: dict[str, Any] = {"memory_limit": limit(90, "float64", device), "device": device}
    apart = ooc.lu_factor(a, **given)
    same = a.copy()
    assert ooc.lu_factor(same, out=same, **given).lu is same
    assert np.array_equal(same, apart.lu)
    apart_c = ooc.cho_factor(spd, **given)
    ooc.cho_factor(spd, out=spd, **given)
    assert np.array_equal(np.tril(spd), np.tril(apart_c.c))


def test_rows_may_lie_apart_and_in_files(tmp_path: Path, device: str) -> None:
    given: dict[str, Any] = {"memory_limit": limit(60, "float64", device), "device": device}
    wide = np.zeros((60, 75))
    wide[:, 5:65] = matrix(60, "float64")
    np.save(tmp_path / "a.npy", np.ascontiguousarray(wide[:, 5:65]))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    goal = np.lib.format.open_memmap(tmp_path / "lu.npy", "w+", "float64", (60, 60))
    ooc.lu_factor(mapped, out=goal, **given)
    goal.flush()
    expected = ooc.lu_factor(wide[:, 5:65], **given)
    assert np.array_equal(np.load(tmp_path / "lu.npy"), expected.lu)


def test_memory_stays_within_the_limit() -> None:
    places: list[DelayedPlace] = []

    def place_of(device: str) -> DelayedPlace:
        places.append(DelayedPlace(0))
        return places[-1]

    n = 400
    a, bytes_ = definite(n, "float64"), n * n * 8 // 3
    for name, function in (("cholesky_factor", ooc.cho_factor), ("elimination", ooc.lu_factor)):
        with mock.patch(f"magmadnn.linalg.out_of_core.{name}.place_of", place_of):
            function(a, memory_limit=bytes_)
        assert bytes_ / 2 < places[-1].allocated <= bytes_


@pytest.mark.parametrize("kind", ["cho_factor", "lu_factor"])
def test_values_that_are_not_finite_are_refused(kind: str, device: str) -> None:
    for where in ((50, 3), (3, 3), (59, 59)):
        a = definite(60, "float64")
        a[where] = np.nan if where[1] == 3 else np.inf
        with pytest.raises(NumericError, match=rf"^{kind}: a holds NaN or infinity$"):
            getattr(ooc, kind)(a, memory_limit=limit(60, "float64", device), device=device)


def test_large_sums_of_finite_numbers_are_no_error() -> None:
    a = np.eye(8) * 1e308
    a[1:, 0] = 1e308
    assert np.isfinite(ooc.lu_factor(a, device="cpu").lu).all()


def test_indefinite_and_singular_matrices_are_named(device: str) -> None:
    given: dict[str, Any] = {"memory_limit": limit(60, "float64", device), "device": device}
    a = definite(60, "float64")
    a[41, 41] = -5
    with pytest.raises(NumericError, match="leading minor of order 42 of 60 is not positive"):
        ooc.cho_factor(a, **given)
    a = np.eye(60)
    a[17, 17] = 0
    factors = ooc.lu_factor(a, **given)
    with pytest.raises(NumericError, match="lu_solve: the matrix is singular: pivot 17 of 60 is 0"):
        ooc.lu_solve(factors, np.ones(60), **given)


def test_empty_matrices() -> None:
    empty = np.zeros((0, 0))
    assert ooc.cho_factor(empty, device="cpu").c.shape == (0, 0)
    assert ooc.solve(empty, np.zeros((0, 2)), device="cpu").shape == (0, 2)
    assert ooc.solve(np.eye(2), np.zeros((2, 0)), device="cpu").shape == (2, 0)


EYE = np.eye(3)
MISTAKES: list[tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ("lu_factor", (EYE[:2],), {}, ShapeError, r"a must be one square matrix, got shape \(2, 3\)"),
    ("cho_factor", (EYE.astype(int),), {}, DTypeError, "float64, complex64 or complex128, got int64"),
    ("lu_factor", ([[1.0]],), {}, ArgumentError, "a must be a NumPy array or a memory map, got list"),
    ("lu_factor", (np.ones((3, 3), order="F"),), {}, ArgumentError, "a row of a must lie beside"),
    ("lu_factor", (EYE,), {"out": np.eye(4)}, ArgumentError, "out must be a writeable array"),
    ("lu_factor", (EYE,), {"memory_limit": -1}, ArgumentError, "positive number of bytes or None, got -1"),
    ("lu_factor", (np.eye(300),), {"memory_limit": 9000}, OutOfMemoryError,
     "9000 bytes on the processor are too little .* at least 14400 are needed"),
    ("solve", (EYE, np.ones(4)), {}, ShapeError, r"b must be \[n\] or \[n, k\] with n = 3, got shape \(4,\)"),
    ("solve", (EYE, np.ones(3) * 1j), {}, DTypeError, "b is complex128 and the matrix is float64"),
    ("solve", (EYE, np.ones(3)), {"assume_a": "sym"}, ArgumentError, 'assume_a must be "gen" or "pos"'),
    ("solve", (EYE, [1, np.inf, 3]), {}, NumericError, r"b holds inf at \[1, 0\]; give finite numbers"),
    ("cho_solve", ((EYE, True), [np.nan, 1, 2]), {}, NumericError, r"b holds nan at \[0, 0\]"),
    ("lu_solve", (EYE, np.ones(3)), {}, ArgumentError, "must be the pair that lu_factor gives"),
    ("lu_solve", ((EYE, [0, 1, 3]), np.ones(3)), {}, ArgumentError, "piv must hold rows from 0 to 2"),
    ("lu_solve", ((EYE, [0, 1]), np.ones(3)), {}, ArgumentError, "piv must hold 3 integers"),
    ("lu_solve", ((EYE, [0, 1, 2]), np.ones(3), 3), {}, ArgumentError, "trans must be 0, 1 or 2, got 3"),
    ("cho_solve", ((EYE, False), np.ones(3)), {}, ArgumentError, "takes lower triangles"),
    ("cho_solve", ((EYE * 0, True), np.ones(3)), {}, NumericError, "singular: pivot 0 of 3 is 0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "named", "error", "text"), MISTAKES)
def test_mistakes_are_named(
    name: str, given: tuple[Any, ...], named: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=f"^{name}: .*{text}"):
        getattr(ooc, name)(*given, device="cpu", **named)


@pytest.mark.skipif(HAS_DEVICE, reason="there is a GPU")
def test_without_a_gpu_that_is_said() -> None:
    with pytest.raises(DeviceError, match='use device="cpu"'):
        ooc.lu_factor(np.eye(3))
    with pytest.raises(DeviceError):
        ooc.pinned_empty(3)


def test_overlapping_goals_are_refused() -> None:
    room = np.eye(10)
    with pytest.raises(ArgumentError, match="out overlaps a"):
        ooc.lu_factor(room[:8, :8], out=room[1:9, 1:9], device="cpu")
