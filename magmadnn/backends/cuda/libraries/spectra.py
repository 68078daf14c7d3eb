"""Eigenvalues and singular values: calls that no graph holds, since they look at values while they run."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_byte, c_double, c_int, c_int64, c_size_t, c_void_p
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.backends.cuda.nodes.matrices import (
    SMALL_SINGULAR,
    MatrixNode,
    by_polar,
    by_qr,
    sizes_of_singular,
)

from .handles import LOWER, UPPER, Copy, Handles, at, item_bytes
from .polar import SymmetricParts
from .repeated import Captured

T = TypeVar("T")

_REAL = {"float32": 0, "float64": 1}  # CUDA_R_32F, CUDA_R_64F

_SMALL_EIGEN = 32  # rows up to which many matrices at once are rotated
_MOST_AT_ONCE = (
    512  # matrices of which others are decomposed at once: each takes up to 1 MB of workspace
)


def _once(ask: Callable[[Spectra, MatrixNode], T]) -> Callable[[Spectra, MatrixNode], T]:
    """What a library says of matrices of some sizes, for which it is asked once."""

    def known(self: Spectra, node: MatrixNode) -> T:
        sizes = node.height, node.width, node.count
        key = ask.__name__, node.function, node.dtype, node.settings, *sizes
        if key not in self.asked:
            self.asked[key] = ask(self, node)
        found: T = self.asked[key]
        return found

    return known


class Spectra:
    """Calls on one stream.

    Args:
        handles: of the libraries.
        copy: begins to copy.
        captured: makes graphs of calls, see `Repeated`.

    Attributes:
        asked: what the libraries have said.
    """

    def __init__(self, handles: Handles, copy: Copy, captured: Captured | None) -> None:
        self._handles, self._copy = handles, copy
        self._symmetric = SymmetricParts(handles, copy, captured)
        self.asked: dict[tuple[object, ...], Any] = {}  # see `_once`

    def workspace(self, node: MatrixNode) -> int:
        """Bytes of workspace on the device that the call of a node needs."""
        if node.function == "syevd":
            if _is_small(node):
                return self._jacobi_words(node) * item_bytes(node)
            return self._eigen_bytes(node)[0]
        if self._is_by_qr(node):
            return self._qr_words(node) * item_bytes(node)
        words = self._singular_words(node) * item_bytes(node)
        if not _by_polar(node):
            return words
        vectors, _ = node.settings
        if vectors:
            return max(words, self._polar_bytes(node)[0])
        return max(
            words,
            self._eigen_bytes(_eigen(node))[0],
            self._symmetric.words(node) * item_bytes(node),
        )

    def call(self, node: MatrixNode) -> None:
        """Give the stream the call of a node."""
        (self._syevd if node.function == "syevd" else self._gesdd)(node)

    # --- eigenvalues ------------------------------------------------------------------------------

    @cached_property
    def _options(self) -> c_void_p:
        """What functions of any dtype are told besides: nothing."""
        return self._handles.made("CreateParams")

    def _eigen_arguments(self, node: MatrixNode, number: int = 0) -> list[Any]:
        n, real = node.width, c_int(_REAL[node.dtype])
        lower, vectors = node.settings
        matrices, values = node.pieces
        size = item_bytes(node)
        return [
            self._options, c_int(vectors), c_int(UPPER if lower else LOWER), c_int64(n),
            real, at(matrices, number, n * n * size), c_int64(n),
            real, at(values, number, n * size), real,
        ]  # fmt: skip

    @_once
    def _eigen_bytes(self, node: MatrixNode) -> tuple[int, int]:
        """Bytes on the device and on the host, for as many matrices as are taken at once."""
        there, here = c_size_t(), c_size_t()
        several = [c_int64(min(node.count, _MOST_AT_ONCE))] if node.count > 1 else []
        name = "XsyevBatched" if node.count > 1 else "Xsyevd"
        self._handles.by_solver(
            node, f"{name}_bufferSize", *self._eigen_arguments(node), byref(there), byref(here),
            *several,
        )  # fmt: skip
        return there.value, here.value

    def _syevd(self, node: MatrixNode) -> None:
        if _is_small(node):
            self._syevj(node)
            return
        there, here = self._eigen_bytes(node)
        room = np.empty(max(here, 1), np.uint8)
        name = "XsyevBatched" if node.count > 1 else "Xsyevd"
        for first in range(0, node.count, _MOST_AT_ONCE):
            several = [c_int64(min(node.count - first, _MOST_AT_ONCE))] if node.count > 1 else []
            self._handles.by_solver(
                node, name, *self._eigen_arguments(node, first), c_void_p(node.workspace),
                c_size_t(there), c_void_p(room.ctypes.data), c_size_t(here),
                at(node.info, first, 4), *several,
            )  # fmt: skip

    # many small matrices, by Jacobi's method

    @cached_property
    def _rotations(self) -> c_void_p:
        """What Jacobi's methods for eigenvalues are told besides: nothing."""
        return self._handles.made("CreateSyevjInfo")

    def _jacobi_arguments(self, node: MatrixNode) -> list[Any]:
        lower, vectors = node.settings
        matrices, values = map(c_void_p, node.pieces)
        n = c_int(node.width)
        return [c_int(vectors), c_int(UPPER if lower else LOWER), n, matrices, n, values]

    @_once
    def _jacobi_words(self, node: MatrixNode) -> int:
        behind = self._rotations, c_int(node.count)
        arguments = self._jacobi_arguments(node)
        return self._handles.words(node, "?syevjBatched", *arguments, behind=behind)

    def _syevj(self, node: MatrixNode) -> None:
        self._handles.by_solver(
            node, "?syevjBatched", *self._jacobi_arguments(node), c_void_p(node.workspace),
            c_int(self._jacobi_words(node)), c_void_p(node.info), self._rotations,
            c_int(node.count),
        )  # fmt: skip

    # --- singular values --------------------------------------------------------------------------

    @cached_property
    def _jacobi(self) -> c_void_p:
        """What Jacobi's methods are told besides: nothing, so that they go on to the last digit."""
        return self._handles.made("CreateGesvdjInfo")

    def _is_together(self, node: MatrixNode) -> bool:
        return node.count > 1 and max(node.height, node.width) <= SMALL_SINGULAR

    def _singular(self, node: MatrixNode, number: int = 0) -> tuple[str, list[Any], list[Any]]:
        """The function, what it is told up to its workspace, and what behind that."""
        vectors, full = node.settings
        p, q, columns = sizes_of_singular(node.height, node.width, full)
        size, (matrices, values, left, right, _) = item_bytes(node), node.pieces
        stacks = [
            c_int(p), c_int(q), at(matrices, number, p * q * size), c_int(p),
            at(values, number, q * size), at(left, number, p * columns * size), c_int(p),
            at(right, number, q * q * size), c_int(q),
        ]  # fmt: skip
        if self._is_together(node):
            return "?gesvdjBatched", [c_int(vectors), *stacks], [self._jacobi, c_int(node.count)]
        return "?gesvdj", [c_int(vectors), c_int(not full), *stacks], [self._jacobi]

    @_once
    def _singular_words(self, node: MatrixNode) -> int:
        name, arguments, behind = self._singular(node)
        return self._handles.words(node, name, *arguments, behind=behind)

    def _gesdd(self, node: MatrixNode) -> None:
        if self._is_by_qr(node):
            for number in range(node.count):
                self._gesvd(node, number)
            return
        words = c_int(self._singular_words(node))
        for number in range(1 if self._is_together(node) else node.count):
            if _by_polar(node) and (self._polar if node.settings[0] else self._alone)(node, number):
                continue
            name, arguments, behind = self._singular(node, number)
            room, info = c_void_p(node.workspace), at(node.info, number, 4)
            self._handles.by_solver(node, name, *arguments, room, words, info, *behind)

    # --- by the QR method: values alone -----------------------------------------------------------

    def _is_by_qr(self, node: MatrixNode) -> bool:
        vectors, _ = node.settings
        return not self._is_together(node) and by_qr(node.height, node.width, vectors)

    @_once
    def _qr_words(self, node: MatrixNode) -> int:
        p, q, _ = sizes_of_singular(node.height, node.width, False)
        return self._handles.words(node, "?gesvd", c_int(p), c_int(q))

    def _gesvd(self, node: MatrixNode, number: int) -> None:
        p, q, _ = sizes_of_singular(node.height, node.width, False)
        size, (matrices, values, left, right, _) = item_bytes(node), node.pieces
        none, rest = c_byte(ord("N")), c_void_p()
        self._handles.by_solver(
            node, "?gesvd", none, none, c_int(p), c_int(q), at(matrices, number, p * q * size),
            c_int(p), at(values, number, q * size), c_void_p(left), c_int(p), c_void_p(right), c_int(q),
            c_void_p(node.workspace), c_int(self._qr_words(node)), rest, at(node.info, number, 4),
        )  # fmt: skip

    # --- by the polar decomposition ---------------------------------------------------------------

    def _alone(self, node: MatrixNode, number: int) -> bool:
        """Values alone; False where the matrix is as before, for another method."""
        symmetric = self._symmetric.make(node, number)
        if symmetric is None:
            return False
        size, (_, values, *_), q = item_bytes(node), node.pieces, _eigen(node).width
        goal = values + number * q * size
        self._syevd(_eigen(node, (symmetric, goal), node.info + 4 * number))
        self._symmetric.negate(node, goal, q)
        return True

    def _polar_arguments(self, node: MatrixNode, number: int = 0) -> list[Any]:
        vectors, full = node.settings
        p, q, columns = sizes_of_singular(node.height, node.width, full)
        size, real = item_bytes(node), c_int(_REAL[node.dtype])
        matrices, values, left, right, _ = node.pieces
        return [
            self._options, c_int(vectors), c_int(not full), c_int64(p), c_int64(q),
            real, at(matrices, number, p * q * size), c_int64(p),
            real, at(values, number, q * size),
            real, at(left, number, p * columns * size), c_int64(p),
            real, at(right, number, q * q * size), c_int64(q), real,
        ]  # fmt: skip

    @_once
    def _polar_bytes(self, node: MatrixNode) -> tuple[int, int]:
        """Bytes of workspace on the device and on the host that gesvdp needs for one matrix."""
        there, here = c_size_t(), c_size_t()
        arguments = self._polar_arguments(node)
        self._handles.by_solver(node, "Xgesvdp_bufferSize", *arguments, byref(there), byref(here))
        return there.value, here.value

    def _polar(self, node: MatrixNode, number: int) -> bool:
        """Decompose a matrix; False where the library shifted small singular values, and it is as before."""
        nbytes = node.height * node.width * item_bytes(node)
        matrix, spare = node.pieces[0] + number * nbytes, node.pieces[4]
        self._copy(spare, matrix, nbytes, self._handles.stream)
        there, here = self._polar_bytes(node)
        room, shift = np.empty(max(here, 1), np.uint8), c_double()
        self._handles.by_solver(
            node, "Xgesvdp", *self._polar_arguments(node, number), c_void_p(node.workspace),
            c_size_t(there), c_void_p(room.ctypes.data), c_size_t(here), at(node.info, number, 4),
            byref(shift),
        )  # fmt: skip
        if shift.value == 0:
            return True
        self._copy(matrix, spare, nbytes, self._handles.stream)
        return False


def _is_small(node: MatrixNode) -> bool:
    """Whether eigenvalues are those of many small matrices."""
    return node.count > 1 and node.width <= _SMALL_EIGEN


def _eigen(node: MatrixNode, pieces: tuple[int, ...] = (0, 0), info: int = 0) -> MatrixNode:
    """The eigenvalues of a symmetric matrix of as many rows as one of a node has singular values."""
    _, q, _ = sizes_of_singular(node.height, node.width, False)
    return replace(
        node, function="syevd", settings=(True, False), operands=(), matrices=1, height=q, width=q,
        pieces=pieces, info=info,
    )  # fmt: skip


def _by_polar(node: MatrixNode) -> bool:
    return by_polar(node.height, node.width, node.settings[0])
