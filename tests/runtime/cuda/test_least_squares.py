"""Eager least squares on a device: by products, by QR where that is too inexact, else by singular vectors."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import MatrixNode
from magmadnn.compiler.cuda.library import spectra
from magmadnn.errors import DeviceError, NumericError, OutOfMemoryError, ShapeError
from magmadnn.linalg import least_squares
from magmadnn.linalg.tall import products
from magmadnn.memory import MemoryManager
from magmadnn.tensor.eager import programs
from tests.runtime.cuda.emulator import Emulator, emulated_device, needs_compiler
from tests.runtime.cuda.test_eager_calls import there

pytestmark = needs_compiler
RNG = np.random.default_rng(5)
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((6, 4), (6, 2)), ((6, 4), (6,)), ((5, 5), (5, 3)), ((2, 3, 6, 4), (2, 3, 6, 1)), ((40, 34), (40, 1)),
]  # fmt: skip


@pytest.fixture
def device() -> Iterator[Emulator]:
    with emulated_device() as made:
        yield made


@pytest.fixture
def by_values(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each call that singular vectors answered on the device."""
    calls: list[int] = []
    original = least_squares._by_values

    def counted(a: Any, *rest: Any) -> Any:
        calls.extend([1] * (isinstance(a, md.Tensor) and a.kind is md.DEVICE))
        return original(a, *rest)

    monkeypatch.setattr(least_squares, "_by_values", counted)
    return calls


