"""The order of launches of a QR with exchanges of columns, and what they leave."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.backends.cuda import device_engine
from magmadnn.backends.cuda.engine import Engine, Graph, KernelNode
from magmadnn.compiler.cuda.library.geqp3 import BLOCK, ROWS, THREADS, TOGETHER, PivotedPart
from magmadnn.memory.dtypes import BLAS_LETTERS
from magmadnn.runtime.cuda.code import functions_of

# `to -= a b`: addresses, elements from column to column of a and to, rows, columns, and columns of a
Subtract = Callable[[int, int, int, int, int, int, int], None]
_KEPT = 4  # factorisations for the next matrix of the same sizes
_MOST_KEPT = 32 << 20  # bytes of each


class Reflections:
    """Reflections and R of matrices [m, n] at one address, and the order of their columns.

    Args:
        engine: of the device.
        subtract: begins a product there.
        dtype: float32, float64, complex64 or complex128.
        m: rows.
        n: columns.
        room: memory for so many numbers of a dtype, to be held as long as this: gives its address.
    """

    def __init__(
        self, engine: Engine, subtract: Subtract, dtype: str, m: int, n: int,
        room: Callable[[int, str], int],
    ) -> None:  # fmt: skip
        self._engine, self._subtract = engine, subtract
        self._sizes, self._item = (m, n), np.dtype(dtype).itemsize
        self._heads, steps = -(-m // ROWS), min(m, n)
        real = np.zeros(0, dtype).real.dtype.name
        self.packed = room((n + 1) * m, dtype)
        self.order = room(n, "int64")
        self._effects = room(n * BLOCK, dtype)
        self._values = {
            "a": self.packed + m * self._item, "f": self._effects, "c": room(m, dtype),
            "norms": room(2 * n, real), "parts": room(self._heads * (BLOCK + 1), dtype),
            "state": room(3, "int64"), "order": self.order, "scales": self.packed, "m": m, "n": n,
            "steps": steps, "heads": self._heads,
        }  # fmt: skip
        parts = [PivotedPart(dtype, name) for name in ("lengths", "longest")]
        self._by = {k: PivotedPart(dtype, "reflected", k) for k in (32, THREADS)}
        self._functions = functions_of(engine, [*parts, *self._by.values()])
        self._lengths, self._longest = parts
        self._graphs: dict[int, Graph] = {}  # of `BLOCK` steps, by threads of a column

    def factorise(self) -> None:
        """Begin to make of [n + 1, m], zeros and below them columns, what `orthogonal.reflected` gives."""
        m, n = self._sizes
        a, item, steps = self._values["a"], self._item, min(m, n)
        self._engine.launch(self._node(self._lengths, n))
        for first in range(0, steps, BLOCK):
            self._steps_of(THREADS if m - first > TOGETHER else 32).launch()
            end = first + BLOCK
            if end < steps:
                self._subtract(
                    a + (first * m + end) * item, self._effects + end * BLOCK * item,
                    a + (end * m + end) * item, m, m - end, n - end, BLOCK,
                )  # fmt: skip

    def _steps_of(self, together: int) -> Graph:
        if together not in self._graphs:
            others = -(-max(self._sizes[1] - 1, 0) * together // THREADS)
            nodes = list[KernelNode]()
            for _ in range(BLOCK):
                for part, blocks in (
                    (self._longest, self._heads), (self._by[together], self._heads + others)
                ):  # fmt: skip
                    after = (len(nodes) - 1,) if nodes else ()
                    nodes.append(self._node(part, blocks, after))
            self._graphs[together] = self._engine.graph(nodes)
        return self._graphs[together]

    def _node(self, part: PivotedPart, blocks: int, after: tuple[int, ...] = ()) -> KernelNode:
        arguments = tuple(self._values[slot] for slot in part.slots)
        return KernelNode(
            self._functions[part], (blocks, 1, 1), (part.threads, 1, 1), 0, arguments, after
        )


class _OnCupy:
    """`Reflections` in CuPy's memory."""

    def __init__(self, cupy: Any, device: int, dtype: str, m: int, n: int) -> None:
        self.held = list[Any]()
        cublas = import_module("cupy_backends.cuda.libs.cublas")
        multiply = getattr(cublas, f"{BLAS_LETTERS[np.dtype(dtype).char]}gemm")
        less, more = np.array(-1.0, dtype), np.array(1.0, dtype)

        def subtract(a: int, b: int, to: int, ld: int, rows: int, columns: int, inner: int) -> None:
            handle = cupy.cuda.device.get_cublas_handle()  # a thread's own, which ends with it
            multiply(
                handle, 0, 0, rows, columns, inner, less.ctypes.data, a, ld, b, BLOCK,
                more.ctypes.data, to, ld,
            )  # fmt: skip

        def room(count: int, dtype: str) -> int:
            self.held.append(cupy.empty(count, dtype))
            return int(self.held[-1].data.ptr)

        self.reflections = Reflections(device_engine(device), subtract, dtype, m, n, room)
        self.packed, self.order = self.held[0].reshape(n + 1, m), self.held[1]


