"""Singular values alone, by products of matrices and eigenvalues.

With A = U H, U with orthonormal columns and H symmetric, the singular values of A are the eigenvalues of H.
U comes from A by products alone: polynomials p(x) = a x + b x^3 + c x^5 of singular values, one after the
other, that bring them to 1, as X (a I + b X^T X + c (X^T X)^2). Each is the one that is nearest to 1 where
the last has brought them (Amsel, Persson, Musco, Gower, The Polar Express, 2025).

U need not be that of A to the last digit: with U = exp(D) U', D small and skew, the symmetric part of U'^T A
has eigenvalues that are of order |D|^2 |H| away, and D is eps over singular values. Directions in which A
is 0, or nearly, need no U at all. So it serves matrices of any rank, unlike gesvdp, which shifts such ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, byref, c_double, c_float, c_int, c_void_p
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from magmadnn.backends.cuda.nodes.matrices import MatrixNode, sizes_of_singular

from .handles import LOWER, Copy, Handles, item_bytes
from .repeated import Captured, Repeated

_REALS: dict[str, Any] = {"float32": c_float, "float64": c_double}
_NONE, _TRANSPOSED = c_int(0), c_int(1)  # CUBLAS_OP_...

# Of the largest: what stays apart from 0 in each step, beside what rounding adds.
_NEVER_BELOW = 1e-3
_APART = 1.01  # so much larger than 1 may they be, since the polynomials rise steeply there
_NEAR = 1e-4  # from 1, from where one step more is exact
# After so many steps a factorisation in float64 tells whether all are above a number, of so many columns that
# products take longer; and what they are below then.
_TESTED, _TOLD, _HIGHEST, _LEAST_TESTED = 5, 0.003, 2.02, 1024


@lru_cache(maxsize=8)
def polynomials(least: float, most: float = 1.0) -> tuple[tuple[float, float, float], ...]:
    """`a, b, c` of steps that bring numbers from `least` to `most` to 1, those below to between 0 and 1."""
    low, high, found, error = least, most, [], 1.0
    while error > _NEAR:
        apart = _APART if low < 0.5 * high else 1.0
        low /= apart
        from_here = max(low, _NEVER_BELOW)
        a, b, c, error = _nearest(from_here, high)
        found.append((a / apart, b / apart**3, c / apart**5))
        low = min(1 - error, low * (a + low**2 * (b + c * low**2)))
        high = 1 + error
    return (*found, (1.875, -1.25, 0.375))  # x + error of third order


def _nearest(low: float, high: float) -> tuple[float, float, float, float]:
    """The polynomial that is nearest to 1 from `low` to `high`, and how far it is: by Remez' exchange."""
    first, second, last = low + 0.25 * (high - low), low + 0.75 * (high - low), np.inf
    while True:
        x = np.array([low, first, second, high])
        a, b, c, error = map(
            float, np.linalg.solve(np.stack([x, x**3, x**5, [1, -1, 1, -1]], 1), np.ones(4))
        )
        if abs(error - last) < 1e-12:
            return a, b, c, abs(error)
        root, last = np.sqrt(9 * b * b - 20 * a * c), error
        first, second = np.sqrt((-3 * b - root) / (10 * c)), np.sqrt((-3 * b + root) / (10 * c))


@lru_cache(maxsize=4)
def _coefficients(dtype: str, ends: bool) -> tuple[tuple[Any, Any, Any], ...]:
    """Those of the steps, by address; or of steps for numbers of which none is small."""
    real, least = _REALS[dtype], float(np.finfo(dtype).eps) / 4
    steps = polynomials(_TOLD, _HIGHEST) if ends else polynomials(least)
    return tuple((byref(real(a)), byref(real(b)), byref(real(c))) for a, b, c in steps)


class _Rooms(NamedTuple):
    """Addresses of matrices: of X and what becomes of it [p, q], of X^T X and polynomials of it [q, q]."""

    x: int
    other: int
    squares: int
    factor: int


