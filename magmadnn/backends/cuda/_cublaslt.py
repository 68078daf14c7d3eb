"""cuBLASLt through ctypes: products on a stream of our own, with what is done to their elements.

The library counts in column order, where a matrix that is stored row by row is its transpose: C' = B' A'.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np

from magmadnn.errors import DeviceError

from .engine import PRODUCT_WORKSPACE, ProductNode
from .libraries.recorded import RecordedCall

_REAL = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # CUDA_R_32F and so on
_COMPUTE_32F, _COMPUTE_TF32, _COMPUTE_64F = 68, 77, 70
# CUBLASLT_MATMUL_DESC_...
_POINTER_MODE, _TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS, _BIAS_TYPE = 2, 3, 4, 7, 8, 26
_NOTHING, _RELU, _ADD_BIAS = 1, 2, 4  # of _EPILOGUE; the last two may be added
_ON_DEVICE = 1  # of _POINTER_MODE
_COUNT, _STEP = (
    5,
    6,
)  # CUBLASLT_MATRIX_LAYOUT_...: matrices of a stack, elements from one to the next
_MOST_WORKSPACE, _PARTS = 1, 3  # CUBLASLT_MATMUL_PREF_...; parts of sums that are cut along k
_IN_COMPUTE_TYPE = 2  # of _PARTS: they are kept and added as float32, and rounded once
_ALIGNMENTS = (5, 6, 7, 8)  # the same, of A, B, C and D
_ALIGNED = 256  # bytes: more gains nothing


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", c_float),
        ("reserved", c_int * 4),
    )  # fmt: skip


class _Product:
    """A product in the library's terms, in column order: C' = op(B)' op(A)'."""

    def __init__(self, operation: int, layouts: tuple[int, int, int]) -> None:
        self.operation = c_void_p(operation)
        self.first, self.second, self.result = map(c_void_p, layouts)


class Products:
    """Matrix products on one stream.

    Args:
        library: cuBLASLt, as `ctypes.CDLL` gives it.
        stream: what products run on.
    """

    def __init__(self, library: Any, stream: int) -> None:
        self._library = library
        self._library.cublasLtGetVersion.restype = c_size_t
        self.version = int(self._library.cublasLtGetVersion())
        self._stream, self._handle = stream, c_void_p()
        self._call("cublasLtCreate", byref(self._handle))

    def _call(self, name: str, *arguments: Any) -> None:
        status: int = getattr(self._library, name)(*arguments)
        if status:
            raise DeviceError(f"the device failed: {name} of cuBLAS gives status {status}")

    def algorithms(self, node: ProductNode, most: int) -> list[bytes]:
        """What the library thinks best; nothing where it has no such product.

        Of products that are stored as halves only those that add float32 until they are rounded.
        """
        preference, workspace = c_void_p(), c_uint64(PRODUCT_WORKSPACE)
        found, count = (_Found * most)(), c_int()
        self._call("cublasLtMatmulPreferenceCreate", byref(preference))
        try:
            self._prefer(preference, _MOST_WORKSPACE, workspace)
            if node.stored:  # else parts might be added as halves, in C or beside it
                self._prefer(preference, _PARTS, ctypes.c_uint32(_IN_COMPUTE_TYPE))
            for attribute, address in zip(
                _ALIGNMENTS, (node.b, node.a, node.c, node.c), strict=True
            ):
                self._prefer(preference, attribute, ctypes.c_uint32(_alignment(address)))
            with self._described(node) as product:
                self._library.cublasLtMatmulAlgoGetHeuristic(
                    self._handle, product.operation, product.first, product.second, product.result,
                    product.result, preference, c_int(most), found, byref(count),
                )  # fmt: skip
        finally:
            self._call("cublasLtMatmulPreferenceDestroy", preference)
        return [bytes(one.algorithm) for one in found[: count.value] if not one.state]

    def multiply(self, node: ProductNode) -> None:
        """Give the stream a product, by the algorithm that it names or the first.

        Raises:
            DeviceError: if there is none.
        """
        with ExitStack() as held:
            name, _, arguments = self.recorded(node, held)
            self._call(name, *arguments)

    def recorded(self, node: ProductNode, held: ExitStack) -> RecordedCall:
        """The call of a product, to be made until `held` is closed.

        Raises:
            DeviceError: as `multiply`.
        """
        algorithm = node.algorithm or next(iter(self.algorithms(node, 1)), b"")
        if not algorithm:
            raise DeviceError(f"cuBLAS has no product of {node.dtype} with sizes {node.sizes}")
        one, zero = (np.array(x, node.dtype) for x in (1, 0))
        held.callback(len, (one, zero))  # which lie where they are as long as that
        scales = (
            (node.scales, node.scales + one.itemsize)
            if node.scales
            else (one.ctypes.data, zero.ctypes.data)
        )
        alpha, beta = map(c_void_p, scales)
        c, chosen = c_void_p(node.c), (c_uint64 * 8).from_buffer_copy(algorithm)
        product = held.enter_context(self._described(node))
        arguments = (
            self._handle, product.operation, alpha, c_void_p(node.b), product.first,
            c_void_p(node.a), product.second, beta, c, product.result, c, product.result,
            byref(chosen), c_void_p(node.workspace), c_size_t(PRODUCT_WORKSPACE),
            c_void_p(self._stream),
        )  # fmt: skip
        return RecordedCall("cublasLtMatmul", self._library.cublasLtMatmul, arguments)

    # --- descriptions -----------------------------------------------------------------------------

    @contextmanager
    def _described(self, node: ProductNode) -> Iterator[_Product]:
        (m, n, k), (transpose_a, transpose_b) = node.sizes, node.transposes
        lda, ldb, ldc = node.leading_dimensions
        read = node.halves or node.dtype
        operation = c_void_p()
        self._call(
            "cublasLtMatmulDescCreate",
            byref(operation), c_int(_compute_type(node)), c_int(_REAL[node.dtype]),
        )  # fmt: skip
        layouts: list[int] = []
        try:
            self._describe(operation, node)
            layouts.append(self._layout(read, *((k, n) if transpose_b else (n, k)), ldb))
            layouts.append(self._layout(read, *((m, k) if transpose_a else (k, m)), lda))
            layouts.append(self._layout(node.stored or node.dtype, n, m, ldc))
            if node.count > 1:
                for layout, side in zip(layouts, (1, 0, 2), strict=True):
                    self._stack(layout, node.count, node.steps[side])
            yield _Product(operation.value or 0, (layouts[0], layouts[1], layouts[2]))
        finally:
            for layout in layouts:
                self._call("cublasLtMatrixLayoutDestroy", c_void_p(layout))
            self._call("cublasLtMatmulDescDestroy", operation)

    def _describe(self, operation: c_void_p, node: ProductNode) -> None:
        self._set(operation, _TRANSPOSE_A, c_int(node.transposes[1]))
        self._set(operation, _TRANSPOSE_B, c_int(node.transposes[0]))
        epilogue = _RELU * node.positive + _ADD_BIAS * bool(node.bias)
        self._set(operation, _EPILOGUE, c_int(epilogue or _NOTHING))
        if node.bias:
            self._set(operation, _BIAS_TYPE, c_int(_REAL[node.stored or node.dtype]))
            self._set(operation, _BIAS, c_void_p(node.bias))
        if node.scales:
            self._set(operation, _POINTER_MODE, c_int(_ON_DEVICE))

    def _set(self, operation: c_void_p, attribute: int, value: Any) -> None:
        self._call(
            "cublasLtMatmulDescSetAttribute",
            operation, c_int(attribute), byref(value), c_size_t(ctypes.sizeof(value)),
        )  # fmt: skip

    def _prefer(self, preference: c_void_p, attribute: int, value: Any) -> None:
        self._call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference, c_int(attribute), byref(value), c_size_t(ctypes.sizeof(value)),
        )  # fmt: skip

    def _stack(self, layout: int, count: int, step: int) -> None:
        """Say that a matrix is the first of a stack."""
        for attribute, value in ((_COUNT, ctypes.c_int32(count)), (_STEP, c_int64(step))):
            self._call(
                "cublasLtMatrixLayoutSetAttribute", c_void_p(layout),
                c_int(attribute), byref(value), c_size_t(ctypes.sizeof(value)),
            )  # fmt: skip

    def _layout(self, dtype: str, rows: int, columns: int, step: int) -> int:
        made = c_void_p()
        self._call(
            "cublasLtMatrixLayoutCreate",
            byref(made), c_int(_REAL[dtype]), c_uint64(rows), c_uint64(columns), c_int64(step),
        )  # fmt: skip
        return made.value or 0


def _compute_type(node: ProductNode) -> int:
    if node.dtype == "float64":
        return _COMPUTE_64F
    return _COMPUTE_TF32 if node.tensor_float and not node.halves else _COMPUTE_32F


def _alignment(address: int) -> int:
    """The largest power of two that divides an address, as far as it matters."""
    return min(address & -address or _ALIGNED, _ALIGNED)
