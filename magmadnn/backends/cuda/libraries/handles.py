"""Handles of cuBLAS and cuSOLVER on one stream, and how their functions are called."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_void_p
from functools import partial
from typing import Any

from magmadnn.backends.cuda.engine import PRODUCT_WORKSPACE
from magmadnn.backends.cuda.nodes.matrices import MatrixNode

from .recorded import Caller, fail

_LETTERS = {"float32": "S", "float64": "D"}
_REALS: dict[str, Any] = {"float32": ctypes.c_float, "float64": ctypes.c_double}
Copy = Callable[[int, int, int, int], None]  # to, from, bytes, in a stream
LOWER, UPPER = 0, 1  # CUBLAS_FILL_MODE_...


class Handles:
    """Both libraries on one stream.

    Args:
        blas: cuBLAS, as `ctypes.CDLL` gives it.
        solver: cuSOLVER, likewise.
        stream: what calls are given to.

    Attributes:
        caller: makes all calls.
    """

    def __init__(self, blas: Any, solver: Any, stream: int) -> None:
        self._blas, self.solver, self.stream = blas, solver, stream
        self._blas_handle, self._solver_handle = c_void_p(), c_void_p()
        self.caller = Caller()
        ask = self.caller.ask
        ask(blas, "cublasCreate_v2", byref(self._blas_handle))
        ask(blas, "cublasSetStream_v2", self._blas_handle, c_void_p(stream))
        ask(solver, "cusolverDnCreate", byref(self._solver_handle))
        ask(solver, "cusolverDnSetStream", self._solver_handle, c_void_p(stream))

    @contextmanager
    def elsewhere(self, stream: int) -> Iterator[None]:
        """Have cuBLAS give another stream what it is called for meanwhile."""
        tell = partial(self.caller.ask, self._blas, "cublasSetStream_v2", self._blas_handle)
        tell(c_void_p(stream))
        try:
            yield
        finally:
            tell(c_void_p(self.stream))

    def by_blas(self, node: MatrixNode, name: str, *arguments: Any) -> None:
        """Call cuBLAS's function of a name, with `?` for the letter of the dtype."""
        # A workspace of our own: what cuBLAS would take itself cannot be part of a graph within another.
        room = c_void_p(node.workspace), c_size_t(PRODUCT_WORKSPACE)
        self.caller.begin(self._blas, "cublasSetWorkspace_v2", self._blas_handle, *room)
        full = f"cublas{name.replace('?', _LETTERS[node.dtype])}"
        self.caller.begin(self._blas, full, self._blas_handle, *arguments)

    def often(self, node: MatrixNode, name: str) -> Callable[..., None]:
        """The same function, to be called many times in a row with what it is told behind the handle.

        Nothing with another workspace is given to cuBLAS meanwhile: it is told once.
        """
        self.caller.begin(
            self._blas, "cublasSetWorkspace_v2", self._blas_handle, c_void_p(node.workspace),
            c_size_t(PRODUCT_WORKSPACE),
        )  # fmt: skip
        full = f"cublas{name.replace('?', _LETTERS[node.dtype])}"
        function, handle = getattr(self._blas, full), self._blas_handle

        def call(*arguments: Any) -> None:
            if status := function(handle, *arguments):
                fail(full, status)

        return call

    def by_solver(self, node: MatrixNode, name: str, *arguments: Any) -> None:
        """The same of cuSOLVER's."""
        self.caller.begin(self.solver, _full(node, name), self._solver_handle, *arguments)

    def words(
        self, node: MatrixNode, name: str, *arguments: Any, behind: Sequence[Any] = ()
    ) -> int:
        """What a function `NAME_bufferSize` says: how many numbers its function wants for itself."""
        found, asked = c_int(), _full(node, f"{name}_bufferSize")
        told = *arguments, byref(found), *behind
        self.caller.ask(self.solver, asked, self._solver_handle, *told)
        return found.value

    def made(self, name: str) -> c_void_p:
        """What a function of cuSOLVER makes that takes a place for it alone: parameters of others."""
        found = c_void_p()
        self.caller.ask(self.solver, f"cusolverDn{name}", byref(found))
        return found


def _full(node: MatrixNode, name: str) -> str:
    """The name of cuSOLVER's function for a dtype."""
    return f"cusolverDn{name.replace('?', _LETTERS[node.dtype])}"


def one(node: MatrixNode) -> Any:
    """The number 1, by address."""
    return byref(_REALS[node.dtype](1))


def item_bytes(node: MatrixNode) -> int:
    """Bytes of an element."""
    return 4 if node.dtype == "float32" else 8


def at(address: int, number: int = 0, step: int = 0) -> c_void_p:
    """An address, so many steps of bytes on."""
    return c_void_p(address + number * step)
