"""QR with exchanges of columns on a GPU: the kernels as threads of the host, beside LAPACK's geqp3."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import available
from magmadnn.compiler.cuda.library import geqp3
from magmadnn.compiler.cuda.module import OPTIONS, module_text
from magmadnn.errors import DeviceError, NumericError
from magmadnn.linalg import orthogonal
from magmadnn.linalg.pivoted import reflections
from tests.compiler.cuda.nvrtc import compiled, library_of
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

linalg = pytest.importorskip("scipy.linalg")
RNG = np.random.default_rng(17)
FOUND, REASON = available()


def at(address: int, dtype: str, rows: int, columns: int, ld: int) -> np.ndarray:
    """The matrix at an address, column by column."""
    size = np.dtype(dtype).itemsize
    count = (columns - 1) * ld + rows
    flat = np.frombuffer((ctypes.c_char * (count * size)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (size, ld * size))


def factorised(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q [m, m], R [m, n] in double precision, and the order; what was not written is no number."""
    (m, n), dtype = a.shape, a.dtype.name
    held = list[np.ndarray]()

    def room(count: int, dtype: str) -> int:
        held.append(np.full(count, np.nan if dtype[0] in "fc" else -9, dtype))
        return held[-1].ctypes.data

    def subtract(x: int, y: int, to: int, ld: int, rows: int, columns: int, inner: int) -> None:
        engine.wait()
        goal, left = at(to, dtype, rows, columns, ld), at(x, dtype, rows, inner, ld)
        goal -= left @ at(y, dtype, inner, columns, geqp3.BLOCK)

    with emulated_device() as engine:
        made = reflections.Reflections(engine, subtract, dtype, m, n, room)
        for _ in range(2):  # again, with the same graphs
            packed = held[0].reshape(n + 1, m)
            packed[0], packed[1:] = 0, a.T
            made.factorise()
            engine.wait()
    wide = np.result_type(dtype, np.float64)
    q = np.eye(m, dtype=wide)
    for k in reversed(range(min(m, n))):
        v = np.concatenate([np.zeros(k), [1.0], packed[1 + k, k + 1 :].astype(wide)])
        q -= packed[0, k] * np.outer(v, v.conj() @ q)
    return q, np.triu(packed[1:].T).astype(wide), held[1]


def check(a: np.ndarray, q: np.ndarray, r: np.ndarray, order: np.ndarray, exact: bool) -> None:
    """A[:, P] = Q R with columns at right angles and a falling diagonal; LAPACK's R where it is certain."""
    eps, (m, n) = np.finfo(a.dtype).eps, a.shape
    k, size = min(m, n), np.linalg.norm(a.astype(q.dtype), 2)
    assert np.array_equal(np.sort(order), np.arange(n))
    # k reflections of n eps each at most, which add up at random
    bound = 8 * eps * max(m, n) ** 0.5
    assert np.abs(q @ r[: q.shape[1]] - a[:, order]).max() <= bound * size
    assert np.abs(q.conj().T @ q - np.eye(q.shape[1])).max() <= bound
    ends = np.abs(np.diag(r))
    assert (ends[1:] <= ends[:-1] * (1 + 1e-3) + bound * size).all()
    _, expected, pivots = linalg.qr(a, pivoting=True)
    if exact:
        assert np.array_equal(order, pivots)
        assert np.abs(np.abs(r[:k]) - np.abs(expected[:k])).max() <= k * bound * size


DTYPES = ["float32", "float64", "complex64", "complex128"]


def drawn(shape: tuple[int, int], dtype: str, scale: float = 1.0) -> np.ndarray:
    both = np.random.default_rng(shape).normal(size=(2, *shape)) * scale
    return (both[0] + (1j * both[1] if dtype[0] == "c" else 0)).astype(dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (40, 40), (131, 70), (37, 97), (6, 1), (1, 6)])
def test_order_and_triangle_are_those_of_lapack(dtype: str, shape: tuple[int, int]) -> None:
    a = drawn(shape, dtype)
    check(a, *factorised(a), exact=True)


@needs_compiler
def test_many_rows_have_a_block_for_each_column() -> None:
    a = RNG.normal(size=(geqp3.TOGETHER + 5, 7))
    check(a, *factorised(a), exact=True)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_hard_matrices(dtype: str) -> None:
    """Low ranks, zeros and equal columns, columns of all sizes; lengths that cancel are computed anew."""
    low = RNG.normal(size=(50, 12)) @ RNG.normal(size=(12, 50))
    some = RNG.normal(size=(60, 40))
    some[:, 3], some[:, 7] = 0, some[:, 2]
    graded = RNG.normal(size=(45, 45)) * np.logspace(0, -8, 45)
    tilted = RNG.normal(size=(45, 1)) + 1e-7 * RNG.normal(size=(45, 45))
    hilbert = 1 / (1.0 + np.arange(40)[:, None] + np.arange(40))
    sine = np.sqrt(1 - 0.9**2)  # Kahan's, whose pivots stay in place
    kahan = sine ** np.arange(36)[:, None] * (np.eye(36) - 0.9 * np.triu(np.ones((36, 36)), 1))
    cases = [
        (low, False),
        (some, False),
        (graded, True),
        (tilted, dtype in ("float64", "complex128")),
        (hilbert, False),
    ]
    for a, exact in [*cases, (kahan, False), (np.zeros((7, 7)), True)]:
        if dtype[0] == "c":  # rows of other phases, which change no length
            a = a * np.exp(1j * np.arange(len(a)))[:, None]
        check(a.astype(dtype), *factorised(a.astype(dtype)), exact)


