"""Singular values alone by products, on stand-ins of the libraries that compute in this process's memory."""

from __future__ import annotations

import ctypes
import re
from ctypes import byref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from magmadnn.backends.cuda.libraries import polar, repeated
from magmadnn.backends.cuda.libraries.cusolver import MatrixFunctions
from magmadnn.backends.cuda.libraries.polar import polynomials
from magmadnn.backends.cuda.nodes.matrices import MOST_BY_QR, MatrixNode
from magmadnn.errors import DeviceError, OutOfMemoryError
from tests.runtime.cuda.emulated_matrices import columns_at

pytest.importorskip("scipy")
from tests.backends.test_cusolver import STREAM, Library, copied, filled, turned

RNG = np.random.default_rng(9)
M, N = 71, MOST_BY_QR + 3


class Products(Library):
    """cuBLAS: products, sums, norms and multiples, without a workspace."""

    def _SetWorkspace_v2(self, *words: Any) -> None:
        pass

    def _gemm_v2(
        self, dtype: str, handle: Any, turn: Any, never: Any, m: Any, n: Any, k: Any, alpha: Any, a: Any,
        lda: Any, b: Any, ldb: Any, beta: Any, c: Any, ldc: Any,
    ) -> None:  # fmt: skip
        assert never.value == 0 and (ldb.value, ldc.value) == (k.value, m.value)
        sizes = (k.value, m.value) if turn.value else (m.value, k.value)
        assert lda.value == sizes[0] and c.value not in (a.value, b.value)
        left = columns_at(a.value, *sizes, dtype)
        right, goal = (
            columns_at(b.value, k.value, n.value, dtype),
            columns_at(c.value, m.value, n.value, dtype),
        )
        kept = beta._obj.value * goal if beta._obj.value else 0
        goal[:] = alpha._obj.value * ((left.T if turn.value else left) @ right) + kept

    def _geam(
        self, dtype: str, handle: Any, never: Any, turn: Any, m: Any, n: Any, alpha: Any, a: Any,
        lda: Any, beta: Any, b: Any, ldb: Any, c: Any, ldc: Any,
    ) -> None:  # fmt: skip
        assert never.value == 0 and lda.value == ldb.value == ldc.value == m.value
        left, right = (columns_at(x.value, m.value, n.value, dtype) for x in (a, b))
        right = right.T if turn.value else right
        found = alpha._obj.value * left + beta._obj.value * right
        columns_at(c.value, m.value, n.value, dtype)[:] = found

    def _nrm2_v2(self, dtype: str, handle: Any, n: Any, x: Any, step: Any, found: Any) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            found._obj.value = np.linalg.norm(columns_at(x.value, n.value, 1, dtype).astype("d"))

    def _axpy_v2(
        self, dtype: str, handle: Any, n: Any, alpha: Any, x: Any, step: Any, y: Any, apart: Any
    ) -> None:
        assert step.value == 1
        goal = columns_at(y.value, (n.value - 1) * apart.value + 1, 1, dtype)[:, 0]
        goal[:: apart.value] += alpha._obj.value * columns_at(x.value, n.value, 1, dtype)[:, 0]

    def _scal_v2(self, dtype: str, handle: Any, n: Any, alpha: Any, x: Any, step: Any) -> None:
        columns_at(x.value, n.value, step.value, dtype)[:] *= alpha._obj.value


class Solver(Library):
    """cuSOLVER, whose Jacobi method takes what is not finite for done."""

    def _gesvdj(self, dtype: str, *words: Any) -> None:
        p, q, a = words[3].value, words[4].value, words[5].value
        if np.isfinite(columns_at(a, p, q, dtype)).all():
            super()._gesvdj(dtype, *words)
        else:
            ctypes.c_int32.from_address(words[-2].value).value = 1


APART = 8


