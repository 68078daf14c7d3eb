"""What matrices that are there are computed by at once: stacks by native threads, single ones by LAPACK.

Each function gives None where it does not take its operands, or where something is wrong with them: the op's
NumPy function then computes, or says what is wrong.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.backends.cpu.blas_threads import FEW_ROWS, blas_threads
from magmadnn.graph.op import Array
from magmadnn.memory.dtypes import BLAS_LETTERS

from ._matrices import refuse_unless_finite

_TRIANGLE = 64  # rows of triangles on a diagonal
_PADDED = 128  # rows and columns from which on gaps between columns save more than they cost
# Rows of symmetric matrices whose eigenvectors rotations make: of fewer, a first call in a process would
# take longer than what later ones gain; of more they take as long as stedc.
_ROTATED = range(32, 193)
_PIECE = 8192  # elements; OpenBLAS takes several threads from 10,000 on


@cache
def lapack() -> Any:
    """SciPy's module of LAPACK; None where it is not installed."""
    try:
        return import_module("scipy.linalg.lapack")
    except ImportError:
        return None


def routine(name: str, a: Array) -> Any:
    """LAPACK's function for an array's dtype; None where SciPy is not installed.

    Small arrays are for one thread of its BLAS.
    """
    found = lapack()
    if found is None:
        return None
    function = getattr(found, BLAS_LETTERS[a.dtype.char] + name)
    threads = blas_threads() if max(a.shape) < FEW_ROWS else None
    return function if threads is None else partial(threads.on_one, function)


def is_finite(x: Array) -> bool:
    """Whether all numbers are; sums of squares say so in a third of the time, unless one overflows.

    The sums are of pieces which NumPy's BLAS adds up on one thread: a second thread of it would wait for more
    work, and take a core from SciPy's BLAS, which factorises next.
    """
    if type(x) is np.ndarray and x.dtype.char in BLAS_LETTERS and x.flags.forc:
        line = x.reshape(-1, order="A")
        pieces = (line[start : start + _PIECE] for start in range(0, line.size, _PIECE))
        if all(math.isfinite(abs(np.vdot(piece, piece))) for piece in pieces):
            return True
    return bool(np.isfinite(x).all())


def _stack(
    function: str, settings: tuple[bool, ...], operands: tuple[Array, ...], matrix: tuple[int, int]
) -> Array | None:
    """By native threads, where all are of one dtype that they know."""
    first = operands[0].dtype.char
    if first not in "fd" or any(x.dtype.char != first for x in operands):
        return None
    from magmadnn.runtime.cpu.matrices.stacks import on_stack

    return on_stack(function, settings, operands, matrix)


def _are_many(*operands: Array) -> bool:
    """Whether there is more than one matrix, and no size is 0."""
    return all(x.size for x in operands) and any(math.prod(x.shape[:-2]) > 1 for x in operands)


def factor_at_once(a: Array) -> Array | None:
    """The Cholesky factor.

    Raises:
        NumericError: for NaN and infinity; in a plan they stay in their matrix.
    """
    if not is_finite(a):
        refuse_unless_finite("cholesky", "a", np.tril(a))
    return _factor_at_once(a)


def _factor_at_once(a: Array) -> Array | None:
    """The Cholesky factor: potrf of the transpose, which has it in the order of columns."""
    if _are_many(a):
        return _stack("potrf", (), (a,), a.shape[-2:])
    if a.ndim != 2 or not a.size or a.dtype.char not in BLAS_LETTERS:
        return None
    function = routine("potrf", a)
    if function is None:
        return None
    factor, wrong = function(a.T, lower=0, clean=1)
    return None if wrong else factor.T


def factors_at_once(a: Array) -> tuple[Array, Array] | None:
    """L and U of a stack in one matrix each, and exchanges."""
    m, n = a.shape[-2:]
    if m != n or not _are_many(a):
        return None
    found = _stack("getrf", (), (a,), (n + 1, n))
    if found is None:
        return None
    return np.swapaxes(found[..., 1:, :], -1, -2), found[..., 0, :].astype(np.int64)


