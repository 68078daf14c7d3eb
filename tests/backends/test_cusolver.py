"""Calls of cuSOLVER and cuBLAS, on stand-ins of both that compute with LAPACK in this process's memory."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest

from magmadnn.backends.cuda.engine import PRODUCT_WORKSPACE, MatrixNode
from magmadnn.backends.cuda.libraries import spectra
from magmadnn.backends.cuda.libraries.cusolver import MatrixFunctions
from magmadnn.backends.cuda.nodes.matrices import LEAST_ORDERED
from magmadnn.errors import DeviceError
from tests.runtime.cuda.emulated_matrices import columns_at

pytest.importorskip("scipy")
from scipy.linalg import blas, lapack  # type: ignore[import-untyped]

RNG = np.random.default_rng(4)
STREAM = 7
DTYPES = {"S": "float32", "D": "float64"}
LAPACK = {"float32": lapack.spotrf, "float64": lapack.dpotrf}
BLAS = {"float32": blas.strsm, "float64": blas.dtrsm}
_NAME = re.compile(
    r"(?:cublas|cusolverDn)(?:([SD])(?=potrf|trsm|ge|orgqr|sy|nrm2|scal|axpy))?(\w+)"
)
REALS = {0: "float32", 1: "float64"}  # of the functions of any dtype


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

    def _getrf_bufferSize(self, dtype: str, *rest: Any) -> None:
        rest[-1]._obj.value = 7

    _geqrf_bufferSize = _orgqr_bufferSize = _getrf_bufferSize

    def _getrf(
        self, dtype: str, handle: Any, m: Any, n: Any, a: Any, lda: Any, work: Any, piv: Any, info: Any
    ) -> None:  # fmt: skip
        assert (handle.value, work.value, lda.value, m.value) == (12, 99, n.value, n.value)
        goal = columns_at(a.value, n.value, n.value, dtype)
        factors, exchanges, found = lapack.dgetrf(goal)
        goal[:] = factors
        columns_at(piv.value, n.value, 1, "int32")[:, 0] = exchanges + 1
        ctypes.c_int32.from_address(info.value).value = found

    def _getrfBatched(
        self, dtype: str, handle: Any, n: Any, table: Any, lda: Any, piv: Any, info: Any, count: Any
    ) -> None:  # fmt: skip
        assert handle.value == 11
        for k, at in enumerate(_addresses(table, count)):
            one = ctypes.c_void_p(at), lda, ctypes.c_void_p(99)
            places = [
                ctypes.c_void_p(piv.value + 4 * n.value * k),
                ctypes.c_void_p(info.value + 4 * k),
            ]
            self._getrf(dtype, ctypes.c_void_p(12), n, n, *one, *places)

    def _getrs(
        self, dtype: str, handle: Any, trans: Any, n: Any, width: Any, a: Any, lda: Any, piv: Any,
        b: Any, ldb: Any, info: Any,
    ) -> None:  # fmt: skip
        assert (lda.value, ldb.value) == (n.value, n.value)
        goal = columns_at(b.value, n.value, width.value, dtype)
        exchanges = columns_at(piv.value, n.value, 1, "int32")[:, 0] - 1
        factors = columns_at(a.value, n.value, n.value, dtype)
        goal[:] = lapack.dgetrs(factors, exchanges, goal, trans=trans.value)[0]
        ctypes.c_int32.from_address(info.value).value = 0

    def _getrsBatched(
        self, dtype: str, handle: Any, trans: Any, n: Any, width: Any, a: Any, lda: Any, piv: Any,
        b: Any, ldb: Any, info: Any, count: Any,
    ) -> None:  # fmt: skip
        pairs = zip(_addresses(a, count), _addresses(b, count), strict=True)
        for k, (one, other) in enumerate(pairs):
            exchanges, said = ctypes.c_void_p(piv.value + 4 * n.value * k), ctypes.c_int32()
            self._getrs(
                dtype, handle, trans, n, width, ctypes.c_void_p(one), lda, exchanges,
                ctypes.c_void_p(other), ldb, ctypes.c_void_p(ctypes.addressof(said)),
            )  # fmt: skip
        info._obj.value = 0

    def _geqrf(
        self, dtype: str, handle: Any, m: Any, n: Any, a: Any, lda: Any, tau: Any, work: Any,
        words: Any, info: Any,
    ) -> None:  # fmt: skip
        assert (handle.value, work.value, words.value, lda.value) == (12, 99, 7, m.value)
        goal = columns_at(a.value, m.value, n.value, dtype)
        found, scales, _, _ = lapack.dgeqrf(goal)
        goal[:] = found
        columns_at(tau.value, len(scales), 1, dtype)[:, 0] = scales

    def _geqrfBatched(
        self, dtype: str, handle: Any, m: Any, n: Any, a: Any, lda: Any, tau: Any, info: Any, count: Any
    ) -> None:  # fmt: skip
        for one, other in zip(_addresses(a, count), _addresses(tau, count), strict=True):
            self._geqrf(
                dtype, ctypes.c_void_p(12), m, n, ctypes.c_void_p(one), lda,
                ctypes.c_void_p(other), ctypes.c_void_p(99), ctypes.c_int(7), None,
            )  # fmt: skip
        info._obj.value = 0

    def _orgqr(
        self, dtype: str, handle: Any, m: Any, n: Any, k: Any, a: Any, lda: Any, tau: Any, work: Any,
        words: Any, info: Any,
    ) -> None:  # fmt: skip
        assert (work.value, words.value, lda.value) == (99, 7, m.value)
        goal = columns_at(a.value, m.value, n.value, dtype)
        scales = columns_at(tau.value, k.value, 1, dtype)[:, 0]
        goal[:] = lapack.dorgqr(goal, scales)[0]

    # --- spectra

    def _CreateParams(self, dtype: str, made: Any) -> None:
        made._obj.value = 13

    def _CreateGesvdjInfo(self, dtype: str, made: Any) -> None:
        made._obj.value = 14

    def _Xsyevd_bufferSize(self, dtype: str, handle: Any, *rest: Any) -> None:
        rest[10]._obj.value, rest[11]._obj.value = 40, 16

    _XsyevBatched_bufferSize = _Xsyevd_bufferSize

    def _Xsyevd(
        self, dtype: str, handle: Any, params: Any, vectors: Any, fill: Any, n: Any, real: Any, a: Any,
        lda: Any, real_w: Any, w: Any, computed: Any, there: Any, bytes_there: Any, here: Any,
        bytes_here: Any, info: Any,
    ) -> None:  # fmt: skip
        assert (params.value, there.value, bytes_there.value, bytes_here.value) == (13, 99, 40, 16)
        assert real.value == real_w.value == computed.value
        ctypes.memset(here.value, 1, 16)
        kind = REALS[real.value]
        goal = columns_at(a.value, n.value, n.value, kind)
        values, columns = np.linalg.eigh(goal, "L" if fill.value == 0 else "U")
        columns_at(w.value, n.value, 1, kind)[:, 0] = values
        goal[:] = columns
        ctypes.c_int32.from_address(info.value).value = 0

    def _XsyevBatched(self, dtype: str, handle: Any, *arguments: Any) -> None:
        *first, info, count = arguments
        n, size = first[3].value, np.dtype(REALS[first[4].value]).itemsize
        for k in range(count.value):
            one = list(first)
            one[5] = ctypes.c_void_p(first[5].value + k * n * n * size)
            one[8] = ctypes.c_void_p(first[8].value + k * n * size)
            self._Xsyevd(dtype, handle, *one, ctypes.c_void_p(info.value + 4 * k))

    def _DSgesv_bufferSize(self, dtype: str, *arguments: Any) -> None:
        assert len(arguments) == 12
        arguments[-1]._obj.value = 24

    def _DSgesv(
        self, dtype: str, handle: Any, n: Any, width: Any, a: Any, lda: Any, piv: Any, b: Any, ldb: Any,
        x: Any, ldx: Any, work: Any, nbytes: Any, steps: Any, info: Any,
    ) -> None:  # fmt: skip
        assert (work.value, nbytes.value) == (99, 24)
        assert lda.value == ldb.value == ldx.value == n.value
        columns_at(piv.value, n.value, 1, "int32")[:] = 1
        right = columns_at(b.value, n.value, width.value, "float64")
        found = np.linalg.solve(columns_at(a.value, n.value, n.value, "float64"), right)
        columns_at(x.value, n.value, width.value, "float64")[:] = found
        steps._obj.value += 3
        ctypes.c_int32.from_address(info.value).value = 0

    def _CreateSyevjInfo(self, dtype: str, made: Any) -> None:
        made._obj.value = 15

    def _syevjBatched_bufferSize(self, dtype: str, *arguments: Any) -> None:
        assert len(arguments) == 10 and arguments[-2].value == 15
        arguments[-3]._obj.value = 6

    def _syevjBatched(
        self, dtype: str, handle: Any, vectors: Any, fill: Any, n: Any, a: Any, lda: Any, w: Any,
        work: Any, words: Any, info: Any, params: Any, count: Any,
    ) -> None:  # fmt: skip
        assert (work.value, words.value, params.value, lda.value) == (99, 6, 15, n.value)
        size = np.dtype(dtype).itemsize
        for k in range(count.value):
            goal = columns_at(a.value + k * n.value**2 * size, n.value, n.value, dtype)
            values, columns = np.linalg.eigh(goal, "L" if fill.value == 0 else "U")
            columns_at(w.value + k * n.value * size, n.value, 1, dtype)[:, 0] = values
            goal[:] = columns
            ctypes.c_int32.from_address(info.value + 4 * k).value = 0

    def _gesvdj_bufferSize(self, dtype: str, *arguments: Any) -> None:
        assert len(arguments) == 14 and arguments[-1].value == 14
        arguments[-2]._obj.value = 7

    def _gesvdjBatched_bufferSize(self, dtype: str, *arguments: Any) -> None:
        assert len(arguments) == 14 and arguments[-2].value == 14
        arguments[-3]._obj.value = 7

    def _gesvdj(
        self, dtype: str, handle: Any, vectors: Any, econ: Any, m: Any, n: Any, a: Any, lda: Any, s: Any,
        u: Any, ldu: Any, v: Any, ldv: Any, work: Any, words: Any, info: Any, params: Any,
    ) -> None:  # fmt: skip
        assert (work.value, words.value, params.value) == (99, 7, 14)
        p, q = m.value, n.value
        assert p >= q and (lda.value, ldu.value, ldv.value) == (p, p, q)
        left, values, right = np.linalg.svd(
            columns_at(a.value, p, q, dtype), full_matrices=not econ.value
        )
        columns_at(s.value, q, 1, dtype)[:, 0] = values
        if vectors.value:
            columns_at(u.value, p, left.shape[1], dtype)[:] = left
            columns_at(v.value, q, q, dtype)[:] = right.T
        ctypes.c_int32.from_address(info.value).value = 0

    def _gesvd_bufferSize(self, dtype: str, handle: Any, m: Any, n: Any, found: Any) -> None:
        found._obj.value = 9

    def _gesvd(
        self, dtype: str, handle: Any, left: Any, right: Any, m: Any, n: Any, a: Any, lda: Any, s: Any,
        u: Any, ldu: Any, v: Any, ldv: Any, work: Any, words: Any, rest: Any, info: Any,
    ) -> None:  # fmt: skip
        assert (work.value, words.value, rest.value) == (99, 9, None)
        assert left.value == right.value == ord("N")
        p, q = m.value, n.value
        assert p >= q and (lda.value, ldu.value, ldv.value) == (p, p, q)
        goal = columns_at(a.value, p, q, dtype)
        columns_at(s.value, q, 1, dtype)[:, 0] = np.linalg.svd(goal, compute_uv=False)
        goal[:] = 5  # the matrix is lost
        ctypes.c_int32.from_address(info.value).value = 0

    shift = 0.0  # what the polar decomposition says it did to singular values

    def _Xgesvdp_bufferSize(self, dtype: str, handle: Any, *rest: Any) -> None:
        assert len(rest) == 19
        rest[17]._obj.value, rest[18]._obj.value = 80, 8

    def _Xgesvdp(
        self, dtype: str, handle: Any, params: Any, vectors: Any, econ: Any, m: Any, n: Any, real: Any,
        a: Any, lda: Any, real_s: Any, s: Any, real_u: Any, u: Any, ldu: Any, real_v: Any, v: Any,
        ldv: Any, computed: Any, there: Any, bytes_there: Any, here: Any, bytes_here: Any, info: Any,
        shift: Any,
    ) -> None:  # fmt: skip
        assert (params.value, bytes_there.value, bytes_here.value) == (13, 80, 8)
        work, words, jacobi = ctypes.c_void_p(99), ctypes.c_int(7), ctypes.c_void_p(14)
        self._gesvdj(
            REALS[real.value], handle, vectors, econ, m, n, a, lda, s, u, ldu, v, ldv, work, words,
            info, jacobi,
        )  # fmt: skip
        columns_at(a.value, m.value, n.value, REALS[real.value])[:] = 5  # the matrix is lost
        shift._obj.value = self.shift
        if self.shift:
            columns_at(s.value, n.value, 1, REALS[real.value])[:] = 3

    def _gesvdjBatched(
        self, dtype: str, handle: Any, vectors: Any, m: Any, n: Any, a: Any, lda: Any, s: Any, u: Any,
        ldu: Any, v: Any, ldv: Any, work: Any, words: Any, info: Any, params: Any, count: Any,
    ) -> None:  # fmt: skip
        p, q, size = m.value, n.value, np.dtype(dtype).itemsize

        def at(place: Any, k: int, step: int) -> Any:
            return ctypes.c_void_p(place.value + k * step)

        for k in range(count.value):
            self._gesvdj(
                dtype, handle, vectors, ctypes.c_int(0), m, n, at(a, k, p * q * size), lda,
                at(s, k, q * size), at(u, k, p * p * size), ldu, at(v, k, q * q * size), ldv, work,
                words, at(info, k, 4), params,
            )  # fmt: skip

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
        assert (handle.value, alpha._obj.value) == (11, 1.0)
        rows = n.value if side.value else m.value  # of the triangle, on the right or on the left
        assert (lda.value, ldb.value) == (rows, m.value)
        goal = columns_at(b.value, m.value, n.value, dtype)
        goal[:] = BLAS[dtype](
            1.0, columns_at(a.value, rows, rows, dtype), goal,
            side=side.value, lower=fill.value == 0, trans_a=trans.value, diag=diag.value,
        )  # fmt: skip


def _addresses(table: Any, count: Any) -> list[int]:
    """What a table of addresses holds."""
    found: list[int] = columns_at(table.value, count.value, 1, "int64")[:, 0].tolist()
    return found


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
    goal = np.tril(a) if count == 3 else np.triu(a)  # the triangle that is read
    call, (info, _) = node("potrf", (), goal)
    solver = Library()
    functions = MatrixFunctions(Library(), solver, STREAM)
    assert functions.workspace(call) == 5 * n * goal.itemsize
    functions.call(call)
    letter = "S" if dtype == "float32" else "D"
    assert solver.calls.count(f"cusolverDn{letter}{way}") == (1 if count == 3 else count)
    assert info.tolist() == [*[0] * (count - 1), n]
    for number in range(count - 1):
        found = np.tril(goal[number]) if count == 3 else np.triu(goal[number]).T
        np.testing.assert_allclose(found, np.linalg.cholesky(a[number]), rtol=1e-3, atol=1e-4)


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


def filled(function: str, settings: tuple[bool, ...], **parts: Any) -> tuple[MatrixNode, Any]:
    """A call for stacks that lie column by column, by the names of the node's attributes."""
    stacks = parts.pop("operands", ())
    pieces = parts.pop("pieces", ())
    count = len((*stacks, *pieces)[0])
    places = tuple(tuple(s[k].ctypes.data for k in range(count)) for s in stacks)
    tables = [np.array(table, np.int64) for table in places]
    info = np.full(count, -1, np.int32)
    made = MatrixNode(
        function, "float64", settings, operands=places, tables=tuple(t.ctypes.data for t in tables),
        pieces=tuple(p.ctypes.data for p in pieces), info=info.ctypes.data, workspace=99,
        matrices=count, **parts,
    )  # fmt: skip
    return made, (info, tables)