_kept: OrderedDict[tuple[int, str, int, int], _OnCupy] = OrderedDict()
_lock = threading.Lock()


def _reals(cupy: Any, a: Any) -> Any:
    """The real and imaginary parts beside each other; real numbers as they are."""
    return cupy.ascontiguousarray(a).view(a.real.dtype) if a.dtype.kind == "c" else a


def _shifted(cupy: Any, a: Any, power: int) -> Any:
    """Numbers times a power of 2."""
    return cupy.ldexp(_reals(cupy, a), power).view(a.dtype)


def columns_on_device(cupy: Any, packed: Any, count: int) -> Any:
    """The first columns of the product of complex reflections, by cuSOLVER's ungqr: Q [m, count]."""
    library = import_module("cupy_backends.cuda.libs.cusolver")
    (n, m), letter = (packed.shape[0] - 1, packed.shape[1]), BLAS_LETTERS[packed.dtype.char]
    steps = min(m, n)
    with cupy.cuda.Stream.null:
        handle = cupy.cuda.device.get_cusolver_handle()
        q, scales = cupy.zeros((count, m), packed.dtype), packed[0, :steps].copy()
        q[:steps] = packed[1 : steps + 1]
        told = handle, m, count, steps, q.data.ptr, m, scales.data.ptr
        room = cupy.empty(getattr(library, f"{letter}ungqr_bufferSize")(*told), packed.dtype)
        info = cupy.empty(1, "int32")
        getattr(library, f"{letter}ungqr")(*told, room.data.ptr, room.size, info.data.ptr)
        return cupy.ascontiguousarray(q.T)


def on_device(cupy: Any, a: Any, device: int) -> tuple[Any, Any] | None:
    """Reflections of A [m, n] in CuPy's memory, as `orthogonal.reflected` has them, and the order of columns.

    None where it holds numbers that are not finite.
    """
    (m, n), dtype = a.shape, a.dtype.name
    with _lock, cupy.cuda.Stream.null:  # which is in one order with the engine's
        most = float(cupy.abs(_reals(cupy, a)).max())
        if not np.isfinite(most):
            return None
        # Squares neither overflow nor vanish, but of what is nothing beside the largest number.
        power = int(np.frexp(most)[1])
        is_far = abs(power) > np.finfo(a.dtype).maxexp // 16
        key = device, dtype, m, n
        made = _kept.pop(key, None) or _OnCupy(cupy, device, dtype, m, n)
        made.packed[:1] = 0
        made.packed[1:] = _shifted(cupy, a.T, -power) if is_far else a.T
        made.reflections.factorise()
        packed = made.packed.copy()
        if is_far:
            columns = cupy.arange(m)[None, :] <= cupy.arange(n)[:, None]  # R, each column a row
            packed[1:] = cupy.where(columns, _shifted(cupy, packed[1:], power), packed[1:])
        order = made.order.astype("int32")
        if made.packed.nbytes <= _MOST_KEPT:
            _kept[key] = made
            while len(_kept) > _KEPT:
                _kept.popitem(last=False)
    return packed, order
