"""One matrix of a hundred rows or more, by LAPACK on rows that begin an odd number of cache lines apart.

Columns that lie a power of two apart map to few sets of a cache, where routines that go along rows (geqrf,
gebrd, and what multiplies by their reflections) take up to 1.5 times as long. SciPy's wrappers leave no gaps
between columns, so this calls the functions that it exports. Matrices are given to LAPACK as its columns: the
rows of an array here.

Each function takes one matrix [m, n] of finite numbers, float32, float64, complex64 or complex128, packed in
rows or columns. It gives None where SciPy is not there, and where LAPACK reports a failure.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from magmadnn.backends.cpu.blas_threads import FEW_ROWS, blas_threads
from magmadnn.graph.op import Array
from magmadnn.memory import Kind
from magmadnn.memory.dtypes import BLAS_LETTERS
from magmadnn.memory.pool import HOST_SOURCE, POOLS, host_bytes

from .lapack import address_of

# rows below which QR and SVD with gaps on one thread take less time than others on two, quiet or not
FEW_OF_FACTORS = 576
_LINE = 64  # bytes of a cache line
_STRIP = 16  # rows that are transposed at once
_TRIANGLE = 64  # rows of a block on the diagonal
# bytes from which on memory comes from the pool: new pages take as long as a copy
_POOLED = 256 << 10
_TRIANGLES = 65 * 64  # numbers that ormqr wants beside its workspace, to work in blocks of columns
_KEPT = 256  # sizes whose workspace is known
_wanted: dict[tuple[object, ...], int] = {}  # numbers of workspace, by function and sizes


def reflections_of(a: Array, full: bool) -> tuple[Array, Array] | None:
    """Q [m, k] and R [k, n], k the smaller size or m, by geqrf and orgqr."""
    (m, n), letter = a.shape, BLAS_LETTERS[a.dtype.char]
    if not _is_taken(a, f"{letter}geqrf"):
        return None
    kept, count = min(m, n), m if full else min(m, n)
    rows = _padded(max(n, count), m, a.dtype)
    _copy(a.T, rows[:n])
    scales = np.empty(kept, a.dtype)
    where = *_place(rows), _at(scales)
    r = _room((n, count), a.dtype)
    made = letter + ("ungqr" if letter in "cz" else "orgqr")

    def compute() -> bool:
        if not _run(f"{letter}geqrf", a.dtype, m, n, *where):
            return False
        r[:] = rows[:n, :count]
        return _run(made, a.dtype, m, count, kept, *where)

    if not _on_threads(a, compute, FEW_OF_FACTORS):
        return None
    _clear_above(r)
    return _packed(rows[:count]).T, r.T


def singular_of(a: Array, vectors: bool, full: bool) -> tuple[Array, ...] | None:
    """U, S and V^H, or S alone, by gesdd of the transpose."""
    (n, m), letter = a.shape, BLAS_LETTERS[a.dtype.char]  # of the transpose: m rows, n columns
    if not _is_taken(a, f"{letter}gesdd"):
        return None
    least, most = min(m, n), max(m, n)
    rows = _padded(n, m, a.dtype)
    _copy(a, rows)
    s = np.empty(least, a.dtype.char.lower())
    job = (b"A" if full else b"S") if vectors else b"N"
    # U of the transpose is V^T here: LAPACK's columns of U are rows, and so are those of V^H
    u = _padded(m if full else least, m, a.dtype) if vectors else _padded(1, 1, a.dtype)
    v = _padded(n, n if full else least, a.dtype) if vectors else _padded(1, 1, a.dtype)
    words = job, m, n, *_place(rows), _at(s), *_place(u), *_place(v)
    reals, integers = np.empty(0, s.dtype), np.empty(8 * least, np.int32)
    after = [_at(integers)]
    if letter in "cz":
        count = max(5 * least**2 + 5 * least, 2 * most * least + 2 * least**2 + least)
        reals = _room((count if vectors else 7 * least,), s.dtype)
        after.insert(0, _at(reals))
    if not _on_threads(
        a, lambda: _run(f"{letter}gesdd", a.dtype, *words, after=after), FEW_OF_FACTORS
    ):
        return None
    return (_packed(v), s, _packed(u)) if vectors else (s,)


def eigen_of(a: Array, lower: bool, vectors: bool) -> tuple[Array, ...] | None:
    """Ascending eigenvalues and eigenvectors of the matrix that a triangle holds, or values alone.

    What syevd does: sytrd, then stedc or sterf on three diagonals, then ormtr. Matrices whose numbers would
    have to be scaled are not taken.
    """
    n, letter = len(a), BLAS_LETTERS[a.dtype.char]
    is_complex, of_real = letter in "cz", {"c": "s", "z": "d"}.get(letter, letter)
    if not _is_taken(a, f"{of_real}stedc") or not _needs_no_scale(a):
        return None
    rows = _padded(n, n, a.dtype)
    if lower:
        _copy(a.T, rows)
    else:
        _copy(a, rows)
        if is_complex:
            np.conjugate(rows, out=rows)
    half = b"L"  # which takes less time than the other triangle
    values, beside = np.empty((2, n), a.dtype.char.lower())
    scales = np.empty(n, a.dtype)
    there, diagonals = _place(rows), (_at(values), _at(beside))
    columns = _padded(n if vectors else 1, n, values.dtype)

    def compute() -> Array | None:
        name = letter + ("hetrd" if is_complex else "sytrd")
        if not _run(name, a.dtype, half, n, *there, *diagonals, _at(scales)):
            return None
        if not vectors:
            return columns if _call(f"{of_real}sterf", n, *diagonals) else None
        integers, work = np.empty(3 + 5 * n, np.int32), _room((1 + 4 * n + n * n,), values.dtype)
        rest = _at(work), work.size, _at(integers), integers.size
        if not _call(f"{of_real}stedc", b"I", n, *diagonals, *_place(columns), *rest):
            return None
        found = columns
        if is_complex:
            found = _padded(n, n, a.dtype)
            found[:] = columns
        words = b"L", half, b"N", n, n, *there, _at(scales), *_place(found)
        name = letter + ("unmtr" if is_complex else "ormtr")
        return found if _run(name, a.dtype, *words) else None

    found = _on_threads(a, compute, FEW_ROWS)
    if found is None:
        return None
    return (values, _packed(found).T) if vectors else (values,)


# --- memory ---------------------------------------------------------------------------------------


def _room(shape: tuple[int, ...], dtype: Any) -> Array:
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes < _POOLED:
        return np.empty(shape, dtype)
    lease = POOLS[Kind.HOST].lend(HOST_SOURCE, nbytes, zeroed=False)
    room: Array = host_bytes(lease).view(dtype).reshape(shape)
    return room


def _padded(rows: int, columns: int, dtype: Any) -> Array:
    """An array whose rows begin an odd number of cache lines apart."""
    size = np.dtype(dtype).itemsize
    lines = -(-columns * size // _LINE) | 1
    return _room((rows, lines * _LINE // size), dtype)[:, :columns]


def _place(rows: Array) -> tuple[ctypes.c_void_p, int]:
    """Where they begin, and how many elements from one to the next."""
    return _at(rows), rows.strides[0] // rows.itemsize


def _packed(rows: Array) -> Array:
    found = _room(rows.shape, rows.dtype)
    found[:] = rows
    return found


def _copy(a: Array, rows: Array) -> None:
    """Copy a matrix; one that lies in columns by strips, which stay in the cache."""
    strip = a.shape[1] if a.flags.c_contiguous else _STRIP
    for low in range(0, a.shape[1], strip):
        rows[:, low : low + strip] = a[:, low : low + strip]


@cache
def _above_diagonal(rows: int, columns: int) -> Array:
    return ~np.tri(rows, columns, dtype=bool)


def _clear_above(rows: Array) -> None:
    """Put zeros above the diagonal."""
    for low in range(0, len(rows), _TRIANGLE):
        part = rows[low : low + _TRIANGLE]
        part[:, low + _TRIANGLE :] = 0
        corner = part[:, low : low + _TRIANGLE]
        np.copyto(corner, 0, where=_above_diagonal(*corner.shape))


def _needs_no_scale(a: Array) -> bool:
    """Whether squares of the largest number neither overflow nor vanish, as syevd looks at it."""
    numbers = (a if a.flags.c_contiguous else a.T).view(a.dtype.char.lower())
    limits = np.finfo(numbers.dtype)
    least = float(np.sqrt(limits.tiny / limits.eps))
    return least < max(float(numbers.max()), -float(numbers.min())) < 0.5 / least


# --- calls ----------------------------------------------------------------------------------------


def _is_taken(a: Array, name: str) -> bool:
    return a.flags.forc and address_of(name) is not None


def _on_threads(a: Array, compute: Callable[[], Any], few: int) -> Any:
    """What is computed, on one thread of BLAS below so many rows."""
    threads = blas_threads() if max(a.shape) < few else None
    return compute() if threads is None else threads.on_one(compute)


def _run(name: str, dtype: Any, *words: Any, after: Sequence[Any] = ()) -> bool:
    """Whether a function did it that is told where to work, in as much room as it wants for its sizes."""
    sizes = (name, *(word for word in words if type(word) is not ctypes.c_void_p))
    count = _wanted.get(sizes)
    if count is None:
        wants = np.empty(1, dtype)
        if not _call(name, *words, _at(wants), -1, *after):
            return False
        count = int(wants[0].real) + _TRIANGLES  # of which ormtr does not tell
        if len(_wanted) >= _KEPT:
            _wanted.clear()
        _wanted[sizes] = count
    room = _room((count,), dtype)
    return _call(name, *words, _at(room), count, *after)


def _call(name: str, *words: Any) -> bool:
    """Whether LAPACK's function reports no failure. It takes all by address; numbers stay as they are."""
    info = ctypes.c_int(0)
    given = [_number(word) if type(word) is int else word for word in words]
    _function(name, len(given) + 1)(*given, ctypes.byref(info))
    return info.value == 0


@cache
def _function(name: str, words: int) -> Any:
    address = address_of(name)
    assert address is not None, f"SciPy does not export {name}"
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * words)(address)


@lru_cache(maxsize=4096)
def _number(number: int) -> Any:
    return ctypes.byref(ctypes.c_int(number))


def _at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.__array_interface__["data"][0])