def turned(a: np.ndarray) -> np.ndarray:
    """Matrices so that they lie column by column."""
    return np.ascontiguousarray(np.swapaxes(a, -1, -2))


@pytest.mark.parametrize(("count", "n"), [(1, 5), (3, 5), (2, 300)])
def test_eliminations(count: int, n: int) -> None:
    """One by one where there is one, or they are large; else all at once."""
    a = RNG.normal(size=(count, n, n))
    b = RNG.normal(size=(count, 3, n))
    factors, exchanges = turned(a), np.zeros((count, n), np.int32)
    sizes = {"height": n, "width": n}
    call, (info, _) = filled(
        "getrf", (), operands=(factors,), pieces=(exchanges,), rows=n + 1, columns=n, **sizes
    )
    libraries = Library(), Library()
    functions = MatrixFunctions(*libraries, STREAM)
    assert functions.workspace(call) == 7 * 8
    functions.call(call)
    assert info.tolist() == [0] * count
    for transpose in (False, True):
        x = b.copy()
        call, (info, _) = filled(
            "getrs", (transpose,), operands=(factors, x), pieces=(exchanges,), rows=3, columns=n,
            **sizes,
        )  # fmt: skip
        functions.call(call)
        back = np.swapaxes(a, -1, -2) if transpose else a
        np.testing.assert_allclose(back @ np.swapaxes(x, -1, -2), np.swapaxes(b, -1, -2), atol=1e-9)
    together = count == 3
    assert ("cublasDgetrfBatched" in libraries[0].calls) == together
    assert ("cublasDgetrsBatched" in libraries[0].calls) == together
    assert libraries[1].calls.count("cusolverDnDgetrf") == (0 if together else count)


