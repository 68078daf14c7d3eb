"""Functions of matrices that lie in another library's arrays, to which NumPy's functions lead: in CuPy's.

Steps of complex numbers on a GPU are computed so. What NumPy has no name for, CuPy has under SciPy's.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.graph.op import Array


def lies_elsewhere(a: Any) -> bool:
    """Whether it is no array of NumPy."""
    return not isinstance(a, np.ndarray)


def solvers_of(a: Any) -> Any:
    """The library's module with SciPy's names.

    Raises:
        TypeError: for a library other than CuPy; the host computes then.
    """
    if type(a).__module__.partition(".")[0] != "cupy":
        raise TypeError(f"{type(a).__name__}: no library with functions of such matrices is known")
    return import_module("cupyx.scipy.linalg")


@contextmanager
def failures_of(a: Any) -> Iterator[None]:
    """Have what a library's function found wrong raise LinAlgError, as NumPy's do; CuPy does not look."""
    if type(a).__module__.partition(".")[0] != "cupy":
        yield
        return
    with import_module("cupyx").errstate(linalg="raise"):
        yield


def factored(a: Any) -> Array:
    """Exchanges of rows as numbers in a row, below them L and U, turned: of each matrix [n, n] of a stack."""
    library = solvers_of(a)
    *leading, n, _ = a.shape
    found: Array = np.empty_like(a, shape=(*leading, n + 1, n))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a 0 in U is no error here
        for index in np.ndindex(*leading):
            both, exchanges = library.lu_factor(a[index], check_finite=False)
            found[(*index, 0)] = exchanges.astype(a.dtype)
            found[(*index, slice(1, None))] = both.T
    return found


def substituted(both: Any, exchanges: Any, b: Any, transpose: bool) -> Array:
    """Rows x of rows b [..., k, n], by L and U [..., n, n] and exchanges [..., n]."""
    library = solvers_of(both)
    leading, n = np.broadcast_shapes(both.shape[:-2], b.shape[:-2]), both.shape[-1]
    found: Array = np.empty_like(b, shape=(*leading, *b.shape[-2:]))
    factors = np.broadcast_to(both, (*leading, n, n))
    numbers = np.broadcast_to(exchanges.astype(np.int32), (*leading, n))
    rows = np.broadcast_to(b, found.shape)
    for index in np.ndindex(*leading):
        pair = factors[index], numbers[index]
        found[index] = library.lu_solve(
            pair, rows[index].T, trans=int(transpose), check_finite=False
        ).T
    return found


def triangle_solved(a: Any, b: Any, lower: bool, transpose: bool) -> Array:
    """X of B [..., n, k], by the lower or the upper triangles of A [..., n, n]."""
    library = solvers_of(a)
    leading, n = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-1]
    found: Array = np.empty_like(b, shape=(*leading, *b.shape[-2:]))
    triangles = np.broadcast_to(a, (*leading, n, n))
    right = np.broadcast_to(b, found.shape)
    for index in np.ndindex(*leading):
        found[index] = library.solve_triangular(
            triangles[index], right[index], trans=int(transpose), lower=lower, check_finite=False
        )
    return found
