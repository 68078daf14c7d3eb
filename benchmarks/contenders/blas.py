"""OpenBLAS of the wheel `scipy-openblas64`, called through ctypes with the addresses at hand."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.networks import Array, loaded

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
        self._call = lambda: routine(*converted)

    def run(self) -> None:
        self._call()

    def check(self) -> dict[str, Any]:
        self.run()
        return {"product": self._c}


class Products:
    """The products of a network's layers for one sample, and nothing else."""

    def __init__(self, file: str) -> None:
        _, _, _, weights = loaded(file)
        self._layers = [Gemv(w) for w in weights[::2]]

    def run(self) -> None:
        for layer in self._layers:
            layer.call()


class Gemv:
    """y = W' x for a kernel [inputs, outputs]."""

    def __init__(self, kernel: Array) -> None:
        inputs, outputs = kernel.shape
        self._kernel, self._x = kernel, np.ones(inputs, kernel.dtype)
        self._y = np.zeros(outputs, kernel.dtype)
        routine = library().scipy_cblas_sgemv64_
        real, size, pointer = ctypes.c_float, ctypes.c_int64, ctypes.c_void_p
        routine.restype = None
        routine.argtypes = [ctypes.c_int] * 2 + [size] * 2
        routine.argtypes += [real, pointer, size, pointer, size, real, pointer, size]
        values = (
            ROW_MAJOR, TRANSPOSED, inputs, outputs, 1.0, kernel.ctypes.data, outputs,
            self._x.ctypes.data, 1, 0.0, self._y.ctypes.data, 1,
        )  # fmt: skip
        converted = [kind(value) for kind, value in zip(routine.argtypes, values, strict=True)]
        self.call = lambda: routine(*converted)
