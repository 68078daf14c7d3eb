"""One matrix of a hundred rows or more: LAPACK works on rows an odd number of cache lines apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.linalg import _at_once
from magmadnn.runtime.cpu.matrices import single

pytest.importorskip("scipy")

SHAPES = [(128, 128), (160, 130), (130, 160), (300, 128), (128, 300)]
DTYPES = ["float32", "float64", "complex64", "complex128"]


def drawn(m: int, n: int, dtype: str, order: Any) -> np.ndarray:
    rng = np.random.default_rng(m + n)
    a = rng.normal(size=(m, n)) + (1j * rng.normal(size=(m, n)) if dtype[0] == "c" else 0)
    return np.array(a, dtype, order=order)


def bound(a: np.ndarray) -> float:
    return float(30 * np.finfo(a.dtype).eps * max(a.shape))


def is_unitary(columns: np.ndarray) -> bool:
    gram = columns.conj().T @ columns
    return bool(np.abs(gram - np.eye(len(gram))).max() < bound(columns))


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of LAPACK's functions that were called."""
    names: list[str] = []
    call = single._call

    def counted(name: str, *words: Any) -> bool:
        names.append(name)
        return call(name, *words)

    monkeypatch.setattr(single, "_call", counted)
    return names


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_qr_and_svd_of_rows_that_are_apart(
    shape: tuple[int, int], dtype: str, order: str, taken: list[str]
) -> None:
    a = drawn(*shape, dtype, order)
    for mode in ("reduced", "complete"):
        q, r = map(np.asarray, md.linalg.qr(a, mode))
        by_numpy = np.linalg.qr(a, mode)
        assert (q.shape, r.shape, q.dtype) == (by_numpy[0].shape, by_numpy[1].shape, a.dtype)
        assert is_unitary(q) and not np.tril(r, -1).any()
        assert np.abs(q @ r - a).max() < bound(a)
        assert np.abs(r - by_numpy[1]).max() < 10 * bound(a)  # signs too
    for full in (True, False):
        u, s, vh = map(np.asarray, md.linalg.svd(a, full_matrices=full))
        _, expected, _ = by_numpy = np.linalg.svd(a, full_matrices=full)
        assert (u.shape, vh.shape) == (by_numpy[0].shape, by_numpy[2].shape)
        assert is_unitary(u) and is_unitary(vh.conj().T)
        assert np.abs((u[:, : len(s)] * s) @ vh[: len(s)] - a).max() < bound(a) * s[0]
        assert np.abs(s - expected).max() < bound(a) * s[0]
    assert np.abs(np.asarray(md.linalg.svdvals(a)) - s).max() < bound(a) * s[0]
    assert {name[1:] for name in taken} >= {"geqrf", "gesdd"}


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("half", "LU")
def test_eigenvalues_of_the_triangle_that_is_asked_for(
    half: str, dtype: str, order: str, taken: list[str]
) -> None:
    a = drawn(200, 200, dtype, order)
    a = a + a.conj().T
    kept = np.tril(a) + 7 * np.triu(np.ones_like(a), 1)
    given = np.array(kept if half == "L" else kept.conj().T, order=order)
    values, columns = map(np.asarray, md.linalg.eigh(given, half))
    expected = np.linalg.eigvalsh(a)
    size = np.abs(expected).max()
    assert (values.dtype, columns.dtype) == (expected.dtype, a.dtype)
    assert np.abs(values - expected).max() < bound(a) * size
    assert np.abs(a @ columns - columns * values).max() < bound(a) * size
    assert is_unitary(columns)
    assert np.abs(np.asarray(md.linalg.eigvalsh(given, half)) - expected).max() < bound(a) * size
    assert {name[1:] for name in taken} >= {"stedc", "sterf"}


@pytest.mark.parametrize("scale", [1e-200, 1e160])
def test_matrices_that_syevd_scales_are_left_to_it(scale: float, taken: list[str]) -> None:
    a = drawn(128, 128, "float64", "C")
    a = a + a.T
    values, columns = map(np.asarray, md.linalg.eigh(a * scale))
    assert not taken
    assert np.allclose(values / scale, np.linalg.eigvalsh(a), rtol=1e-10)
    assert np.abs((a @ columns) - columns * (values / scale)).max() < 1e-10


def test_rows_begin_an_odd_number_of_cache_lines_apart() -> None:
    for dtype in ("f", "d", "F", "D"):
        for columns in (1, 7, 8, 128, 1000, 1024):
            rows = single._padded(3, columns, np.dtype(dtype))
            assert rows.shape == (3, columns) and rows.strides[0] // 64 % 2 == 1
            assert rows.strides[0] % 64 == 0 and rows.strides[1] == rows.itemsize


def test_failures_and_functions_that_are_missing_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    a = drawn(128, 128, "float64", "C")
    monkeypatch.setattr(single, "_call", lambda *words: False)
    single._wanted.clear()
    assert single.reflections_of(a, False) is None
    assert single.singular_of(a, True, False) is single.eigen_of(a, True, True) is None
    q, r = md.linalg.qr(a)  # SciPy's wrappers compute it then
    assert np.allclose(q @ r, a)
    monkeypatch.setattr(single, "address_of", lambda name: None)
    assert single.reflections_of(a, False) is None


def test_room_for_triangles_keeps_products_by_reflections_in_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ormtr says that it wants columns times a block, and works one by one in as much."""
    rooms: list[tuple[str, int]] = []
    call = single._call

    def counted(name: str, *words: Any) -> bool:
        rooms.append((name, words[-1]))
        return call(name, *words)

    single._wanted.clear()
    monkeypatch.setattr(single, "_call", counted)
    a = drawn(200, 200, "float64", "C")
    md.linalg.eigh(a + a.T)
    asked, used = (room for name, room in rooms if name == "dormtr")
    assert asked == -1 and used >= 200 * 32 + 65 * 64


def test_small_matrices_are_for_the_wrappers(taken: list[str]) -> None:
    a = drawn(_at_once._PADDED - 1, 200, "float64", "C")
    md.linalg.qr(a)
    md.linalg.svd(a)
    assert not taken
