"""OpenBLAS of the wheel `scipy-openblas64`, called through ctypes with the addresses at hand."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.networks import Array, loaded
from magmadnn.compiler.emit.llvm.target import Library, host, object_code

ROW_MAJOR, NO, TRANSPOSED = 101, 111, 112


def library() -> ctypes.CDLL:
    """The library on as many threads as the process is given; it chooses its core type itself."""
    import scipy_openblas64

    path = next(Path(scipy_openblas64.get_lib_dir()).glob("libscipy_openblas64_.*"))
    found = ctypes.CDLL(str(path))
    found.scipy_openblas_set_num_threads64_(int(os.environ["OPENBLAS_NUM_THREADS"]))
    return found


def operands(m: int, k: int, n: int, ta: bool, tb: bool, dtype: str) -> tuple[Array, Array]:
    """A and B as they are stored: transposed ones by columns."""
    rng = np.random.default_rng(1)
    a = rng.standard_normal((k, m) if ta else (m, k)).astype(dtype)
    b = rng.standard_normal((n, k) if tb else (k, n)).astype(dtype)
    return a, b


class Gemm:
    """C = op(A) op(B)."""

    def __init__(self, m: int, k: int, n: int, ta: bool, tb: bool, dtype: str) -> None:
        self._a, self._b = operands(m, k, n, ta, tb, dtype)
        self._c = np.zeros((m, n), dtype)
        routine = getattr(library(), f"scipy_cblas_{'s' if dtype == 'float32' else 'd'}gemm64_")
        real = ctypes.c_float if dtype == "float32" else ctypes.c_double
        size, pointer = ctypes.c_int64, ctypes.c_void_p
        routine.restype = None
        routine.argtypes = [ctypes.c_int] * 3 + [size] * 3
        routine.argtypes += [real, pointer, size, pointer, size, real, pointer, size]
        values = (
            ROW_MAJOR, TRANSPOSED if ta else NO, TRANSPOSED if tb else NO, m, n, k, 1.0,
            self._a.ctypes.data, self._a.shape[1], self._b.ctypes.data, self._b.shape[1], 0.0,
            self._c.ctypes.data, n,
        )  # fmt: skip
        # Converted once: a run is the call alone.
        converted = [kind(value) for kind, value in zip(routine.argtypes, values, strict=True)]
        self._call: Callable[[], Any] = partial(routine, *converted)

    def run(self) -> None:
        self._call()

    def check(self) -> dict[str, Any]:
        self.run()
        return {"product": self._c}


class Products:
    """The products of a network's layers for one sample, and nothing else: a native loop calls `cblas_sgemv`.

    One run goes through the layers `runs` times, so that no call from Python counts.
    """

    runs = 200

    def __init__(self, file: str) -> None:
        _, _, _, weights = loaded(file)
        kernels = weights[::2]
        self._values = [np.ones(len(kernels[0]), np.float32)]
        self._values += [np.zeros(w.shape[1], np.float32) for w in kernels]
        self._kernels, self._library = kernels, library()
        address = ctypes.cast(self._library.scipy_cblas_sgemv64_, ctypes.c_void_p).value or 0
        self._code = Library(object_code(self._text(address), host()))
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._code.address("products"))

    def _text(self, address: int) -> str:
        """y = W' x for each kernel [inputs, outputs], addresses written out, in a loop."""
        calls = [
            f"call void %f(i32 {ROW_MAJOR}, i32 {TRANSPOSED}, i64 {w.shape[0]}, i64 {w.shape[1]}, "
            f"float 1.0, {_pointer(w)}, i64 {w.shape[1]}, {_pointer(x)}, i64 1, float 0.0, "
            f"{_pointer(y)}, i64 1)"
            for w, x, y in zip(self._kernels, self._values, self._values[1:], strict=False)
        ]
        return "\n".join(
            [
                f'target triple = "{host().triple}"',
                "define void @products(i64 %runs) {",
                "entry:",
                f"%f = inttoptr i64 {address} to ptr",
                "br label %again",
                "again:",
                "%run = phi i64 [0, %entry], [%next, %again]",
                *calls,
                "%next = add i64 %run, 1",
                "%more = icmp slt i64 %next, %runs",
                "br i1 %more, label %again, label %end",
                "end:",
                "ret void",
                "}",
            ]
        )

    def run(self) -> None:
        self._call(self.runs)

    def check(self) -> dict[str, Any]:
        self.run()
        return {"product": self._values[-1]}


def _pointer(array: Array) -> str:
    return f"ptr inttoptr (i64 {array.ctypes.data} to ptr)"
