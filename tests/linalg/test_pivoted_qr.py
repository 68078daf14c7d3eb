"""QR with exchanges of columns on a GPU: the kernels as threads of the host, beside LAPACK's geqp3."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import available
from magmadnn.errors import NumericError
from magmadnn.linalg import orthogonal
from magmadnn.linalg.pivoted import kernels, reflections
from tests.compiler.cuda.nvrtc import compiled, library_of
from tests.runtime.cuda.emulator import Emulator, needs_compiler, run_launch

linalg = pytest.importorskip("scipy.linalg")
RNG = np.random.default_rng(17)
FOUND, REASON = available()


def at(address: int, dtype: str, rows: int, columns: int, ld: int) -> np.ndarray:
    """The matrix at an address, column by column."""
    size = np.dtype(dtype).itemsize
    count = (columns - 1) * ld + rows
    flat = np.frombuffer((ctypes.c_char * (count * size)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (size, ld * size))


class EmulatedCalls:
    """Kernels by threads of the host, products by NumPy."""

    def __init__(self, dtype: str) -> None:
        engine = Emulator()
        found = engine.load(engine.compile(kernels.text_of(dtype), ()), reflections.NAMES)
        self._functions = dict(zip(reflections.NAMES, found, strict=True))
        self._dtype, self.names = dtype, list[str]()

    def launch(self, name: str, blocks: int, *arguments: int) -> None:
        self.names.append(name)
        run_launch(self._functions[name], (blocks, 1, 1), (kernels.THREADS, 1, 1), arguments)

    def subtract(
        self, a: int, b: int, to: int, ld: int, rows: int, columns: int, inner: int
    ) -> None:
        goal = at(to, self._dtype, rows, columns, ld)
        left = at(a, self._dtype, rows, inner, ld)
        goal -= left @ at(b, self._dtype, inner, columns, kernels.BLOCK)


@pytest.fixture(scope="module")
def calls() -> Any:
    return {dtype: EmulatedCalls(dtype) for dtype in ("float32", "float64")}


def factorised(a: np.ndarray, told: EmulatedCalls) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q [m, m], R [m, n] in float64, and the order; what was not written is no number."""
    m, n = a.shape
    packed = np.zeros((n + 1, m), a.dtype)
    packed[1:] = a.T
    blocks, one = -(-m // kernels.THREADS), kernels.BLOCK
    sizes = {"effects": n * one, "column": m, "norms": 2 * n, "parts": blocks * (one + 1)}
    held = {name: np.full(size, np.nan, a.dtype) for name, size in sizes.items()}
    held |= {"pivot": np.zeros(1, np.int64), "order": np.arange(n)}
    room: Any = SimpleNamespace(**{name: x.ctypes.data for name, x in held.items()})
    reflections.factorise(told, packed.ctypes.data, a.dtype.itemsize, m, n, room)
    q = np.eye(m)
    for k in reversed(range(min(m, n))):
        v = np.concatenate([np.zeros(k), [1.0], packed[1 + k, k + 1 :].astype(np.float64)])
        q -= packed[0, k] * np.outer(v, v @ q)
    return q, np.triu(packed[1:].T).astype(np.float64), held["order"]


def check(a: np.ndarray, q: np.ndarray, r: np.ndarray, order: np.ndarray, exact: bool) -> None:
    """A[:, P] = Q R with columns at right angles and a falling diagonal; LAPACK's R where it is certain."""
    eps, (m, n) = np.finfo(a.dtype).eps, a.shape
    k, size = min(m, n), np.linalg.norm(a.astype(np.float64), 2)
    assert np.array_equal(np.sort(order), np.arange(n))
    # k reflections of n eps each at most, which add up at random
    bound = 8 * eps * max(m, n) ** 0.5
    assert np.abs(q @ r[: q.shape[1]] - a[:, order]).max() <= bound * size
    assert np.abs(q.T @ q - np.eye(q.shape[1])).max() <= bound
    ends = np.abs(np.diag(r))
    assert (ends[1:] <= ends[:-1] * (1 + 1e-3) + bound * size).all()
    _, expected, pivots = linalg.qr(a, pivoting=True)
    if exact:
        assert np.array_equal(order, pivots)
        assert np.abs(np.abs(r[:k]) - np.abs(expected[:k])).max() <= k * bound * size


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (40, 40), (131, 70), (37, 97), (6, 1), (1, 6)])
def test_order_and_triangle_are_those_of_lapack(
    dtype: str, shape: tuple[int, int], calls: Any
) -> None:
    a = RNG.normal(size=shape).astype(dtype)
    check(a, *factorised(a, calls[dtype]), exact=True)


@needs_compiler
def test_many_rows_have_a_block_for_each_column(calls: Any) -> None:
    told = calls["float64"]
    told.names.clear()
    a = RNG.normal(size=(kernels.TOGETHER + 5, 7))
    check(a, *factorised(a, told), exact=True)
    assert {"by_blocks", "by_warps"} <= set(told.names)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hard_matrices(dtype: str, calls: Any) -> None:
    """Low ranks, zeros and equal columns, columns of all sizes; lengths that cancel are computed anew."""
    low = RNG.normal(size=(50, 12)) @ RNG.normal(size=(12, 50))
    some = RNG.normal(size=(60, 40))
    some[:, 3], some[:, 7] = 0, some[:, 2]
    graded = RNG.normal(size=(45, 45)) * np.logspace(0, -8, 45)
    tilted = RNG.normal(size=(45, 1)) + 1e-7 * RNG.normal(size=(45, 45))
    hilbert = 1 / (1.0 + np.arange(40)[:, None] + np.arange(40))
    sine = np.sqrt(1 - 0.9**2)  # Kahan's, whose pivots stay in place
    kahan = sine ** np.arange(36)[:, None] * (np.eye(36) - 0.9 * np.triu(np.ones((36, 36)), 1))
    cases = [(low, False), (some, False), (graded, True), (tilted, dtype == "float64"), (hilbert, False)]
    for a, exact in [*cases, (kahan, False), (np.zeros((7, 7)), True)]:
        check(a.astype(dtype), *factorised(a.astype(dtype), calls[dtype]), exact)


@pytest.mark.skipif(library_of(13) is None, reason="there is no compiler of CUDA")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_compile(dtype: str) -> None:
    image, _ = compiled(kernels.text_of(dtype), 13, ("--std=c++17", "-arch=sm_90a"))
    assert image


@pytest.mark.gpu
@pytest.mark.skipif(not FOUND, reason=f"no GPU: {REASON}")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_on_a_gpu(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All modes, and numbers at the ends of the range; what is not finite is told by the host."""
    monkeypatch.setattr(orthogonal, "LEAST_PIVOTED", 1)
    largest = float(np.finfo(dtype).max)
    for shape, scale in (
        ((150, 90), 1.0),
        ((70, 140), 1.0),
        ((64, 64), largest / 1e3),
        ((9, 9), 1e-30),
    ):
        a = (RNG.normal(size=shape) * scale).astype(dtype)
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
            q, r = (y.astype(np.float64) for y in both)
            check((a / scale).astype(dtype), q, r / scale, order, exact=True)
    holes = np.ones((8, 8), dtype)
    holes[3, 5] = np.inf
    with pytest.raises(NumericError, match=r"qr: a holds inf at \[3, 5\]"):
        md.linalg.qr(md.Tensor.holding(holes, "DEVICE"), pivoting=True)
