"""OpenBLAS of the wheel `scipy-openblas64`, called through ctypes with the addresses at hand."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.networks import Array, loaded
from magmadnn.compiler.llvm.ir.target import host, object_code
from magmadnn.compiler.llvm.object.library import Library

ROW_MAJOR, NO, TRANSPOSED = 101, 111, 112


def core_types() -> list[str]:
    """OpenBLAS's core types that this CPU can run and that may be the fastest; "" is its own choice."""
    features = host().features.split(",")
    found = [""]
    if "+avx2" in features and "+fma" in features:
        found.append("Haswell")
    if "+avx512f" in features and "+avx512vl" in features:
        found.append("SkylakeX")
    if "+avx512bf16" in features:
        found.append("SapphireRapids")
    return found


def private(core_type: str, folder: str) -> ctypes.CDLL:
    """A copy of the library with a core type of its own, which no other user of it can have set."""
    import scipy_openblas64

    path = next(Path(scipy_openblas64.get_lib_dir()).glob("libscipy_openblas64_.*"))
    copy = Path(folder) / f"{core_type or 'own'}{path.suffix}"
    shutil.copyfile(path, copy)
    with mock.patch.dict(os.environ, {"OPENBLAS_CORETYPE": core_type}):
        if not core_type:
            del os.environ["OPENBLAS_CORETYPE"]
        found = ctypes.CDLL(str(copy))  # it reads its settings now
    found.scipy_openblas_set_num_threads64_(int(os.environ["OPENBLAS_NUM_THREADS"]))
    return found


@functools.cache
def library() -> ctypes.CDLL:
    """The library on as many threads as the process is given, with its fastest core type, by measurement."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [private(core_type, folder) for core_type in core_types()]
    times = [math.inf] * len(copies)
    a, b, c = (np.ones((384, 384), np.float32) for _ in range(3))
    calls = [_call(copy, 384, 384, 384, False, False, "float32", a, b, c) for copy in copies]
    for _ in range(7):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            times[i] = min(times[i], time.perf_counter() - start)
    return copies[times.index(min(times))]


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
        self._call = _call(library(), m, k, n, ta, tb, dtype, self._a, self._b, self._c)

    def run(self) -> None:
        self._call()

    def check(self) -> dict[str, Any]:
        self.run()
        return {"product": self._c}


def _call(
    library: ctypes.CDLL,
    m: int,
    k: int,
    n: int,
    ta: bool,
    tb: bool,
    dtype: str,
    a: Array,
    b: Array,
    c: Array,
) -> Callable[[], Any]:
    """A call of `cblas_?gemm`, its arguments converted once."""
    routine = getattr(library, f"scipy_cblas_{'s' if dtype == 'float32' else 'd'}gemm64_")
    real = ctypes.c_float if dtype == "float32" else ctypes.c_double
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    routine.restype = None
    routine.argtypes = [ctypes.c_int] * 3 + [size] * 3
    routine.argtypes += [real, pointer, size, pointer, size, real, pointer, size]
    values = (
        ROW_MAJOR, TRANSPOSED if ta else NO, TRANSPOSED if tb else NO, m, n, k, 1.0,
        a.ctypes.data, a.shape[1], b.ctypes.data, b.shape[1], 0.0, c.ctypes.data, n,
    )  # fmt: skip
    return partial(
        routine, *(kind(value) for kind, value in zip(routine.argtypes, values, strict=True))
    )


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