@pytest.mark.parametrize("error", [RuntimeError("cublas"), MemoryError(), DeviceError("launch")])
def test_what_the_device_cannot_do_the_host_does(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()

    def fails(cupy: object, a: object, device: int) -> None:
        asked.append(device)
        raise error

    cuda = SimpleNamespace(Device=lambda number: nullcontext())
    monkeypatch.setattr(orthogonal, "LEAST_PIVOTED", 1)
    monkeypatch.setattr(
        orthogonal, "array_library", lambda: SimpleNamespace(cuda=cuda, asarray=lambda a: a)
    )
    monkeypatch.setattr(reflections, "on_device", fails)
    a = RNG.normal(size=(7, 5))
    with emulated_device():
        found = md.linalg.qr(md.Tensor.holding(a, "DEVICE"), pivoting=True)
        q, r, order = (x.read() for x in found)
    assert len(asked) == 1
    assert np.array_equal(order, linalg.qr(a, pivoting=True)[2])
    # 5 reflections of 7 eps each at most, which add up at random
    bound = 8 * np.finfo(a.dtype).eps * 7**0.5 * np.linalg.norm(a, 2)
    assert np.abs(q @ r - a[:, order]).max() <= bound


@pytest.mark.skipif(library_of(13) is None, reason="there is no compiler of CUDA")
def test_kernels_compile() -> None:
    ways = ("lengths", 0), ("longest", 0), ("reflected", 32), ("reflected", geqp3.THREADS)
    parts = [geqp3.PivotedPart(d, *way) for d in DTYPES for way in ways]
    assert compiled(module_text(parts), 13, (*OPTIONS, "-arch=sm_90a"))[0]


@pytest.mark.gpu
@pytest.mark.skipif(not FOUND, reason=f"no GPU: {REASON}")
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_gpu(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All modes, and numbers at the ends of the range; what is not finite is told by the host."""
    monkeypatch.setattr(orthogonal, "LEAST_PIVOTED", 1)
    monkeypatch.setattr(orthogonal, "_pivoted", None)  # the host's way
    largest = float(np.finfo(dtype).max)
    for shape, scale in (
        ((300, 90), 1.0),
        ((150, 90), 1.0),
        ((70, 140), 1.0),
        ((64, 64), largest / 1e3),
        ((9, 9), 1e-30),
    ):
        a = drawn(shape, dtype, scale)
        x = md.Tensor.holding(a, "DEVICE")
        for mode in ("reduced", "complete", "r"):
            found = md.linalg.qr(x, mode, pivoting=True)
            assert all(y.kind is md.DEVICE for y in found)
            *both, order = (y.numpy() for y in found)
            wanted = linalg.qr(
                a, mode={"reduced": "economic", "complete": "full"}.get(mode, mode), pivoting=True
            )
            assert [y.shape for y in found] == [y.shape for y in wanted]
            assert [y.dtype for y in found] == [y.dtype for y in wanted]
            if mode == "r":
                continue
            q, r = (y.astype(np.result_type(y, np.float64)) for y in both)
            check((a / scale).astype(dtype), q, r / scale, order, exact=True)
    monkeypatch.undo()
    monkeypatch.setattr(orthogonal, "LEAST_PIVOTED", 1)
    holes = np.ones((8, 8), dtype)
    holes[3, 5] = np.inf
    with pytest.raises(NumericError, match=r"qr: a holds \(?inf(\+0j\))? at \[3, 5\]"):
        md.linalg.qr(md.Tensor.holding(holes, "DEVICE"), pivoting=True)


@pytest.mark.gpu
@pytest.mark.skipif(not FOUND, reason=f"no GPU: {REASON}")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_on_a_gpu_are_those_of_float32_rounded_once(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orthogonal, "_pivoted", None)  # the host's way
    a = md.asarray(drawn((150, 131), "float32")).astype(dtype)
    wide = md.Tensor.holding(a.read().astype("float32"), "DEVICE")
    half = md.Tensor.holding(a.read(), "DEVICE")
    for mode in ("reduced", "complete", "r"):
        wanted, found = (md.linalg.qr(x, mode, pivoting=True) for x in (wide, half))
        assert all(y.kind is md.DEVICE for y in found)
        for y, z in zip(found[:-1], wanted[:-1], strict=True):
            np.testing.assert_array_equal(y.read(), z.read().astype(a.read().dtype))
        np.testing.assert_array_equal(found[-1].read(), wanted[-1].read())