class SymmetricParts:
    """The symmetric parts H of matrices, on one stream.

    Args:
        handles: of the libraries.
        copy: begins to copy.
        captured: makes graphs of calls, see `Repeated`.
    """

    def __init__(self, handles: Handles, copy: Copy, captured: Captured | None) -> None:
        self._handles, self._copy = handles, copy
        self._repeated = Repeated(handles, captured)

    def make(self, node: MatrixNode, number: int) -> int | None:
        """The address of -H [q, q] of a matrix: eigenvalues ascend as its singular values descend.

        None for matrices of zeros, and for numbers whose squares are too large or too small, or no numbers.
        It works in the places of the first matrix's U and V, and in the room for copies.
        """
        p, q, _ = sizes_of_singular(node.height, node.width, False)
        size, limits = item_bytes(node), np.finfo(node.dtype)
        matrix = node.pieces[0] + number * p * q * size
        x, squares, other = node.pieces[2:]
        rooms = _Rooms(x, other, squares, other + p * q * size)
        norm = self._norm(node, matrix, p * q)
        if not limits.tiny / limits.eps < norm < limits.max / 8:  # nor for NaN
            return None
        self._sum(node, (p, q), 1 / norm, (matrix, _NONE), 0.0, x)
        self._product(node, (p, q), x, x, squares)
        # The largest singular value is at most 1 / scale.
        scale = self._norm(node, squares, q * q) ** -0.5
        self._scale(node, x, p * q, scale)
        self._scale(node, squares, q * q, scale**2)
        x = self._polar(node, number, (p, q), rooms)
        self._product(node, (p, q), x, matrix, squares)
        self._sum(node, (q, q), -0.5, (squares, _TRANSPOSED), -0.5, rooms.factor)
        return rooms.factor

    def negate(self, node: MatrixNode, numbers: int, count: int) -> None:
        """Change the signs of numbers at an address."""
        self._scale(node, numbers, count, -1.0)

    def _scale(self, node: MatrixNode, numbers: int, count: int, scale: float) -> None:
        """Multiply numbers at an address."""
        factor = byref(_REALS[node.dtype](scale))
        self._handles.by_blas(node, "?scal_v2", c_int(count), factor, c_void_p(numbers), c_int(1))

    def _polar(self, node: MatrixNode, number: int, sizes: tuple[int, int], rooms: _Rooms) -> int:
        """Where U is in the end, of X and X^T X in their rooms."""
        steps = _coefficients(node.dtype, False)
        if sizes[1] < _LEAST_TESTED or node.dtype != "float64":
            key = node.dtype, sizes, rooms, node.workspace
            self._repeated.run(key, lambda on: self._step(node, sizes, rooms, steps, on))
        else:  # products take longer than calls
            stream = self._handles.stream
            rooms = self._step(node, sizes, rooms, steps[:_TESTED], stream)
            self._product(node, sizes, rooms.x, rooms.x, rooms.squares)
            is_short = self._none_is_small(node, number, (rooms.squares, rooms.factor))
            steps = _coefficients(node.dtype, True) if is_short else steps[_TESTED:]
            self._step(node, sizes, rooms, steps, stream)
        return rooms.other if len(steps) % 2 else rooms.x

    def _step(
        self, node: MatrixNode, sizes: tuple[int, int], rooms: _Rooms,
        steps: Sequence[tuple[Any, Any, Any]], stream: int,
    ) -> _Rooms:  # fmt: skip
        """Give a stream steps, of which the first finds X^T X in its room; the rooms behind them.

        A call of Python's for each of a hundred products and copies: what they are told is made before.
        """
        (p, q), size, real = sizes, item_bytes(node), _REALS[node.dtype]
        x_at, other_at, *squares = rooms
        rows, columns = c_int(p), c_int(q)
        x, other, y, z = map(c_void_p, rooms)
        one, none, copy = byref(real(1)), byref(real(0)), self._copy
        product = self._handles.often(node, "?gemm_v2")
        square = _TRANSPOSED, _NONE, columns, columns, rows, one
        for number, (a, b, c) in enumerate(steps):
            if number:
                product(*square, x, rows, x, rows, none, y, columns)
            copy(squares[1], squares[0], q * q * size, stream)
            product(
                _NONE, _NONE, columns, columns, columns, c, y, columns, y, columns, b, z, columns
            )
            copy(other_at, x_at, p * q * size, stream)
            product(_NONE, _NONE, rows, columns, columns, one, x, rows, z, columns, a, other, rows)
            x, x_at, other, other_at = other, other_at, x, x_at
        return rooms._replace(x=x_at, other=other_at)

    def words(self, node: MatrixNode) -> int:
        """How many numbers it wants of the workspace for one matrix of a node."""
        _, q, _ = sizes_of_singular(node.height, node.width, False)
        n, place = c_int(q), c_void_p(node.pieces[3])
        return self._handles.words(node, "?potrf", c_int(LOWER), n, place, n)

    def _none_is_small(self, node: MatrixNode, number: int, squares: tuple[int, int]) -> bool:
        """Whether Y - t^2 I is definite, with Y = X^T X: all singular values of X are above t then."""
        _, q, _ = sizes_of_singular(node.height, node.width, False)
        n, real, info = c_int(q), _REALS[node.dtype], node.info + 4 * number
        values = node.pieces[1] + number * q * item_bytes(node)
        less, ones, stream = squares[1], np.ones(q, node.dtype), self._handles.stream
        self._copy(values, ones.ctypes.data, ones.nbytes, stream)  # which are not there yet
        self._copy(less, squares[0], q * q * item_bytes(node), stream)
        self._handles.by_blas(
            node, "?axpy_v2", n, byref(real(-(_TOLD**2))), c_void_p(values), c_int(1), c_void_p(less),
            c_int(q + 1),
        )  # fmt: skip
        self._handles.by_solver(
            node, "?potrf", c_int(LOWER), n, c_void_p(less), n, c_void_p(node.workspace),
            c_int(self.words(node)), c_void_p(info),
        )  # fmt: skip
        found = c_int(-1)
        self._copy(addressof(found), info, 4, stream)  # waits, as this is the program's own memory
        return found.value == 0

    def _norm(self, node: MatrixNode, numbers: int, count: int) -> float:
        """The root of the sum of squares; waits for it."""
        found = _REALS[node.dtype]()
        self._handles.by_blas(
            node, "?nrm2_v2", c_int(count), c_void_p(numbers), c_int(1), byref(found)
        )
        return float(found.value)

    def _product(
        self, node: MatrixNode, sizes: tuple[int, int], left: int, right: int, goal: int
    ) -> None:
        """goal [q, q] = left^T right, both [p, q]."""
        (rows, columns), real = map(c_int, sizes), _REALS[node.dtype]
        self._handles.by_blas(
            node, "?gemm_v2", _TRANSPOSED, _NONE, columns, columns, rows, byref(real(1)), c_void_p(left),
            rows, c_void_p(right), rows, byref(real(0)), c_void_p(goal), columns,
        )  # fmt: skip

    def _sum(
        self, node: MatrixNode, sizes: tuple[int, int], scale: float, other: tuple[int, c_int],
        kept: float, goal: int,
    ) -> None:  # fmt: skip
        """goal [m, n] = scale * other + kept * the same, or its transpose where m = n."""
        (m, n), (first, turn), real = sizes, other, _REALS[node.dtype]
        self._handles.by_blas(
            node, "?geam", _NONE, turn, c_int(m), c_int(n), byref(real(scale)), c_void_p(first),
            c_int(m), byref(real(kept)), c_void_p(first), c_int(m), c_void_p(goal), c_int(m),
        )  # fmt: skip
