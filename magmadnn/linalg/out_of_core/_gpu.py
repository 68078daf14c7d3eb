"""Strips computed on a GPU, by cuBLAS and cuSOLVER; copies in each direction have a stream of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.errors import OutOfMemoryError
from magmadnn.memory.dtypes import BLAS_LETTERS

from .place import Array, HostArray, Mark

# The libraries' numbers of what they are told.
_AS_IT_IS, _CONJUGATE = 0, 2
_LEFT, _RIGHT = 0, 1
_LOWER, _UPPER = 0, 1
_TO_DEVICE, _TO_HOST = 1, 2
_PART_OF_FREE = 0.9  # what is used of the memory that is free: libraries want some as well


class GpuPlace:
    """`Place` on one NVIDIA GPU, through CuPy.

    What lies row by row is to the libraries, which count by columns, the transpose. Orders and exchanges go
    to and fro by kernels that read and write the host's memory: a small copy would wait for the large ones
    that its direction's copy engine has begun.

    Args:
        device: its number.
    """

    def __init__(self, device: int) -> None:
        import cupy

        self.name = f"device {device}"
        self._cupy: Any = cupy
        self._device = cupy.cuda.Device(device)
        self._device.__enter__()
        self._compute, self._up, self._down = (
            cupy.cuda.Stream(non_blocking=True) for _ in range(3)
        )
        self._compute.__enter__()
        self._pinned: list[int] = []
        self._orders: list[Any] = []  # pinned memory that kernels may still read
        self._work: Any = None

    def free_bytes(self) -> int:
        return int(self._cupy.cuda.runtime.memGetInfo()[0] * _PART_OF_FREE)

    def workspace(self, rows: int, columns: int, dtype: np.dtype[Any]) -> int:
        solver, letter = self._cupy.cuda.cusolver, BLAS_LETTERS[dtype.char]
        handle = self._cupy.cuda.device.get_cusolver_handle()
        elimination = getattr(solver, f"{letter}getrf_bufferSize")(handle, rows, columns, 0, rows)
        square = getattr(solver, f"{letter}potrf_bufferSize")(handle, _UPPER, columns, 0, columns)
        # Rows that are exchanged are gathered first: at most two for each of a strip.
        return int(max(elimination, square) + 2 * columns * columns) * dtype.itemsize

    def allocate(self, count: int, dtype: np.dtype[Any]) -> Array:
        try:
            return self._cupy.empty(count, dtype)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"linalg.out_of_core: {count * dtype.itemsize} bytes do not fit the memory of {self.name}; "
                "give a smaller memory_limit"
            ) from error

    def hold(self, array: HostArray) -> None:
        runtime = self._cupy.cuda.runtime
        low, high = np.lib.array_utils.byte_bounds(array)
        try:
            runtime.hostRegister(low, high - low, 0)
        except runtime.CUDARuntimeError:
            return  # pinned already, or in a file: copies do without, slower where it is not pinned
        self._pinned.append(low)

    def close(self) -> None:
        for stream in (self._compute, self._up, self._down):
            stream.synchronize()
        for address in self._pinned:
            self._cupy.cuda.runtime.hostUnregister(address)
        self._pinned.clear()
        self._orders.clear()
        self._work = None
        self._compute.__exit__(None, None, None)
        self._device.__exit__(None, None, None)

    # --- order ------------------------------------------------------------------------------------

    def upload(self, to: Array, source: HostArray, after: list[Mark]) -> Mark:
        for mark in after:
            self._up.wait_event(mark)
        self._copy(
            to.data.ptr, to.strides[0], source.ctypes.data, source.strides[0], source, self._up
        )
        return self._up.record()

    def download(self, to: HostArray, source: Array) -> Mark:
        self._down.wait_event(self.computed())
        self._copy(
            to.ctypes.data, to.strides[0], source.data.ptr, source.strides[0], to, self._down
        )
        return self._down.record()

    def _copy(
        self, to: int, to_step: int, source: int, step: int, host: HostArray, stream: Any
    ) -> None:
        rows, width = host.shape[0], host.shape[1] * host.itemsize
        if not rows or not width:
            return
        way = _TO_DEVICE if stream is self._up else _TO_HOST
        runtime = self._cupy.cuda.runtime
        runtime.memcpy2DAsync(to, to_step, source, step, width, rows, way, stream.ptr)

    def computed(self) -> Mark:
        return self._compute.record()

    def follow(self, mark: Mark) -> None:
        self._compute.wait_event(mark)

    # --- arithmetic -------------------------------------------------------------------------------

    def _blas(self, name: str, dtype: np.dtype[Any], *arguments: Any) -> None:
        function = getattr(self._cupy.cuda.cublas, BLAS_LETTERS[dtype.char] + name)
        function(self._cupy.cuda.device.get_cublas_handle(), *arguments)

    def subtract(self, c: Array, a: Array, b: Array, *, flip_a: bool, flip_b: bool) -> None:
        m, n = c.shape
        k = a.shape[0] if flip_a else a.shape[1]
        if not m or not n or not k:
            return
        scales = np.array([-1, 1], c.dtype)
        less, more = scales.ctypes.data, scales.ctypes.data + scales.itemsize
        ways = (_CONJUGATE if flip_b else _AS_IT_IS, _CONJUGATE if flip_a else _AS_IT_IS)
        self._blas(
            "gemm", c.dtype, *ways, n, m, k, less, b.data.ptr, b.shape[1], a.data.ptr, a.shape[1],
            more, c.data.ptr, n,
        )  # fmt: skip

    def factor(self, a: Array) -> Array:
        n = a.shape[0]
        found = self._cupy.zeros(1, "int32")
        solver, letter = self._cupy.cuda.cusolver, BLAS_LETTERS[a.dtype.char]
        handle = self._cupy.cuda.device.get_cusolver_handle()
        words = getattr(solver, f"{letter}potrf_bufferSize")(handle, _UPPER, n, a.data.ptr, n)
        getattr(solver, f"{letter}potrf")(
            handle, _UPPER, n, a.data.ptr, n, self._room(words, a), words, found.data.ptr
        )
        return found

    def _room(self, words: int, a: Array) -> int:
        if self._work is None or self._work.nbytes < words * a.itemsize:
            self._work = self.allocate(max(words, 1), a.dtype)
        return int(self._work.data.ptr)

    def solve_behind(self, x: Array, lower: Array) -> None:
        # By columns: x^T becomes conj(L)^-1 x^T, and L is the transpose U of what lies there: conj(L) = U^H.
        rows, n = x.shape
        self._triangle(x, lower, _LEFT, _UPPER, _CONJUGATE, False, n, rows)

    def solve(self, x: Array, a: Array, *, lower: bool, unit: bool, flip: bool) -> None:
        # By columns: x^T becomes x^T op(T)^-T.
        n, k = x.shape
        way = _CONJUGATE if flip else _AS_IT_IS
        self._triangle(x, a, _RIGHT, _UPPER if lower else _LOWER, way, unit, k, n)

    def _triangle(
        self, x: Array, a: Array, side: int, half: int, way: int, unit: bool, m: int, n: int
    ) -> None:
        if not m or not n:
            return
        one = np.ones(1, x.dtype)
        self._blas(
            "trsm", x.dtype, side, half, way, int(unit), m, n, one.ctypes.data, a.data.ptr,
            a.shape[1], x.data.ptr, m,
        )  # fmt: skip

    def eliminate(self, a: Array, spare: Array) -> HostArray:
        rows, n = a.shape
        columns = spare[: rows * n].reshape(n, rows)
        columns[...] = a.T
        exchanges, found = self._cupy.empty(n, "int32"), self._cupy.zeros(1, "int32")
        solver, letter = self._cupy.cuda.cusolver, BLAS_LETTERS[a.dtype.char]
        handle = self._cupy.cuda.device.get_cusolver_handle()
        where = columns.data.ptr
        words = getattr(solver, f"{letter}getrf_bufferSize")(handle, rows, n, where, rows)
        getattr(solver, f"{letter}getrf")(
            handle, rows, n, where, rows, self._room(words, a), exchanges.data.ptr, found.data.ptr
        )
        a[...] = columns.T
        host, seen = self._shared(n, np.dtype(np.int32))
        self._cupy.subtract(exchanges, 1, out=seen)
        self._compute.synchronize()
        return host.copy()

    def _shared(self, count: int, dtype: np.dtype[Any]) -> tuple[HostArray, Array]:
        """Memory that host and device both see, once for each of them; kept until the place is closed."""
        memory = self._cupy.cuda.alloc_pinned_memory(count * dtype.itemsize)
        self._orders.append(memory)
        host = np.frombuffer(memory, dtype, count)
        there = self._cupy.cuda.UnownedMemory(memory.ptr, count * dtype.itemsize, memory)
        pointer = self._cupy.cuda.MemoryPointer(there, 0)
        return host, self._cupy.ndarray((count,), dtype, pointer)

    def _indices(self, order: HostArray) -> Array:
        """Numbers of rows on the device."""
        host, seen = self._shared(len(order), np.dtype(np.int64))
        host[...] = order
        return seen + 0

    def reorder(self, a: Array, order: HostArray, spare: Array) -> None:
        rows = spare[: a.size].reshape(a.shape)
        self._cupy.take(a, self._indices(order), axis=0, out=rows)
        a[...] = rows

    def exchange(self, a: Array, order: HostArray) -> None:
        moved = np.flatnonzero(order != np.arange(len(order)))
        if len(moved):
            a[self._indices(moved)] = a[self._indices(order[moved])]

    def total(self, a: Array) -> Array:
        return a.sum(keepdims=True).reshape(1)

    def values(self, parts: list[Array]) -> list[Any]:
        return [part.get()[0] for part in parts]
