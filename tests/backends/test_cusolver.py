"""Calls of cuSOLVER and cuBLAS, on stand-ins of both that compute with LAPACK in this process's memory."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest

from magmadnn.backends.cuda._cusolver import MatrixFunctions
from magmadnn.backends.cuda.engine import PRODUCT_WORKSPACE, MatrixNode
from magmadnn.errors import DeviceError

pytest.importorskip("scipy")
from scipy.linalg import blas, lapack  # type: ignore[import-untyped]

RNG = np.random.default_rng(4)
STREAM = 7
DTYPES = {"S": "float32", "D": "float64"}
LAPACK = {"float32": lapack.spotrf, "float64": lapack.dpotrf}
BLAS = {"float32": blas.strsm, "float64": blas.dtrsm}
_NAME = re.compile(r"(?:cublas|cusolverDn)(?:([SD])(?=potrf|trsm))?(\w+)")


def columns_at(address: int, rows: int, columns: int, dtype: str) -> np.ndarray:
    """A matrix that lies column by column."""
    kind = np.dtype(dtype)
    raw = (ctypes.c_char * (rows * columns * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, kind).reshape(columns, rows).T


class Library:
    """Either library: notes the names of calls, and fails where a test wants it to."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self._fails:
                return 3
            getattr(self, f"_{found[2]}")(DTYPES.get(found[1], ""), *arguments)
            return 0

        found = _NAME.fullmatch(name)
        if found is None:
            raise AttributeError(name)
        return call

    # --- handles

    def _Create_v2(self, dtype: str, handle: Any) -> None:
        handle._obj.value = 11

    def _Create(self, dtype: str, handle: Any) -> None:
        handle._obj.value = 12

    def _set_stream(self, dtype: str, handle: Any, stream: Any) -> None:
        assert stream.value == STREAM

    _SetStream_v2 = _SetStream = _set_stream

    def _SetWorkspace_v2(self, dtype: str, handle: Any, at: Any, nbytes: Any) -> None:
        assert (handle.value, at.value, nbytes.value) == (11, 99, PRODUCT_WORKSPACE)

    # --- functions

    def _potrf_bufferSize(
        self, dtype: str, handle: Any, fill: Any, n: Any, a: Any, lda: Any, words: Any
    ) -> None:
        words._obj.value = 5 * n.value

    def _potrf(
        self, dtype: str, handle: Any, fill: Any, n: Any, a: Any, lda: Any, work: Any, words: Any, info: Any
    ) -> None:  # fmt: skip
        assert (handle.value, work.value, words.value) == (12, 99, 5 * n.value)
        self._factor(dtype, fill, n, a.value, lda, info.value)

    def _potrfBatched(
        self,
        dtype: str,
        handle: Any,
        fill: Any,
        n: Any,
        table: Any,
        lda: Any,
        info: Any,
        count: Any,
    ) -> None:
        for k, at in enumerate(columns_at(table.value, count.value, 1, "int64")[:, 0]):
            self._factor(dtype, fill, n, int(at), lda, info.value + 4 * k)

    def _factor(self, dtype: str, fill: Any, n: Any, at: int, lda: Any, info: int) -> None:
        assert n.value == lda.value
        a = columns_at(at, n.value, n.value, dtype)
        made, found = LAPACK[dtype](a, lower=fill.value == 0, clean=0)
        a[:] = made
        ctypes.c_int32.from_address(info).value = found

    def _trsm_v2(self, dtype: str, *arguments: Any) -> None:
        self._solve(dtype, *arguments)

    def _trsmBatched(self, dtype: str, *arguments: Any) -> None:
        *first, a, lda, b, ldb, count = arguments
        tables = (columns_at(t.value, count.value, 1, "int64")[:, 0] for t in (a, b))
        for one, other in zip(*tables, strict=True):
            self._solve(
                dtype, *first, ctypes.c_void_p(int(one)), lda, ctypes.c_void_p(int(other)), ldb
            )

    def _solve(
        self, dtype: str, handle: Any, side: Any, fill: Any, trans: Any, diag: Any, m: Any, n: Any,
        alpha: Any, a: Any, lda: Any, b: Any, ldb: Any,
    ) -> None:  # fmt: skip
        assert (handle.value, diag.value, alpha._obj.value) == (11, 0, 1.0)
        assert (lda.value, ldb.value) == (n.value, m.value)  # of a triangle on the right
        goal = columns_at(b.value, m.value, n.value, dtype)
        goal[:] = BLAS[dtype](
            1.0, columns_at(a.value, n.value, n.value, dtype), goal,
            side=side.value, lower=fill.value == 0, trans_a=trans.value,
        )  # fmt: skip