@pytest.mark.parametrize(("count", "m", "n"), [(1, 5, 3), (3, 3, 5), (2, 300, 4)])
def test_reflections(count: int, m: int, n: int) -> None:
    a, k = RNG.normal(size=(count, m, n)), min(m, n)
    columns, scales = turned(a), np.zeros((count, k))
    call, _ = filled(
        "geqrf", (), operands=(scales, columns), rows=n + 1, columns=m, height=m, width=n
    )
    libraries = Library(), Library()
    functions = MatrixFunctions(*libraries, STREAM)
    assert functions.workspace(call) == 7 * 8
    functions.call(call)
    assert ("cublasDgeqrfBatched" in libraries[0].calls) == (count == 3)
    r = np.triu(np.swapaxes(columns, -1, -2)[:, :k])
    q = columns[:, :k].copy()
    call, _ = filled("orgqr", (), operands=(scales, q), rows=k, columns=m, height=n + 1, width=m)
    functions.call(call)
    np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ r, a, atol=1e-12)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(
    ("count", "n", "way", "calls"),
    [(1, 5, "Xsyevd", 1), (3, 5, "DsyevjBatched", 1), (5, 33, "XsyevBatched", 3)],
)
def test_eigenvalues(
    count: int, n: int, way: str, calls: int, lower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large matrices of a stack some at a time, as each takes much of a workspace."""
    monkeypatch.setattr(spectra, "_MOST_AT_ONCE", 2)
    a = RNG.normal(size=(count, n, n))
    both = a + np.swapaxes(a, -1, -2)
    given = np.tril(both) if lower else np.triu(both)  # row by row
    vectors, values = given.copy(), np.zeros((count, n))
    call, (info, _) = filled(
        "syevd", (lower, True), pieces=(vectors, values), rows=n + 1, columns=n, height=n, width=n
    )
    solver = Library()
    functions = MatrixFunctions(Library(), solver, STREAM)
    assert functions.workspace(call) == (48 if count == 3 else 40)
    functions.call(call)
    assert solver.calls.count(f"cusolverDn{way}") == calls
    np.testing.assert_allclose(values, np.linalg.eigvalsh(both), atol=1e-12)
    rows = vectors  # each a vector
    np.testing.assert_allclose(
        np.swapaxes(rows, -1, -2) @ (values[..., None] * rows), both, atol=1e-12
    )
    assert info.tolist() == [0] * count


@pytest.mark.parametrize(
    ("count", "p", "q", "full", "shift"),
    [
        (1, 5, 3, False, 0.0),
        (3, 5, 3, True, 0.0),
        (2, 40, 7, True, 0.0),
        (2, 40, 7, False, 0.0),
        (2, 210, 200, False, 0.0),
        (2, 210, 200, True, 1e-9),
    ],
)
def test_singular_values(count: int, p: int, q: int, full: bool, shift: float) -> None:
    """By Jacobi's method, and by the polar decomposition where there are many and it shifts none."""
    a = RNG.normal(size=(count, p, q))
    width = p if full or p <= 32 else q
    pieces = (
        turned(a), np.zeros((count, q)), np.zeros((count, width, p)), np.zeros((count, q, q)),
        np.zeros((count, p, q)),
    )  # fmt: skip
    call, (info, _) = filled(
        "gesdd", (True, full), pieces=pieces, rows=1, columns=1, height=p, width=q
    )
    solver = Library()
    solver.shift = shift
    functions = MatrixFunctions(Library(), solver, STREAM, copied)
    assert functions.workspace(call) == (80 if q > 100 else 7 * 8)
    functions.call(call)
    assert ("cusolverDnDgesvdjBatched" in solver.calls) == (count == 3)
    assert solver.calls.count("cusolverDnXgesvdp") == (count if q > 100 else 0)
    alone = 0 if count == 3 or (q > 100 and not shift) else count
    assert solver.calls.count("cusolverDnDgesvdj") == alone
    _, s, u, v, _ = pieces
    found = np.swapaxes(u[:, :q], -1, -2) @ (s[..., None] * v)
    np.testing.assert_allclose(found, a, atol=1e-11)
    assert info.tolist() == [0] * count


@pytest.mark.parametrize(
    ("count", "p", "q", "way"),
    [
        (1, 5, 3, "Dgesvd"),
        (3, 5, 3, "DgesvdjBatched"),
        (2, 40, 7, "Dgesvd"),
    ],
)
def test_singular_values_alone(count: int, p: int, q: int, way: str) -> None:
    """By the QR method where there are few columns, unless many small matrices are taken together.

    `test_polar.py` has those of many columns.
    """
    a = RNG.normal(size=(count, p, q))
    pieces = (
        turned(a), np.zeros((count, q)), np.zeros((count, p, p)), np.zeros((count, q, q)),
        np.zeros((count, p, q)),
    )  # fmt: skip
    call, (info, _) = filled(
        "gesdd", (False, False), pieces=pieces, rows=1, columns=q, height=p, width=q
    )
    solver = Library()
    functions = MatrixFunctions(Library(), solver, STREAM, copied)
    assert functions.workspace(call) == {"Dgesvd": 9 * 8}.get(way, 7 * 8)
    functions.call(call)
    assert solver.calls[-1] == f"cusolverDn{way}"
    np.testing.assert_allclose(pieces[1], np.linalg.svd(a, compute_uv=False), atol=1e-11)
    assert info.tolist() == [0] * count


def test_many_right_sides_in_order_are_two_triangles() -> None:
    """The caller has put rows in order; of a transposed matrix, and of few sides, cuSOLVER exchanges them."""
    n, sides = 70, LEAST_ORDERED
    a, b = RNG.normal(size=(n, n)), RNG.normal(size=(sides, n))
    raw, places, _ = lapack.dgetrf(a)
    factors, exchanges = np.ascontiguousarray(raw.T)[None], (places + 1).astype(np.int32)[None]
    order = np.arange(n)
    for k, other in enumerate(places):
        order[[k, other]] = order[[other, k]]
    for transpose, count, ordered in (
        (False, sides, True),
        (True, sides, False),
        (False, 3, False),
    ):
        x = (b[:count, order] if ordered else b[:count]).copy("C")[None]
        call, _ = filled(
            "getrs", (transpose,), operands=(factors, x), pieces=(exchanges,), rows=count, columns=n,
            height=n, width=n,
        )  # fmt: skip
        libraries = Library(), Library()
        MatrixFunctions(*libraries, STREAM).call(call)
        assert libraries[0].calls.count("cublasDtrsm_v2") == (2 if ordered else 0)
        assert libraries[1].calls.count("cusolverDnDgetrs") == (0 if ordered else 1)
        wanted = np.linalg.solve(a.T if transpose else a, b[:count].T)
        np.testing.assert_allclose(x[0].T, wanted, atol=1e-9)


def copied(to: int, source: int, nbytes: int, stream: int) -> None:
    """A copy at once."""
    assert stream == STREAM
    ctypes.memmove(to, source, nbytes)


def test_refinement() -> None:
    """How many steps were made is copied to the device, for each matrix."""
    a, b = RNG.normal(size=(2, 5, 5)), RNG.normal(size=(2, 3, 5))
    found = np.zeros((2, 4, 5))
    pieces = turned(a), np.zeros((2, 1), np.int32), np.zeros((2, 5), np.int32)
    call, (info, _) = filled(
        "sgesv", (), operands=(b, found[:, 1:]), pieces=pieces, rows=4, columns=5, height=5, width=5
    )

    functions = MatrixFunctions(Library(), Library(), STREAM, copied)
    assert functions.workspace(call) == 24
    functions.call(call)
    x = np.swapaxes(found[:, 1:], -1, -2)
    np.testing.assert_allclose(a @ x, np.swapaxes(b, -1, -2), atol=1e-12)
    assert pieces[1][:, 0].tolist() == [3, 6] and info.tolist() == [0, 0]
