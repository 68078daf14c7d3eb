"""Copies among simulated ranks, which see each other's arrays; and a stand-in for CuPy with cuBLAS."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from magmadnn.comm import Communicator


class SharedPeers:
    """What `PeerCopies` does, as late as it may: copies are made when they are waited for.

    Args:
        comm: of the ranks.
        board: one dict for all ranks.
    """

    def __init__(self, comm: Communicator, board: dict[tuple[int, int], Any]) -> None:
        self._comm, self._board = comm, board
        self._calls, self._done, self._within = 0, 0, False
        self._copies: list[tuple[np.ndarray, np.ndarray]] = []

    def share(self, arrays: Any) -> list[list[np.ndarray]]:
        self._calls += 1
        self._board[self._calls, self._comm.rank] = list(arrays)
        self._comm.barrier()
        found = [self._board[self._calls, rank] for rank in range(self._comm.size)]
        self._comm.barrier()
        return found

    def begin(self) -> None:
        self._within = True
        self._comm.barrier()

    def copy(self, out: np.ndarray, source: np.ndarray) -> None:
        assert self._within
        assert out.shape == source.shape
        assert out.dtype == source.dtype
        self._copies.append((out, source))

    def follow(self) -> None:
        pass

    def mark(self) -> int:
        return len(self._copies)

    def wait(self, mark: int) -> None:
        for out, source in self._copies[self._done : mark]:
            out[...] = source
        self._done = max(self._done, mark)

    def end(self) -> None:
        self.wait(len(self._copies))
        self._copies, self._done, self._within = [], 0, False
        self._comm.barrier()

    def finish(self) -> None:
        pass

    nbytes = 0

    def capture(self, phase: Any) -> None:
        """No phase is captured here; `tests.dmath.placed` has peers that do."""


KINDS = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}


class Ndarray(np.ndarray):
    """NumPy's array with CuPy's `data.ptr`."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])


def _columns(pointer: int, kind: int, rows: int, columns: int, step: int) -> np.ndarray:
    """A matrix stored by columns at an address."""
    dtype = np.dtype(KINDS[kind])
    assert step >= rows
    count = step * (columns - 1) + rows
    flat = np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(pointer), dtype)
    strides = (dtype.itemsize, step * dtype.itemsize)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), strides)


class Cublas:
    """cublasGemmEx as its documentation says: C = alpha op(A) op(B) + beta C, all stored by columns."""

    def __init__(self) -> None:
        self.computed: list[int] = []
        self.mode = 0

    def setMathMode(self, handle: int, mode: int) -> None:
        self.mode = mode

    def gemmEx(
        self, handle: int, flip_a: int, flip_b: int, m: int, n: int, k: int, *rest: Any
    ) -> None:
        alpha, a, kind_a, lda, b, kind_b, ldb, beta, c, kind_c, ldc, compute, _ = rest
        wide = np.float64 if compute == 70 else np.float32
        scales = [
            float((ctypes.c_double if compute == 70 else ctypes.c_float).from_address(p).value)
            for p in (alpha, beta)
        ]
        left = _columns(a, kind_a, *((k, m) if flip_a else (m, k)), lda)
        right = _columns(b, kind_b, *((n, k) if flip_b else (k, n)), ldb)
        out = _columns(c, kind_c, m, n, ldc)
        left, right = (x.T if flip else x for x, flip in ((left, flip_a), (right, flip_b)))
        made = scales[0] * (left.astype(wide) @ right.astype(wide))
        if handle == 0 and out.itemsize < 4 and not self.mode & 16:  # parts of sums may be halves
            parts = [left[:, i::2].astype(wide) @ right[i::2].astype(wide) for i in (0, 1)]
            made = sum(part.astype(out.dtype).astype(wide) for part in parts) * scales[0]
        if scales[1]:
            made = made + scales[1] * out.astype(wide)
        out[...] = made.astype(out.dtype)
        self.computed.append(compute)


def device() -> Any:
    """A library of arrays that looks like CuPy to `multiply`."""
    cuda = SimpleNamespace(cublas=Cublas(), device=SimpleNamespace(get_cublas_handle=lambda: 0))
    return SimpleNamespace(
        cuda=cuda,
        empty=lambda shape, dtype: np.empty(shape, dtype).view(Ndarray),
        ascontiguousarray=lambda x: np.ascontiguousarray(x).view(Ndarray),
    )