def node(function: str, settings: tuple[bool, ...], *stacks: np.ndarray) -> tuple[MatrixNode, Any]:
    """A call on stacks of matrices, of which a stack of one serves all; and what it says."""
    goal = stacks[-1]
    count, rows, columns = goal.shape
    places = tuple(tuple(s[k % len(s)].ctypes.data for k in range(count)) for s in stacks)
    tables = [np.array(table, np.int64) for table in places]
    info = np.full(count, -1, np.int32)
    made = MatrixNode(
        function, goal.dtype.name, settings, rows, columns, places,
        tuple(t.ctypes.data for t in tables), info.ctypes.data, 99,
    )  # fmt: skip
    return made, (info, tables)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("count", "n", "way"), [(1, 5, "potrf"), (3, 5, "potrfBatched"), (2, 300, "potrf")]
)
def test_factors(count: int, n: int, way: str, dtype: str) -> None:
    """One by one where there is one, or they are large; else all at once."""
    x = RNG.normal(size=(count, n, n))
    a = (x @ np.swapaxes(x, -1, -2) / n + 0.3 * np.eye(n)).astype(dtype)
    a[-1, n - 1, n - 1] = -1
    goal = np.tril(a)
    call, (info, _) = node("potrf", (), goal)
    solver = Library()
    functions = MatrixFunctions(Library(), solver, STREAM)
    assert functions.workspace(call) == 5 * n * goal.itemsize
    functions.call(call)
    letter = "S" if dtype == "float32" else "D"
    assert solver.calls.count(f"cusolverDn{letter}{way}") == (1 if count == 3 else count)
    assert info.tolist() == [*[0] * (count - 1), n]
    for number in range(count - 1):
        np.testing.assert_allclose(
            goal[number], np.linalg.cholesky(a[number]), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("count", "n", "way"), [(1, 5, "trsm_v2"), (3, 5, "trsmBatched"), (2, 300, "trsm_v2")]
)
def test_solutions(count: int, n: int, way: str, transpose: bool, lower: bool) -> None:
    triangle = RNG.normal(size=(1, n, n)) / n + 2 * np.eye(n)
    b = RNG.normal(size=(count, n, 3))
    goal = b.copy()
    call, _ = node("trsm", (lower, transpose), triangle, goal)
    libraries = Library(), Library()
    functions = MatrixFunctions(*libraries, STREAM)
    assert functions.workspace(call) == 0
    functions.call(call)
    assert libraries[0].calls.count(f"cublasD{way}") == (1 if count == 3 else count)
    kept = np.tril(triangle[0]) if lower else np.triu(triangle[0])
    np.testing.assert_allclose((kept.T if transpose else kept) @ goal, b, rtol=1e-9, atol=1e-10)


def test_a_failure_names_the_function() -> None:
    call, _ = node("trsm", (True, False), np.eye(3)[None], np.ones((1, 3, 1)))
    with pytest.raises(DeviceError, match="cublasDtrsm_v2 gives status 3"):
        MatrixFunctions(Library(fails="cublasDtrsm_v2"), Library(), STREAM).call(call)
    with pytest.raises(DeviceError, match="cusolverDnCreate gives status 3"):
        MatrixFunctions(Library(), Library(fails="cusolverDnCreate"), STREAM)
