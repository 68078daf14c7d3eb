"""Strips computed on the processor, by NumPy and SciPy: for matrices in files larger than memory."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.errors import MissingExtraError, OutOfMemoryError

from .place import Array, HostArray, Mark

_DEFAULT = 2 << 30  # bytes, where no limit is given


class HostPlace:
    """`Place` on the processor, where each copy is done at once.

    Raises:
        MissingExtraError: if SciPy is not installed.
    """

    name = "the processor"

    def __init__(self) -> None:
        try:
            self._linalg: Any = import_module("scipy.linalg")
        except ImportError as error:
            raise MissingExtraError.of("SciPy", "linalg.out_of_core", "linalg") from error

    def free_bytes(self) -> int:
        return _DEFAULT

    def workspace(self, rows: int, columns: int, dtype: np.dtype[Any]) -> int:
        return 2 * rows * columns * dtype.itemsize  # a product, and what LAPACK copies

    def allocate(self, count: int, dtype: np.dtype[Any]) -> Array:
        try:
            return np.empty(count, dtype)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"linalg.out_of_core: {count * dtype.itemsize} bytes do not fit the host's memory; "
                "give a smaller memory_limit"
            ) from error

    def hold(self, array: HostArray) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def upload(self, to: Array, source: HostArray, after: list[Mark]) -> Mark:
        to[...] = source
        return None

    def download(self, to: HostArray, source: Array) -> Mark:
        to[...] = source
        return None

    def computed(self) -> Mark:
        return None

    def follow(self, mark: Mark) -> None:
        """Nothing to do."""

    def subtract(self, c: Array, a: Array, b: Array, *, flip_a: bool, flip_b: bool) -> None:
        c -= (a.conj().T if flip_a else a) @ (b.conj().T if flip_b else b)

    def factor(self, a: Array) -> Array:
        (potrf,) = self._linalg.lapack.get_lapack_funcs(("potrf",), (a,))
        factor, found = potrf(a, lower=True, clean=False)
        a[...] = factor
        return np.array([found])

    def solve_behind(self, x: Array, lower: Array) -> None:
        # (x L^-H)^T = conj(L)^-1 x^T
        x[...] = self._triangle(lower.conj(), x.T, True, False, False).T

    def solve(self, x: Array, a: Array, *, lower: bool, unit: bool, flip: bool) -> None:
        x[...] = self._triangle(a, x, lower, unit, flip)

    def _triangle(self, a: Array, x: Array, lower: bool, unit: bool, flip: bool) -> Array:
        return self._linalg.solve_triangular(
            a, x, trans=2 * flip, lower=lower, unit_diagonal=unit, check_finite=False
        )

    def eliminate(self, a: Array, spare: Array) -> HostArray:
        (getrf,) = self._linalg.lapack.get_lapack_funcs(("getrf",), (a,))
        factors, exchanges, _ = getrf(a)
        a[...] = factors
        return np.asarray(exchanges)

    def reorder(self, a: Array, order: HostArray, spare: Array) -> None:
        rows = spare[: a.size].reshape(a.shape)
        np.take(a, order, axis=0, out=rows, mode="clip")
        a[...] = rows

    def exchange(self, a: Array, order: HostArray) -> None:
        moved = np.flatnonzero(order != np.arange(len(order)))
        a[moved] = a[order[moved]]

    def total(self, a: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return a.sum(keepdims=True).reshape(1)

    def values(self, parts: list[Array]) -> list[Any]:
        return [part[0] for part in parts]
