"""cuSOLVER and cuBLAS through ctypes: functions of matrices on a stream of our own, in place.

The libraries count in column order, where a matrix that is stored row by row is its transpose.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Any

from magmadnn.errors import DeviceError

from .engine import PRODUCT_WORKSPACE, MatrixNode

_LETTERS = {"float32": "S", "float64": "D"}
_REALS: dict[str, Any] = {"float32": ctypes.c_float, "float64": ctypes.c_double}
_LOWER, _UPPER = 0, 1  # CUBLAS_FILL_MODE_...
_RIGHT, _NON_UNIT = 1, 0  # CUBLAS_SIDE_RIGHT, CUBLAS_DIAG_NON_UNIT
_LARGEST_TOGETHER = 256  # rows: functions of many matrices at once are made for small ones


class MatrixFunctions:
    """Calls on one stream.

    Args:
        blas: cuBLAS, as `ctypes.CDLL` gives it.
        solver: cuSOLVER, likewise.
        stream: what calls are given to.
    """

    def __init__(self, blas: Any, solver: Any, stream: int) -> None:
        self._blas, self._solver = blas, solver
        self._blas_handle, self._solver_handle = c_void_p(), c_void_p()
        self._call(blas, "cublasCreate_v2", byref(self._blas_handle))
        self._call(blas, "cublasSetStream_v2", self._blas_handle, c_void_p(stream))
        self._call(solver, "cusolverDnCreate", byref(self._solver_handle))
        self._call(solver, "cusolverDnSetStream", self._solver_handle, c_void_p(stream))

    def workspace(self, node: MatrixNode) -> int:
        """Bytes that a call wants for itself."""
        return self._potrf_words(node) * _bytes(node) if node.function == "potrf" else 0

    def call(self, node: MatrixNode) -> None:
        """Give the stream the call of a node: all matrices at once where they are small and many."""
        functions: dict[str, tuple[Callable[[MatrixNode], None], Callable[[MatrixNode, int], None]]]
        functions = {
            "potrf": (self._potrf_of_all, self._potrf),
            "trsm": (self._trsm_of_all, self._trsm),
        }
        together, alone = functions[node.function]
        matrices = len(node.operands[-1])
        if matrices > 1 and node.rows <= _LARGEST_TOGETHER:
            together(node)
            return
        for number in range(matrices):
            alone(node, number)

    # --- potrf: in column order the upper triangle of U^T U ---------------------------------------

    def _potrf_words(self, node: MatrixNode) -> int:
        words, n = c_int(), c_int(node.rows)
        name = f"cusolverDn{_LETTERS[node.dtype]}potrf_bufferSize"
        at = c_void_p(node.operands[-1][0])
        self._call(
            self._solver, name, self._solver_handle, c_int(_UPPER), n, at, n, byref(words)
        )  # fmt: skip
        return words.value

    def _potrf(self, node: MatrixNode, number: int) -> None:
        n, info = c_int(node.rows), c_void_p(node.info + 4 * number)
        words = c_int(self._potrf_words(node))
        self._call(
            self._solver, f"cusolverDn{_LETTERS[node.dtype]}potrf", self._solver_handle,
            c_int(_UPPER), n, c_void_p(node.operands[-1][number]), n, c_void_p(node.workspace),
            words, info,
        )  # fmt: skip

    def _potrf_of_all(self, node: MatrixNode) -> None:
        n, matrices = c_int(node.rows), c_int(len(node.operands[-1]))
        self._call(
            self._solver, f"cusolverDn{_LETTERS[node.dtype]}potrfBatched", self._solver_handle,
            c_int(_UPPER), n, c_void_p(node.tables[-1]), n, c_void_p(node.info), matrices,
        )  # fmt: skip

    # --- trsm: op(A) X = B is X' op(A)' = B' in column order --------------------------------------

    def _trsm(self, node: MatrixNode, number: int) -> None:
        places = [c_void_p(table[number]) for table in node.operands]
        self._solve(node, f"cublas{_LETTERS[node.dtype]}trsm_v2", *places)

    def _trsm_of_all(self, node: MatrixNode) -> None:
        tables = [c_void_p(table) for table in node.tables]
        matrices = c_int(len(node.operands[-1]))
        self._solve(node, f"cublas{_LETTERS[node.dtype]}trsmBatched", *tables, matrices)

    def _solve(self, node: MatrixNode, name: str, a: Any, b: Any, *rest: Any) -> None:
        # A workspace of our own: what cuBLAS would take itself cannot be part of a graph within another.
        room = c_void_p(node.workspace), c_size_t(PRODUCT_WORKSPACE)
        self._call(self._blas, "cublasSetWorkspace_v2", self._blas_handle, *room)
        lower, transpose = node.settings
        fill, n, width = _UPPER if lower else _LOWER, c_int(node.rows), c_int(node.columns)
        self._call(
            self._blas, name, self._blas_handle, c_int(_RIGHT), c_int(fill), c_int(transpose),
            c_int(_NON_UNIT), width, n, byref(_REALS[node.dtype](1)), a, n, b, width, *rest,
        )  # fmt: skip

    def _call(self, library: Any, name: str, *arguments: Any) -> None:
        status: int = getattr(library, name)(*arguments)
        if status:
            raise DeviceError(f"the device failed: {name} gives status {status}")


def _bytes(node: MatrixNode) -> int:
    return 4 if node.dtype == "float32" else 8
