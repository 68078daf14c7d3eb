"""Factors in mixed precision and solutions by them, with calls that NumPy computes; kernels compile."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from magmadnn.linalg.iterative.mixed import calls, elimination, kernels
from magmadnn.linalg.iterative.mixed.elimination import Elimination
from magmadnn.linalg.iterative.mixed.solving import Equations, solved_in_mixed
from tests.compiler.cuda.nvrtc import compiled, library_of

from .emulated_calls import Calls, Package, Stream

EPS, CUPY = np.finfo(np.float64).eps, Package()


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(elimination, "Calls", Calls)
    monkeypatch.setattr(Stream, "_all", [])
    monkeypatch.setattr(elimination, "_FREE", {})
    yield


def drawn(*shape: int) -> Any:
    return CUPY.asarray(np.random.default_rng(sum(shape)).normal(size=shape))


def factorised(a: np.ndarray, **options: Any) -> Elimination:
    n = len(a)
    made = Elimination(CUPY, 0, elimination.padded(n), **options)
    sums, most = CUPY.zeros(n), CUPY.zeros(n)
    made.narrow(a.data.ptr, n, 1.0, sums.data.ptr, most.data.ptr)
    np.testing.assert_allclose(sums, np.abs(a).sum(1))
    np.testing.assert_allclose(most, np.abs(a).max(1))
    made.factorise(2.0)
    return made


@pytest.mark.parametrize(("n", "width"), [(512, 32), (1030, 32), (520, 16), (512, 8)])
def test_p_a_is_l_u(monkeypatch: pytest.MonkeyPatch, n: int, width: int) -> None:
    monkeypatch.setattr(elimination, "width_of", lambda total: width)
    a = drawn(n, n)
    made = factorised(a)
    total, matrix = made.total, np.asarray(made.matrix, np.float64)
    whole = np.eye(total)
    whole[:n, :n] = a
    lower, upper = np.tril(matrix, -1) + np.eye(total), np.triu(matrix)
    assert np.abs(np.tril(matrix, -1)).max() <= 1 and not made.wrong[0]
    assert np.array_equal(np.sort(made.order), np.arange(total))
    # roundings of a sum of n products of numbers up to those of U, as they add up at random; twice that
    bound = 2 * np.finfo(np.float32).eps * n**0.5 * np.abs(upper).max()
    assert np.abs(whole[made.order] - lower @ upper).max() <= bound


def test_the_order_of_streams_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever goes ahead as far as events let it, and without another stream."""
    a = drawn(1030, 1030)
    found = []
    for ahead, last_first in ((False, False), (True, False), (True, True)):
        monkeypatch.setattr(Stream, "last_first", last_first)
        made = factorised(a, ahead=ahead)
        right = CUPY.asarray(np.ones((1, made.total), np.float32))
        found.append((np.array(made.matrix), np.array(made.order), np.array(made.solve(right))))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert np.array_equal(one, other)


