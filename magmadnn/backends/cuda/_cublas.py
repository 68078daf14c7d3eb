"""cuBLAS through ctypes: CuPy finds the library, but its bindings choose the stream themselves."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Any

import numpy as np
from cupy.cuda import cublas, nvrtc

from magmadnn.errors import DeviceError

from .engine import PRODUCT_WORKSPACE, ProductNode

_REAL = {"float32": 0, "float64": 1}  # CUDA_R_32F, CUDA_R_64F
_COMPUTE_32F, _COMPUTE_TF32, _COMPUTE_64F = 68, 77, 70
_DEFAULT_ALGORITHM = -1


class Products:
    """Matrix products on one stream."""

    def __init__(self, stream: int) -> None:
        cublas.destroy(cublas.create())  # CuPy loads the library with the first call
        self._library = ctypes.CDLL(f"libcublas.so.{nvrtc.getVersion()[0]}")
        self._handle = c_void_p()
        self._call("cublasCreate_v2", byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, c_void_p(stream))

    def _call(self, name: str, *arguments: Any) -> None:
        status: int = getattr(self._library, name)(*arguments)
        if status:
            raise DeviceError(f"the device failed: {name} of cuBLAS gives status {status}")

    def multiply(self, node: ProductNode) -> None:
        """The product in column order: C' = op(B)' op(A)'."""
        m, n, k = node.sizes
        transpose_a, transpose_b = node.transposes
        lda, ldb, ldc = node.leading_dimensions
        kind = c_int(_REAL[node.dtype])
        compute = _COMPUTE_TF32 if node.tensor_float else _COMPUTE_32F
        if node.dtype == "float64":
            compute = _COMPUTE_64F
        one, zero = (np.array(x, node.dtype) for x in (1, 0))
        self._call(
            "cublasSetWorkspace_v2",
            self._handle, c_void_p(node.workspace), c_size_t(PRODUCT_WORKSPACE),
        )  # fmt: skip
        self._call(
            "cublasGemmEx",
            self._handle, c_int(transpose_b), c_int(transpose_a), c_int(n), c_int(m), c_int(k),
            c_void_p(one.ctypes.data), c_void_p(node.b), kind, c_int(ldb), c_void_p(node.a), kind,
            c_int(lda), c_void_p(zero.ctypes.data), c_void_p(node.c), kind, c_int(ldc),
            c_int(compute), c_int(_DEFAULT_ALGORITHM),
        )  # fmt: skip