class Capturing(Products):
    """Streams that can be captured: what is then given to `APART` is kept as it was told, and not run."""

    stream, taken = STREAM, None

    def _SetStream_v2(self, dtype: str, handle: Any, stream: Any) -> None:
        self.stream = stream.value

    def captured(self, give: Any) -> Any:
        """As an engine makes graphs."""
        self.taken = taken = list[Any]()
        give(APART)
        self.taken = None
        assert self.stream == STREAM
        self.graphs = [*getattr(self, "graphs", []), taken]
        return SimpleNamespace(launch=lambda: [run() for run in taken])

    def copied(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """As an engine copies."""
        assert stream == (STREAM if self.taken is None else APART)
        run = partial(copied, to, source, nbytes, STREAM)
        run() if self.taken is None else self.taken.append(run)

    def _gemm_v2(self, dtype: str, *words: Any) -> None:
        assert self.stream == (STREAM if self.taken is None else APART)
        told = (byref(type(w._obj)(w._obj.value)) if hasattr(w, "_obj") else w for w in words)
        run = partial(super()._gemm_v2, dtype, *told)
        run() if self.taken is None else self.taken.append(run)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_of_the_same_memory_are_a_graph_from_the_second_time_on(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for all matrices of a stack, whatever their scales; the one that was not used longest goes."""
    monkeypatch.setattr(repeated, "_KEPT", 2)
    a = np.random.default_rng(3).normal(size=(2, M, N)) * np.array([1, 1e-9])[:, None, None]
    a = a.astype(dtype)
    blas, calls = Capturing(), [packed(a) for _ in range(3)]
    functions = MatrixFunctions(blas, Solver(), STREAM, blas.copied, blas.captured)
    wanted = np.linalg.svd(a.astype("d"), compute_uv=False)
    bound = 8 * np.sqrt(M) * np.finfo(dtype).eps * wanted.max(-1, keepdims=True)
    for number, graphs, order in (
        (0, 1, 1),
        (1, 2, 1),
        (0, 2, -1),
        (2, 3, 1),
        (0, 3, 1),
        (1, 4, 1),
    ):
        call, (matrices, values, *_), _ = calls[number]
        matrices[:] = turned(a[::order])
        functions.call(call)
        assert (np.abs(values[::order] - wanted) <= bound).all()
        assert len(blas.graphs) == graphs
    steps = len(polynomials(float(np.finfo(dtype).eps) / 4))
    assert [len(graph) for graph in blas.graphs] == [5 * steps - 1] * 4


@pytest.mark.parametrize("error", [DeviceError("capture"), OutOfMemoryError("graph")])
def test_what_cannot_be_a_graph_is_called(error: Exception) -> None:
    """And is not tried again."""
    a, asked = np.random.default_rng(3).normal(size=(1, M, N)), list[Any]()

    def captured(give: Any) -> Any:
        asked.append(give)
        raise error

    blas = Capturing()
    functions = MatrixFunctions(blas, Solver(), STREAM, blas.copied, captured)
    call, pieces, _info = packed(a)
    matrices, values = pieces[:2]
    for _ in range(3):
        matrices[:] = turned(a)
        values[:] = 7
        functions.call(call)
        wanted = np.linalg.svd(a, compute_uv=False)
        assert np.abs(values - wanted).max() <= 8 * np.sqrt(M) * np.finfo(float).eps * wanted.max()
    assert len(asked) == 1


def packed(a: np.ndarray) -> tuple[MatrixNode, tuple[np.ndarray, ...], np.ndarray]:
    """The call for values alone, its pieces, and what is said of each."""
    count, p, q = a.shape
    pieces = (
        turned(a), *(np.full((count, *s), 7.0, a.dtype) for s in ((q,), (q, p), (q, q))),
        np.full((p + q) * q, 7.0, a.dtype),
    )  # fmt: skip
    call, (info, _) = filled(
        "gesdd", (False, False), pieces=pieces, rows=1, columns=q, height=p, width=q
    )
    return replace(call, dtype=a.dtype.name), pieces, info


def values_of(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Singular values of a stack, what was said of each, and cuSOLVER's functions that were called."""
    (call, pieces, info), solver, q = packed(a), Solver(), a.shape[2]
    functions = MatrixFunctions(Products(), solver, STREAM, copied)
    assert functions.workspace(call) == 5 * q * a.itemsize  # of potrf
    functions.call(call)
    return pieces[1], info, [name for name in solver.calls if re.search(r"gesv|syev", name)]


def graded(p: int, q: int, s: np.ndarray) -> np.ndarray:
    u, v = (np.linalg.qr(RNG.normal(size=(k, q)))[0] for k in (p, q))
    return np.asarray((u * s) @ v.T)


STACKS: dict[str, np.ndarray] = {
    "drawn": RNG.normal(size=(2, M, N)),
    "square": RNG.normal(size=(1, N, N)),
    "twins": np.stack([np.repeat(RNG.normal(size=(M, N))[:, ::2], 2, 1)[:, :N]] * 2),
    "one": np.outer(RNG.normal(size=M), RNG.normal(size=N))[None],
    "graded": graded(M, N, np.geomspace(1, 1e-14, N))[None],
    "far": graded(M, N, np.where(np.arange(N) < N // 2, 1, 1e-9))[None],
    "alike": graded(M, N, np.full(N, 3.0))[None],
    "large": 1e30 * RNG.normal(size=(1, M, N)),
    "small": 1e-30 * RNG.normal(size=(1, M, N)),
    "tall": RNG.normal(size=(1, 5 * N, N)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", STACKS)
def test_values_of_any_rank_are_those_of_lapack(name: str, dtype: str) -> None:
    """Within some eps of the largest, as LAPACK's; by eigenvalues."""
    a = STACKS[name].astype(dtype)
    found, info, calls = values_of(a)
    wanted = np.linalg.svd(a.astype("float64"), compute_uv=False)
    unit = np.finfo(dtype).eps * wanted.max()
    # Each product of k numbers adds eps sqrt(k) to what should be 1, and the eigenvalues as much.
    assert np.abs(found - wanted).max() <= 8 * np.sqrt(a.shape[1]) * unit
    assert info.tolist() == [0] * len(a)
    assert {name for name in calls if "buffer" not in name} == {"cusolverDnXsyevd"}


@pytest.mark.parametrize("name", STACKS)
def test_steps_are_left_out_where_no_value_is_small(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A factorisation tells, in a place that is the matrix's own, and both ways have the same values."""
    monkeypatch.setattr(polar, "_LEAST_TESTED", 0)
    asked: list[bool] = []
    original = polar.SymmetricParts._none_is_small

    def counted(self: Any, node: Any, number: int, squares: tuple[int, int]) -> bool:
        asked.append(original(self, node, number, squares))
        return asked[-1]

    monkeypatch.setattr(polar.SymmetricParts, "_none_is_small", counted)
    a = STACKS[name]
    a = np.concatenate([np.tile(np.eye(*a.shape[1:]), (1, 1, 1)), a])
    found, info, _ = values_of(a)
    wanted = np.linalg.svd(a, compute_uv=False)
    unit = np.finfo(float).eps * wanted.max(-1, keepdims=True)
    assert (np.abs(found - wanted) <= 8 * np.sqrt(a.shape[1]) * unit).all()
    assert asked == [True] + [name not in ("twins", "one", "graded", "far")] * (len(a) - 1)
    assert info.tolist() == [0] * len(a)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 1e-310, 1e308])
def test_numbers_that_have_no_scale_are_left_to_jacobi(value: float) -> None:
    a = np.full((1, M, N), value)
    _, info, calls = values_of(a)
    assert calls[-1] == "cusolverDnDgesvdj" and "cusolverDnXsyevd" not in calls
    assert info[0] == (not np.isfinite(value))


@pytest.mark.parametrize(("least", "most"), [(1e-2, 1), (1e-7, 1), (1e-17, 1), (0.003, 2.02)])
def test_polynomials_bring_numbers_to_1_and_none_further(least: float, most: float) -> None:
    x = np.concatenate([np.geomspace(least, 1.009 * most, 20_001), np.geomspace(1e-30, least, 99)])
    above = x >= least
    for step, (a, b, c) in enumerate(polynomials(least, most), 1):
        x = x * (a + x**2 * (b + c * x**2))
        assert (x > 0).all() and x.max() < (2.02 if step >= 5 else 2.1)
    assert np.abs(x[above] - 1).max() < 1e-14
    assert x.max() < 1 + 1e-14