def test_columns_that_are_changed_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two windows of five blocks give the numbers that one gives, but for roundings of products."""
    a = drawn(2500, 2500)
    at_once = factorised(a)
    monkeypatch.setattr(elimination, "_LEAST_LATE", 1)
    assert any(late for _, late in elimination.shares(5, 3))
    size = np.abs(at_once.matrix).max()
    for last_first in (False, True):
        monkeypatch.setattr(Stream, "last_first", last_first)
        late = factorised(a)
        assert np.array_equal(at_once.order, late.order)
        assert np.abs(at_once.matrix - late.matrix).max() <= np.finfo(np.float32).eps * 2500 * size


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8, 9, 32, 33])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 16])
def test_every_column_is_changed_by_every_block_in_order(blocks: int, window: int) -> None:
    """Before its own block is factorised, and by few blocks that are kept."""
    by = [0] * blocks
    oldest = 0
    for number, (near, late) in enumerate(elimination.shares(blocks, window)):
        if number + 1 < blocks:  # the step's own
            assert by[number + 1] == number
            by[number + 1] += 1
        for source, begin, end in [*near, *late]:
            assert begin < end and by[begin:end] == [source] * (end - begin)
            by[begin:end] = [source + 1] * (end - begin)
            oldest = max(oldest, number - source)
    assert by == list(range(blocks)) and oldest < max(window, 2)


def test_numbers_of_a_launch_lie_where_the_driver_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def launch(*told: Any) -> int:
        places = (ctypes.c_void_p * 4).from_address(told[9])
        kinds = (ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_longlong)
        read = [k.from_address(p).value for k, p in zip(kinds, places, strict=True)]
        seen.append((*told[:9], *read))
        return 0

    held = calls._OF_LAUNCH(launch)
    place = ctypes.cast(held, ctypes.c_void_p).value
    monkeypatch.setattr(calls.driver, "address_of", lambda name: place)
    kernel = calls.Kernel(SimpleNamespace(kernel=SimpleNamespace(ptr=77)))
    kernel(5, 128, 64, 9, (1 << 40, 3, calls._word(0.75), 1 << 35))
    assert seen == [(77, 5, 1, 1, 128, 1, 1, 64, 9, 1 << 40, 3, 0.75, 1 << 35)]


def test_streams_are_kept_for_the_next_elimination() -> None:
    one = Elimination(CUPY, 0, 512)
    lanes = one._lanes
    one.close()
    other = Elimination(CUPY, 0, 512)
    assert other._lanes is lanes and Elimination(CUPY, 0, 512)._lanes is not lanes


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e200, 1e-250])
@pytest.mark.parametrize("count", [1, 3])
def test_solutions_have_the_digits_of_float64(scale: float, count: int) -> None:
    n = 600
    a, b = drawn(n, n) * scale, drawn(count, n)
    found = solved_in_mixed(CUPY, 0, CUPY.asarray(a), b)
    assert found is not None
    x, steps, error, way = found
    assert way == "refinement" and 0 < steps <= 5 and error <= n**0.5 * EPS
    left = np.abs(b - x @ a.T).max(1)
    size = np.abs(a).sum(1).max() * np.abs(x).max(1) + np.abs(b).max(1)
    assert (left <= 2 * n**0.5 * EPS * size).all()


def conditioned(n: int, condition: float) -> Any:
    draw = np.random.default_rng(5)
    left, right = (np.linalg.qr(draw.normal(size=(n, n))).Q for _ in range(2))
    return CUPY.asarray(left * np.geomspace(1, 1 / condition, n) @ right)


def test_gmres_where_corrections_do_not_converge() -> None:
    a, b = conditioned(520, 1e8), drawn(1, 520)
    found = solved_in_mixed(CUPY, 0, a, b)
    assert found is not None
    x, steps, error, way = found
    assert way == "gmres" and steps > 1 and error <= 520**0.5 * EPS
    assert np.abs(b - x @ a.T).max() <= 520 * EPS * np.abs(a).sum(1).max() * np.abs(x).max()


def test_what_float32_cannot_factorise_is_left_to_others() -> None:
    b = drawn(1, 100)
    assert solved_in_mixed(CUPY, 0, CUPY.asarray(np.zeros((100, 100))), b) is None
    assert solved_in_mixed(CUPY, 0, CUPY.asarray(np.diag([1.0] * 99 + [0.0])), b) is None
    assert solved_in_mixed(CUPY, 0, conditioned(100, 1e17), b) is None
    holes = drawn(100, 100)
    holes[3, 7] = np.nan
    assert not Equations(CUPY, 0, holes).is_finite
    holes[3, 7] = np.inf
    assert solved_in_mixed(CUPY, 0, holes, b) is None


@pytest.mark.skipif(library_of(13) is None, reason="NVRTC of CUDA 13 is not installed")
@pytest.mark.parametrize("width", [32, pytest.param(16, marks=pytest.mark.long), 8])
def test_cudas_compiler_takes_the_text(width: int) -> None:
    options = ["-arch=sm_90", *kernels.OPTIONS, f"-DWIDTH={width}", f"-DROWS={32 // width}"]
    assert compiled(kernels.TEXT, 13, [*options, f"-DCLUSTER={kernels.BLOCKS}"])[0]
    assert compiled(kernels.PANEL, 13, [*options, "-DCLUSTER=1"])[0]


def test_wide_matrices_have_narrow_panels() -> None:
    rows = [512, 16384, 16896, 32768, 33280, elimination.MOST_ROWS]
    assert [elimination.width_of(n) for n in rows] == [32, 32, 16, 16, 8, 8]


@pytest.mark.parametrize(("all_of_them", "used"), [(132, 84), (46, 23), (1, 1)])
def test_products_keep_half_of_the_multiprocessors(all_of_them: int, used: int) -> None:
    targets: list[int] = []

    def set_target(handle: Any, count: Any) -> int:
        targets.append(count.value)
        return 0

    one = calls.Calls.__new__(calls.Calls)
    one._processors, one._handle = all_of_them, None
    one._blas = SimpleNamespace(cublasSetSmCountTarget=set_target)
    one.leave(48)
    one._blas = SimpleNamespace()  # a version that cannot
    one.leave(48)
    assert targets == [used]