def triangle_at_once(a: Array, b: Array, lower: bool, transpose: bool) -> Array | None:
    """Solutions by a triangle.

    Raises:
        NumericError: for NaN and infinity; in a plan they stay in their matrix.
    """
    if not is_finite(a):
        refuse_unless_finite("solve_triangular", "a", np.tril(a) if lower else np.triu(a))
    if not is_finite(b):
        refuse_unless_finite("solve_triangular", "b", b)
    if _are_many(a, b):
        return _stack("trsm", (lower, transpose), (a, b), b.shape[-2:])
    if a.ndim != 2 or b.ndim != 2 or not (a.size and b.size) or a.dtype.char not in BLAS_LETTERS:
        return None
    function = routine("trtrs", a)
    if function is None or b.dtype != a.dtype:
        return None
    x, wrong = function(a.T, b, lower=not lower, trans=not transpose)
    return None if wrong else x


def solution_at_once(a: Array, b: Array, transpose: bool, of: str, refuses: bool) -> Array | None:
    """Solutions by factors of the transpose, which lies in the order of columns."""
    if _are_many(a, b):
        return _stack("gesv", (transpose,), (a, b), b.shape[-2:])
    if a.ndim != 2 or b.ndim != 2 or not (a.size and b.size) or a.dtype.char not in BLAS_LETTERS:
        return None
    factorise, solve = routine("getrf", a), routine("getrs", a)
    if factorise is None or b.dtype != a.dtype or not (is_finite(a) and is_finite(b)):
        return None
    factors, exchanges, wrong = factorise(a.T)
    if wrong:
        return None
    x: Array = solve(factors, exchanges, b, trans=0 if transpose else 1)[0]
    return x


def inverse_at_once(a: Array) -> Array | None:
    """The inverse of one matrix of finite numbers, by getrf and getri of the transpose."""
    if not _is_one(a) or lapack() is None:
        return None
    factors, exchanges, wrong = routine("getrf", a)(a.T)
    if wrong:
        return None
    room = _room("getri", BLAS_LETTERS[a.dtype.char], len(a))
    found, worse = routine("getri", a)(factors, exchanges, lwork=room, overwrite_lu=1)
    return None if worse else found.T


def substituted_at_once(factors: Array, exchanges: Array, b: Array, way: int) -> Array | None:
    """Solutions by L and U of one matrix that are given, and right sides [n] or [n, k], by getrs."""
    if not _fits(factors, b) or exchanges.shape != b.shape[:1]:
        return None
    x, wrong = routine("getrs", factors)(factors, exchanges, _columns_of(b), trans=way)
    return None if wrong else x.reshape(b.shape)


def cholesky_solved_at_once(factor: Array, b: Array, lower: bool) -> Array | None:
    """Solutions by the Cholesky factor of one matrix, and right sides [n] or [n, k], by potrs."""
    if not _fits(factor, b):
        return None
    x, wrong = routine("potrs", factor)(factor, _columns_of(b), lower=int(lower))
    return None if wrong else x.reshape(b.shape)


def _fits(factors: Array, b: Array) -> bool:
    """Whether LAPACK solves by the factors of one matrix: finite, without a 0 on their diagonal."""
    return (
        lapack() is not None
        and _is_one(factors)
        and b.dtype == factors.dtype
        and 0 < b.ndim < 3
        and factors.shape == (len(b), len(b))
        and bool(b.size)
        and bool(factors.diagonal().all())
        and is_finite(factors)
        and is_finite(b)
    )


def _columns_of(b: Array) -> Array:
    return b[:, None] if b.ndim == 1 else b


def least_squares_at_once(a: Array, b: Array, limit: float) -> tuple[Array, Array, int] | None:
    """The shortest x with the least |a x - b| of one matrix, its singular values and rank, by gelsd."""
    if lapack() is None or not (_is_one(a) and _is_one(b)) or a.dtype != b.dtype:
        return None
    (m, n), letter = a.shape, BLAS_LETTERS[a.dtype.char]
    right = np.zeros((max(m, n), b.shape[1]), a.dtype, order="F")
    right[:m] = b
    rooms = _rooms_of_gelsd(letter, m, n, b.shape[1])
    x, s, rank, wrong = routine("gelsd", a)(a, right, *rooms, cond=limit, overwrite_b=1)
    return None if wrong else (x[:n], s, int(rank))


@lru_cache(maxsize=256)
def _rooms_of_gelsd(letter: str, m: int, n: int, k: int) -> list[int]:
    """How many numbers of each kind it wants to work in."""
    *rooms, _ = getattr(lapack(), f"{letter}gelsd_lwork")(m, n, k)
    return [int(room.real) for room in rooms]


# --- one matrix: the routines that NumPy calls, of SciPy's library, without NumPy's way to them ------------


