"""The order of launches of a QR with exchanges of columns, and what they leave."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from magmadnn.linalg.iterative.mixed.calls import Kernel

from .kernels import BLOCK, THREADS, TOGETHER, text_of

NAMES = ("lengths", "longest", "by_warps", "by_blocks")


class Calls(Protocol):
    """What a device is told, in order."""

    def launch(self, name: str, blocks: int, *arguments: int) -> None:
        """Launch a kernel."""
        ...

    def subtract(
        self, a: int, b: int, to: int, ld: int, rows: int, columns: int, inner: int
    ) -> None:
        """to -= a b, column by column: b has `BLOCK` numbers in a column, the others `ld`."""
        ...


class Memory(Protocol):
    """What a factorisation needs beside its matrix: addresses."""

    effects: int  # F, [n, BLOCK]
    column: int  # m numbers
    norms: int  # 2 n numbers
    parts: int  # `BLOCK` + 1 numbers for each `THREADS` rows
    pivot: int  # a word
    order: int  # n words


def factorise(calls: Calls, packed: int, item: int, m: int, n: int, room: Memory) -> None:
    """Make reflections and R of a matrix, as `orthogonal.reflected` has them, and the order of its columns.

    Args:
        calls: to the device.
        packed: address of [n + 1, m]: zeros, and below them the columns of the matrix.
        item: bytes of an element.
        m: rows.
        n: columns.
        room: memory; `order` counts from 0 up.
    """
    a = packed + m * item
    blocks = -(-m // THREADS)
    calls.launch("lengths", n, a, room.norms, m, n)
    for first in range(0, min(m, n), BLOCK):
        end = min(first + BLOCK, m, n)
        for row in range(first, end):
            k, left = row - first, m - row
            calls.launch(
                "longest", blocks, a, room.effects, room.column, room.norms, room.parts, room.pivot,
                m, n, first, k,
            )  # fmt: skip
            name, together = ("by_blocks", THREADS) if left > TOGETHER else ("by_warps", 32)
            others = -(-(n - row - 1) * together // THREADS)
            calls.launch(
                name, blocks + others, a, room.effects, room.column, room.norms, room.parts, room.pivot,
                room.order, packed, m, n, first, k, blocks, blocks,
            )  # fmt: skip
        if end < min(m, n):
            calls.subtract(
                a + (first * m + end) * item, room.effects + end * BLOCK * item,
                a + (end * m + end) * item, m, m - end, n - end, end - first,
            )  # fmt: skip


@lru_cache
def _kernels(device: int, dtype: str) -> dict[str, Kernel]:
    import cupy

    module = cupy.RawModule(code=text_of(dtype), options=("-default-device", "--std=c++17"))
    return {name: Kernel(module.get_function(name)) for name in NAMES}


class CupyCalls:
    """On CuPy's stream.

    Args:
        cupy: the package.
        device: its number, which is the current one.
        dtype: float32 or float64.
    """

    def __init__(self, cupy: Any, device: int, dtype: str) -> None:
        cublas = import_module("cupy_backends.cuda.libs.cublas")
        self._kernels, self._stream = _kernels(device, dtype), cupy.cuda.get_current_stream().ptr
        self._multiply = cublas.dgemm if dtype == "float64" else cublas.sgemm
        self._handle = cupy.cuda.device.get_cublas_handle()
        self._less, self._more = np.array(-1.0, dtype), np.array(1.0, dtype)

    def launch(self, name: str, blocks: int, *arguments: int) -> None:
        """Launch a kernel."""
        self._kernels[name](blocks, THREADS, 0, self._stream, arguments)

    def subtract(
        self, a: int, b: int, to: int, ld: int, rows: int, columns: int, inner: int
    ) -> None:
        """As `Calls` says."""
        as_it_is = 0  # CUBLAS_OP_N
        self._multiply(
            self._handle, as_it_is, as_it_is, rows, columns, inner, self._less.ctypes.data, a, ld, b,
            BLOCK, self._more.ctypes.data, to, ld,
        )  # fmt: skip


class CupyRoom:
    """`Memory` of CuPy's."""

    def __init__(self, cupy: Any, m: int, n: int, dtype: str) -> None:
        blocks = -(-m // THREADS)
        self.numbers = cupy.arange(n, dtype="int64")
        sizes = n * BLOCK, m, 2 * n, blocks * (BLOCK + 1)
        self._held = [cupy.empty(size, dtype) for size in sizes]
        self._word = cupy.empty(1, "int64")
        self.effects, self.column, self.norms, self.parts = (x.data.ptr for x in self._held)
        self.pivot, self.order = self._word.data.ptr, self.numbers.data.ptr


def on_device(cupy: Any, a: Any, device: int) -> tuple[Any, Any] | None:
    """Reflections of A [m, n] in CuPy's memory, as `orthogonal.reflected` has them, and the order of columns.

    None where it holds numbers that are not finite.
    """
    m, n = a.shape
    most = float(cupy.abs(a).max())
    if not np.isfinite(most):
        return None
    # Squares neither overflow nor vanish, but of what is nothing beside the largest number.
    power = int(np.frexp(most)[1])
    is_far = abs(power) > np.finfo(a.dtype).maxexp // 16
    packed = cupy.zeros((n + 1, m), a.dtype)
    packed[1:] = cupy.ldexp(a.T, -power) if is_far else a.T
    room = CupyRoom(cupy, m, n, a.dtype.name)
    factorise(CupyCalls(cupy, device, a.dtype.name), packed.data.ptr, a.dtype.itemsize, m, n, room)
    if is_far:
        columns = cupy.arange(m)[None, :] <= cupy.arange(n)[:, None]  # R, each column a row
        packed[1:] = cupy.where(columns, cupy.ldexp(packed[1:], power), packed[1:])
    return packed, room.numbers
