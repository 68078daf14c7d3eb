"""Products of stacks of small matrices that are there: by native threads, without a library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.runtime.cpu.matrices import stacks
from magmadnn.runtime.threads import thread_count

pytest.importorskip("scipy")  # whose BLAS is looked for before a kernel is taken
RNG = np.random.default_rng(8)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Sizes of the results that native threads made."""
    found: list[tuple[int, int]] = []
    known = stacks.on_stack

    def noted(*arguments: Any) -> Any:
        found.append(arguments[3])
        return known(*arguments)

    monkeypatch.setattr(stacks, "on_stack", noted)
    return found


def away(x: np.ndarray, w: np.ndarray) -> float:
    """The largest difference to a product in extended precision, in units of eps k |x| |w|."""
    found = np.asarray(md.asarray(x) @ md.asarray(w))
    expected = np.einsum("...mk,...kn->...mn", x.astype(np.longdouble), w.astype(np.longdouble))
    assert found.dtype == x.dtype and found.shape == expected.shape
    size = np.einsum("...mk,...kn->...mn", np.abs(x), np.abs(w)) * x.shape[-1]
    return float((np.abs(found - expected) / (size * np.finfo(x.dtype).eps)).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_remainders_of_rows_and_columns(calls: list[tuple[int, int]], dtype: str) -> None:
    sizes = [(8, 8, 8), (1, 3, 1), (5, 7, 13), (17, 2, 35), (9, 31, 16), (33, 5, 3), (3, 1, 47)]
    for m, k, n in sizes:
        count = 200_000 // (m * k * n + 200) + 1
        x = RNG.normal(size=(count, m, k)).astype(dtype)
        w = RNG.normal(size=(count, k, n)).astype(dtype)
        assert away(x, w) <= 1, (m, k, n)  # one rounding for each term of a sum
    assert calls == [(m, n) for m, _, n in sizes]


def test_broadcasts_one_for_all_and_special_values(calls: list[tuple[int, int]]) -> None:
    x = RNG.normal(size=(40, 1, 11, 6))
    assert away(x, RNG.normal(size=(25, 6, 9))) <= 1
    assert away(x, RNG.normal(size=(6, 90))) <= 1
    assert away(RNG.normal(size=(11, 6)), RNG.normal(size=(500, 6, 9))) <= 1
    assert len(calls) == 3
    x = RNG.normal(size=(600, 8, 8))
    x[5, 2, 3], x[7, 1, 1] = np.nan, np.inf
    found, expected = np.asarray(md.asarray(x) @ md.asarray(np.abs(x))), x @ np.abs(x)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.array_equal(np.isinf(found), np.isinf(expected))


def test_others_are_numpys(calls: list[tuple[int, int]]) -> None:
    """Few or large ones, other dtypes, and operands that do not lie row by row."""
    for x, w in [
        (RNG.normal(size=(3, 8, 8)), RNG.normal(size=(3, 8, 8))),
        (RNG.normal(size=(2, 140, 150)), RNG.normal(size=(2, 150, 9))),
        (RNG.integers(9, size=(900, 8, 8)), RNG.integers(9, size=(900, 8, 8))),
        (np.swapaxes(RNG.normal(size=(900, 8, 8)), 1, 2), RNG.normal(size=(900, 8, 8))),
        (RNG.normal(size=(900, 0, 8)), RNG.normal(size=(900, 8, 8))),
    ]:
        assert np.array_equal(np.asarray(md.ops.matmul(x, w)), np.matmul(x, w))
    assert not calls


def test_bits_do_not_depend_on_threads() -> None:
    x, w = RNG.normal(size=(2, 1003, 12, 12))
    before = thread_count()
    found = []
    try:
        for threads in (1, 2, 5):
            md.set_threads(threads)
            found.append(np.asarray(md.ops.matmul(x, w)))
    finally:
        md.set_threads(before)
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [(8, 8, 8), (5, 19, 16), (7, 3, 32), (12, 32, 9)])
def test_kernels_for_one_size_and_stores_past_the_caches_change_no_bit(
    dtype: str, size: tuple[int, int, int]
) -> None:
    m, k, n = size
    count = (
        stacks._LARGE // (m * n * np.dtype(dtype).itemsize) + 3
    )  # of what has memory at whole lines
    x, w = (RNG.normal(size=(count, *one)).astype(dtype) for one in ((m, k), (k, n)))
    plain = stacks.on_stack("gemm", (), (x, w), (m, n))
    assert plain is not None
    for past in (0, 1) if n * x.itemsize % 64 == 0 else (0,):
        found = stacks.on_stack("gemm", (), (x, w), (m, n), (*size, past))
        np.testing.assert_array_equal(found, plain)


def test_only_large_results_of_whole_lines_pass_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones would be read from memory by whoever comes next; others have lines that are not whole."""
    found: list[tuple[int, ...]] = []
    called = stacks.on_stack

    def noted(*arguments: Any) -> Any:
        found.append(arguments[-1])
        return called(*arguments)

    monkeypatch.setattr(stacks, "on_stack", noted)
    for count, n in ((9000, 8), (4000, 8), (9000, 9), (130, 40)):
        md.ops.matmul(*RNG.normal(size=(2, count, n, n)))
    assert found == [(8, 8, 8, 1), (8, 8, 8, 0), (9, 9, 9, 0), ()]
