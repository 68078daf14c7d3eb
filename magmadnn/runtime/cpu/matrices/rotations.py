"""Eigenvalues and eigenvectors of one symmetric matrix of some dozens of rows, by one call of native code."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from magmadnn.backends.cpu.blas_threads import blas_threads
from magmadnn.compiler.llvm.driver.driver import prepare
from magmadnn.compiler.llvm.kernel import Loaded, load
from magmadnn.compiler.llvm.library.few_rows import INTEGERS, NUMBERS, FewRows
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.graph.op import Array
from magmadnn.memory.dtypes import BLAS_LETTERS

from .lapack import address_of

LEAST_HALVED = 104  # rows from which on halves are joined
_LINE = 64  # bytes
_BLOCK = 64  # columns that LAPACK reduces at once, at most
_TRIANGLES = 65 * 64  # numbers that ormqr wants beside its workspace


def eigen_of_few(a: Array, lower: bool) -> tuple[Array, Array] | None:
    """Ascending eigenvalues and eigenvectors of the real symmetric matrix that a triangle holds.

    Args:
        a: [n, n], float32 or float64, finite where it is read.
        lower: which triangle is.

    Returns:
        None where SciPy is not there, and where LAPACK's functions would have to scale the matrix.
    """
    n, item, halved = len(a), a.itemsize, len(a) >= LEAST_HALVED
    found = _made(a.dtype.char, halved)
    if found is None:
        return None
    loaded, functions = found
    step = (
        (-(-n * item // _LINE) | 1) * _LINE // item
    )  # rows begin an odd number of cache lines apart
    words = max(_BLOCK * n + _TRIANGLES, n * n + 4 * n)
    values, vectors = np.empty(n, a.dtype), np.empty((n, n), a.dtype)
    numbers = (1 + halved) * n * step + (NUMBERS + INTEGERS) * n + words
    room, failed = np.empty(numbers, a.dtype), np.empty(1, np.int64)
    down, along = (size // item for size in (a.strides if lower else a.strides[::-1]))
    told = np.array(
        [
            n, _at(a), down, along, _at(values), _at(vectors), _at(room), step, words, *functions,
            _at(failed),
        ],
        np.int64,
    )  # fmt: skip
    threads = blas_threads()
    if threads is None:
        loaded(told, _NOTHING)
    else:
        threads.on_one(loaded, told, _NOTHING)
    return None if failed[0] else (values, vectors.T)


@cache
def _made(letter: str, halved: bool) -> tuple[Loaded, tuple[int, ...]] | None:
    """The kernel, and the addresses of LAPACK's functions."""
    names = ("sytrd", "orgtr", "laed1", "ormtr")
    addresses = [address_of(BLAS_LETTERS[letter] + name) for name in names]
    functions = tuple(address for address in addresses if address is not None)
    if len(functions) < len(names):
        return None
    prepare(kernel_cache())
    (loaded,) = load([FewRows(np.dtype(letter).name, halved)], cache=kernel_cache())
    return loaded, functions


_NOTHING: Any = np.zeros(1, np.uint8)  # scratch memory of a kernel that wants none


def _at(array: Array) -> int:
    found: int = array.__array_interface__["data"][0]
    return found