def check(a: np.ndarray, b: np.ndarray, rcond: float | None = None) -> None:
    """The four results are those of the host, and lie on the device."""
    found = md.linalg.lstsq(there(a), there(b), rcond)
    assert all(x.kind is md.DEVICE for x in found)
    x, residuals, rank, s = (np.asarray(one.read()) for one in found)
    wanted = [np.asarray(one) for one in md.linalg.lstsq(a, b, rcond)]
    limit = 1e-3 if a.dtype == np.float32 else 1e-11
    assert (rank == wanted[2]).all() and rank.dtype == wanted[2].dtype
    for one, other in zip((x, residuals, s), (wanted[0], wanted[1], wanted[3]), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, atol=limit * max(1, np.abs(other).max()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("of_a", "of_b"), SHAPES)
def test_full_rank_is_by_products_and_less_by_ranges_where_they_prove_it(
    of_a: tuple[int, ...], of_b: tuple[int, ...], dtype: str, device: Emulator, by_values: list[int]
) -> None:
    a, b = RNG.normal(size=of_a).astype(dtype), RNG.normal(size=of_b).astype(dtype)
    check(a, b)
    assert not by_values
    one = (0,) * (a.ndim - 2)  # a single one of a stack, whose others have full rank
    low = a.copy()
    low[(*one, slice(None), 1)] = low[(*one, slice(None), 0)]
    check(low, b)
    assert len(by_values) == (a.ndim > 2)
    low[(*one, slice(None), 1)] = 0
    check(low, b)
    assert len(by_values) == 2 * (a.ndim > 2)
    low[..., 1] = 2 * low[..., 0]
    check(low, b)
    assert len(by_values) == 2 * (a.ndim > 2)
    by_values.clear()
    check(np.zeros_like(a), b)
    s = np.linalg.svd(a, compute_uv=False)
    check(a, b, float((s[..., -1] / s[..., 0]).min()) * 1.5)  # the limit decides
    assert len(by_values) == 2
    check(a, b, float((s[..., -1] / s[..., 0]).min()) * 0.5)
    assert len(by_values) == 2


def test_wide_and_complex_matrices_are_by_singular_vectors(
    device: Emulator, by_values: list[int]
) -> None:
    check(RNG.normal(size=(3, 6)), RNG.normal(size=(3, 2)))
    a = RNG.normal(size=(5, 3)) + 1j
    check(a, a[:, :1])
    assert len(by_values) == 2


def test_what_is_wrong_is_said_of_lstsq(device: Emulator) -> None:
    a = RNG.normal(size=(6, 4))
    a[2, 1] = np.nan
    with pytest.raises(NumericError, match=r"lstsq: a holds nan at \[2, 1\]"):
        md.linalg.lstsq(there(a), there(a[:, :1]))
    with pytest.raises(ShapeError, match="lstsq"):
        md.linalg.lstsq(there(RNG.normal(size=(6, 4))), there(RNG.normal(size=(5, 1))))


def functions_of(device: Emulator) -> list[str]:
    """What libraries were called for."""
    nodes = [node for replay in device.replays for node in replay.nodes]
    return [node.function for node in nodes if isinstance(node, MatrixNode)]


def test_one_decomposition_gives_x_and_singular_values(
    device: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(least_squares, "_MOST_MIXED", 39)
    monkeypatch.setattr(spectra, "_is_small", lambda _: False)  # the library's calls are counted
    a = RNG.normal(size=(40, 40))
    a[:, 1] = a[:, 0]
    md.linalg.lstsq(there(a), there(a[:, :1]))
    assert functions_of(device) == ["gesdd"]


# --- of low rank ----------------------------------------------------------------------------------


def of_rank(m: int, n: int, values: Sequence[float]) -> np.ndarray:
    """A matrix with some singular values, and zeros."""
    k = len(values)
    left, right = (np.linalg.qr(RNG.normal(size=(size, k)))[0] for size in (m, n))
    return np.asarray((left * values) @ right.T)


@pytest.mark.parametrize("kind", ["equal", "halves", "few", "graded", "one", "small"])
def test_solutions_of_low_rank_are_as_exact_as_by_singular_vectors(
    kind: str, device: Emulator, by_values: list[int]
) -> None:
    """Within eps (cond |x| + cond |b| / |A| + cond^2 |r| / |A|), as a change of A by eps |A| moves x."""
    m, n = 61, 37
    a = RNG.normal(size=(m, n))
    values = {"few": [3.0, 2.0, 1.0], "graded": np.geomspace(1, 1e-4, 20), "one": [5.0]}
    if kind in values:
        a = of_rank(m, n, values[kind])
    elif kind == "halves":
        a[:, 20:] = a[:, :17]
    else:
        a[:, 1] = a[:, 0] * (1e-90 if kind == "small" else 1)
        a *= 1e-70 if kind == "small" else 1
    b = RNG.normal(size=(m, 2))
    x, residuals, rank, s = (np.asarray(t.read()) for t in md.linalg.lstsq(there(a), there(b)))
    u, wanted, v = np.linalg.svd(a, full_matrices=False)
    eps = np.finfo(float).eps
    k = int((wanted > eps * m * wanted[0]).sum())
    exact = v[:k].T @ ((u[:, :k].T @ b) / wanted[:k, None])
    left = a @ exact - b
    cond, size = wanted[0] / wanted[k - 1], np.linalg.norm
    unit = eps * (
        cond * size(exact) + cond * size(b) / wanted[0] + cond**2 * size(left) / wanted[0]
    )
    assert rank == k < n and size(x - exact) < 10 * unit
    np.testing.assert_allclose(residuals, (left**2).sum(0), rtol=1e-10)
    np.testing.assert_allclose(s, wanted, atol=30 * n * eps * wanted[0])
    assert not by_values


@pytest.mark.parametrize("value", [0.3, 0.9, 1.1, 3.0])
def test_what_lies_near_the_limit_is_left_to_singular_values(
    value: float, device: Emulator, by_values: list[int]
) -> None:
    """One value near the limit, from both sides: the rank is NumPy's, whoever finds it."""
    a = of_rank(40, 20, [1.0, 0.9, 0.8, value * 1e-9])
    b = RNG.normal(size=(40, 1))
    rank = int(md.linalg.lstsq(there(a), there(b), 1e-9).rank.read())
    assert rank == 3 + (value > 1) == np.linalg.lstsq(a, b, 1e-9)[2]
    assert len(by_values) == (0.5 < value)


def test_ways_follow_what_answered_last_and_give_the_same_bits(
    device: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("by_products", "by_ranges"):
        original = getattr(least_squares, name)

        def counted(*args: Any, name: str = name, original: Any = original) -> Any:
            calls.append(name)
            return original(*args)

        monkeypatch.setattr(least_squares, name, counted)
    full, b = RNG.normal(size=(23, 11)), RNG.normal(size=(23, 1))
    low = full.copy()
    low[:, 1] = low[:, 0]
    first = [md.linalg.lstsq(there(a), there(b)).x.read() for a in (full, low)]
    assert calls == ["by_products", "by_products", "by_ranges"]
    calls.clear()
    again = [md.linalg.lstsq(there(a), there(b)).x.read() for a in (low, full, full)]
    assert calls == ["by_ranges", "by_ranges", "by_products", "by_products"]
    for found, wanted in zip(again, (first[1], first[0], first[0]), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_late_values_of_low_rank_are_those_of_the_call(device: Emulator) -> None:
    a = of_rank(12, 7, [2.0, 1.0])
    operand = there(a)
    found = md.linalg.lstsq(operand, there(a[:, :1]))
    operand[:] = 5.0
    np.testing.assert_allclose(found.s.read(), np.linalg.svd(a)[1], atol=1e-14)


# --- by products ----------------------------------------------------------------------------------


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways that calls on the device tried, in order."""
    tried: list[str] = []

    def spied(name: str) -> None:
        original = getattr(least_squares, name)

        def call(a: Any, *rest: Any) -> Any:
            tried.extend(
                [name.removeprefix("_").removeprefix("by_")]
                * (isinstance(a, md.Tensor) and a.kind is md.DEVICE)
            )
            return original(a, *rest)

        monkeypatch.setattr(least_squares, name, call)

    for name in ("by_products", "_by_reflections", "_by_values"):
        spied(name)
    return tried


def conditioned(m: int, n: int, condition: float) -> np.ndarray:
    """A matrix with singular values from 1 down, evenly in their logarithms."""
    u, v = (np.linalg.qr(RNG.normal(size=(k, n)))[0] for k in (m, n))
    found: np.ndarray = (u * np.geomspace(1, 1 / condition, n)) @ v.T
    return found


def graded(condition: float, way: str) -> np.ndarray:
    """[24, 8] of some condition, or with columns or rows of different sizes."""
    a = RNG.normal(size=(24, 8))
    if way == "columns":
        return a * np.geomspace(1, 1 / condition, 8)
    if way == "rows":
        return a * np.geomspace(1, 1 / condition, 24)[RNG.permutation(24), None]
    return conditioned(24, 8, condition)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", ["both sides", "columns", "rows"])
def test_solutions_are_as_exact_as_those_of_numpy(
    way: str, dtype: str, device: Emulator, ways: list[str]
) -> None:
    """Of any condition: sums of squares lose half of the digits, and the corrections bring them back."""
    eps = float(np.finfo(dtype).eps)
    for power in (0, 2, 4, 5, 6, 7, 7.5, 8, 11, 16):
        a = graded(10.0**power, way).astype(dtype)
        for b in (RNG.normal(size=(24, 2)), a @ RNG.normal(size=(8, 2))):
            b = b.astype(dtype)
            ways.clear()
            x, residuals, rank, s = (
                np.asarray(one.read()) for one in md.linalg.lstsq(there(a), there(b))
            )
            wide = np.linalg.lstsq(a.astype("d"), b.astype("d"))
            assert rank == np.count_nonzero(wide[3] > 24 * eps * wide[3][0])
            np.testing.assert_allclose(s, wide[3], atol=20 * eps * wide[3][0])
            if rank < 8:
                continue  # what is left out is up to the rounding of each way
            if way != "rows" and (power <= 4 if dtype == "float64" else power <= 2):
                assert ways == ["products"]
            if way != "rows" and power >= 6:
                assert ways[-1] != "products"
            condition, largest = wide[3][0] / wide[3][-1], wide[3][0]
            left = np.linalg.norm(b - a.astype("d") @ wide[0])
            size = np.linalg.norm(wide[0]) + (np.linalg.norm(b) + condition * left) / largest
            assert np.linalg.norm(x - wide[0]) <= 8 * eps * condition * size
            allowed = 300 * eps * (np.linalg.norm(b) + largest * np.linalg.norm(x)) ** 2
            np.testing.assert_allclose(
                residuals, ((a.astype("d") @ x - b) ** 2).sum(0), atol=allowed
            )


def test_corrections_bring_back_the_digits_that_products_lose(
    device: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = []
    for corrections in (0, products.CORRECTIONS):
        with monkeypatch.context() as changed:
            changed.setattr(products, "CORRECTIONS", corrections)
            rows = 24 + corrections  # programs are kept by shapes
            a, x = conditioned(rows, 8, 1e5), np.ones((8, 1))
            found = least_squares.by_products(there(a), there(a @ x), 1e-14)[0]
            away.append(float(abs(np.asarray(found.read()) - x).max()))
    assert away[0] > 1e-8 and away[1] < 2e-10


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_limit_decides_the_rank_as_numpy_does(
    dtype: str, device: Emulator, ways: list[str]
) -> None:
    """Just above it and just below it, alone and in a stack, of any size of numbers."""
    b = RNG.normal(size=(12, 2)).astype(dtype)
    seen = set()
    for condition in (4.0, 300.0):
        a = conditioned(12, 5, condition).astype(dtype)
        s = np.linalg.svd(a.astype("d"), compute_uv=False)
        for factor in (1e-3, 0.4, 0.999, 1.001, 1.2):
            rcond = factor * s[-1] / s[0]
            for scale in (1, 2.0**30):
                ways.clear()
                many = np.stack([conditioned(12, 5, 1.7).astype(dtype), a])
                many *= np.dtype(dtype).type(scale)
                found = md.linalg.lstsq(there(many), there(b), rcond)
                wanted = [int(np.linalg.lstsq(one, b, rcond)[2]) for one in many]
                assert np.asarray(found.rank.read()).tolist() == wanted
                seen.add((ways[-1], wanted[1]))
    assert seen == {("products", 5), ("reflections", 5), ("values", 4)}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_right_sides_that_are_not_finite_are_refused(value: float, device: Emulator) -> None:
    for condition in (2, 1e6):  # by products, and by QR
        a, b = conditioned(9, 4, condition), RNG.normal(size=(9, 3))
        b[8, 1] = value
        with pytest.raises(NumericError, match=r"lstsq: b holds -?(nan|inf) at \[8, 1\]"):
            md.linalg.lstsq(there(a), there(b))


@pytest.mark.parametrize("size", [1e-170, 1e-155, 1e-20, 1e20, 1e155, 1e170])
def test_squares_may_leave_the_range_of_numbers(size: float, device: Emulator) -> None:
    a, x = conditioned(9, 4, 10) * size, RNG.normal(size=(4, 2))
    found = md.linalg.lstsq(there(a), there(a @ x))
    np.testing.assert_allclose(found.x.read(), x, rtol=1e-12)
    assert found.rank.item() == 4
    np.testing.assert_allclose(found.s.read(), np.linalg.svd(a, compute_uv=False), rtol=1e-13)


def test_where_memory_is_short_the_other_ways_are_tried(
    device: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*_: Any) -> Any:
        raise OutOfMemoryError("none is left")

    monkeypatch.setattr(least_squares, "by_products", without)
    check(RNG.normal(size=(6, 4)), RNG.normal(size=(6, 2)))


# --- singular values that are computed when they are first read -----------------------------------


def decompositions(device: Emulator) -> int:
    """How often singular values were computed."""
    nodes = [node for replay in device.replays for node in replay.nodes]
    return sum(isinstance(n, MatrixNode) and n.function == "gesdd" for n in nodes)


def test_singular_values_are_those_of_before_a_was_changed(
    device: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spectra, "_is_small", lambda _: False)
    a, b = RNG.normal(size=(9, 4)), RNG.normal(size=(9, 2))
    operands = there(a), there(b)
    found = md.linalg.lstsq(*operands)
    assert not decompositions(device)
    for operand in operands:
        operand[:] = 3.0
    for one in (found.x, found.residuals):
        one[:] = 5.0
    s = np.linalg.svd(a, compute_uv=False)
    assert found.s.shape == (4,) and found.s.dtype == np.float64 and found.s.kind is md.DEVICE
    assert not decompositions(device)
    np.testing.assert_allclose(found.s.read(), s, rtol=1e-13)
    assert decompositions(device) == 1
    np.testing.assert_allclose(found.s.read(), s, rtol=1e-13)
    assert decompositions(device) == 1


def test_late_values_are_operands_and_may_be_written_to(device: Emulator) -> None:
    a, b = RNG.normal(size=(3, 9, 4)), RNG.normal(size=(9, 2))
    s = np.linalg.svd(a, compute_uv=False)

    def late() -> md.Tensor:
        found: md.Tensor = md.linalg.lstsq(there(a), there(b)).s
        return found

    np.testing.assert_allclose(np.asarray((late() * 2).read()), 2 * s, rtol=1e-13)
    np.testing.assert_allclose(late()[1, 2:].read(), s[1, 2:], rtol=1e-13)
    np.testing.assert_allclose(late().reshape(12).to("HOST").read(), s.reshape(12), rtol=1e-13)
    np.testing.assert_allclose(md.ops.sum(late()).read(), s.sum(), rtol=1e-13)
    found = late()
    found[1] = 7.0
    np.testing.assert_allclose(found.read(), [s[0], [7.0] * 4, s[2]], rtol=1e-13)
    whole = late()
    whole[:] = 7.0
    np.testing.assert_allclose(whole.read(), np.full((3, 4), 7.0))
    np.testing.assert_allclose(late().copy().read(), s, rtol=1e-13)


def test_factors_are_freed_with_the_values_or_once_these_are_known(
    device: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors: list[Any] = []
    original = least_squares._values_later

    def kept(lower: md.Tensor, second: md.Tensor, dtype: Any) -> md.Tensor:
        factors[:] = weakref.ref(lower.memory), weakref.ref(second.memory)
        return original(lower, second, dtype)

    monkeypatch.setattr(least_squares, "_values_later", kept)
    monkeypatch.setattr(programs, "MOST_KEPT", 0)  # bytes of results that programs keep
    a, b = there(RNG.normal(size=(19, 5))), there(RNG.normal(size=(19, 3)))
    for reads in (True, False):
        found = md.linalg.lstsq(a, b)
        assert all(one() is not None for one in factors)
        if reads:
            found.s.read()
        else:
            del found
        gc.collect()
        assert all(one() is None for one in factors)


def test_threads_that_read_late_values_compute_them_once(device: Emulator) -> None:
    a, b = RNG.normal(size=(9, 4)), RNG.normal(size=(9, 2))
    s = np.linalg.svd(a, compute_uv=False)
    np.testing.assert_allclose(md.linalg.lstsq(there(a), there(b)).s.read(), s)  # programs are made
    for _ in range(5):
        late, before = md.linalg.lstsq(there(a), there(b)).s, decompositions(device)
        found = in_threads(lambda number, late=late: late if number % 2 else late * 1)
        assert len(found) == 4 and decompositions(device) - before <= 1
        for one in found:
            np.testing.assert_allclose(one, s, rtol=1e-13)


def in_threads(call: Callable[[int], Any]) -> list[np.ndarray]:
    """What four threads that begin together read."""
    found: list[np.ndarray] = []
    begin = threading.Barrier(4)

    def run(number: int) -> None:
        begin.wait()
        found.append(np.asarray(call(number).read()))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def test_late_memory_is_asked_again_after_an_error(device: Emulator) -> None:
    ready = there(np.arange(3.0)).memory
    answers = iter([DeviceError("not now"), ready])

    def make() -> MemoryManager:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    late = MemoryManager.late(3, np.dtype(np.float64), ready.device, make)
    with pytest.raises(DeviceError, match="not now"):
        late.device_pointer()
    assert late.device_pointer() == ready.device_pointer() == late.device_pointer()


def test_late_memory_is_computed_by_one_thread(device: Emulator) -> None:
    ready, calls, begin = there(np.arange(3.0)).memory, [], threading.Barrier(3)

    def make() -> MemoryManager:
        calls.append(1)
        time.sleep(0.05)
        return ready

    late = MemoryManager.late(3, np.dtype(np.float64), ready.device, make)
    found: list[int] = []

    def ask() -> None:
        begin.wait()
        found.append(late.device_pointer())

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [ready.device_pointer()] * 3 and len(calls) == 1