def _is_one(a: Array) -> bool:
    return (
        isinstance(a, np.ndarray)
        and a.ndim == 2
        and bool(a.size)
        and a.dtype.char in BLAS_LETTERS
        and a.dtype.isnative
    )


@lru_cache(maxsize=256)
def _room(name: str, letter: str, *sizes: int) -> int:
    """How many numbers a routine wants to work in, for sizes."""
    found = getattr(lapack(), f"{letter}{name}_lwork")(*sizes)[0]
    return int(found.real)


@lru_cache(maxsize=64)
def _below_diagonal(rows: int, columns: int) -> Array:
    return np.tri(rows, columns, -1, dtype=bool)


def _upper(a: Array) -> Array:
    """The matrix row by row, with zeros below its diagonal."""
    found = np.array(a, order="C")
    for low in range(0, len(found), _TRIANGLE):
        rows = found[low : low + _TRIANGLE]
        rows[:, :low] = 0
        corner = rows[:, low : low + _TRIANGLE]
        np.copyto(corner, 0, where=_below_diagonal(*corner.shape))
    return found


def _on_padded(name: str, a: Array, *settings: bool) -> Any:
    """What a function of `runtime/cpu/matrices/single.py` gives of a large matrix; None of a small one."""
    if min(a.shape) < _PADDED:
        return None
    from magmadnn.runtime.cpu.matrices import single

    return getattr(single, name)(a, *settings)


def reflections_at_once(a: Array, full: bool) -> tuple[Array, Array] | None:
    """Q and R of one matrix of finite numbers, by geqrf and orgqr."""
    if not _is_one(a) or lapack() is None:
        return None
    apart: tuple[Array, Array] | None = _on_padded("reflections_of", a, full)
    if apart is not None:
        return apart
    letter, (m, n) = BLAS_LETTERS[a.dtype.char], a.shape
    k = min(m, n)
    count = m if full else k
    made = "ungqr" if letter in "cz" else "orgqr"
    packed, scales, _, wrong = routine("geqrf", a)(a, lwork=_room("geqrf", letter, m, n))
    r = _upper(packed[:count])
    columns = packed[:, :k]
    if count > k:
        columns = np.zeros((m, count), a.dtype, order="F")
        columns[:, :k] = packed
    room = _room("geqrf", letter, m, count)  # what orgqr wants is no more
    q, _, worse = routine(made, a)(columns, scales, lwork=room, overwrite_a=1)
    return None if wrong or worse else (q, r)


def singular_at_once(a: Array, vectors: bool, full: bool) -> tuple[Array, ...] | None:
    """U, S and V^H of one matrix of finite numbers, or S alone, by gesdd of the transpose."""
    if not _is_one(a) or lapack() is None:
        return None
    apart: tuple[Array, ...] | None = _on_padded("singular_of", a, vectors, full)
    if apart is not None:
        return apart
    letter, (m, n) = BLAS_LETTERS[a.dtype.char], a.shape
    room = _room("gesdd", letter, n, m, int(vectors), int(full))
    v, s, u, wrong = routine("gesdd", a)(
        a.T, compute_uv=int(vectors), full_matrices=int(full), lwork=room
    )
    if wrong:
        return None
    return (u.T, s, v.T) if vectors else (s,)


def eigen_at_once(a: Array, lower: bool, vectors: bool) -> tuple[Array, ...] | None:
    """Eigenvalues and vectors of one symmetric matrix of finite numbers, or values alone.

    By syevd; with vectors of some dozens of rows by what it calls first, and by rotations of our own.
    """
    if not _is_one(a) or a.shape[0] != a.shape[1] or lapack() is None:
        return None
    if vectors and len(a) in _ROTATED and a.dtype.char in "fd" and a.flags.aligned:
        from magmadnn.runtime.cpu.matrices.rotations import eigen_of_few

        if (found := eigen_of_few(a, lower)) is not None:
            return found
    apart: tuple[Array, ...] | None = _on_padded("eigen_of", a, lower, vectors)
    if apart is not None:
        return apart
    is_real = a.dtype.char in "fd"  # a real one is its own transpose, which needs no turning
    matrix, half = (a.T, not lower) if is_real else (a, lower)
    function = routine("syevd" if is_real else "heevd", a)
    values, columns, wrong = function(matrix, compute_v=int(vectors), lower=int(half))
    if wrong:
        return None
    return (values, columns) if vectors else (values,)
