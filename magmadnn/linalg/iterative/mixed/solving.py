"""Solutions with the digits of float64 by factors in float32: corrections, then GMRES, on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .elimination import Elimination, padded

_MOST = 30  # steps of either way
_RESTART = 30
_TARGET = 8.0  # of the largest element of what is factorised, so that halves keep their digits
_SMALL, _LARGE = 2.0**-60, 2.0**60  # largest elements that are factorised as they are


def solved_in_mixed(cupy: Any, device: int, a: Any, b: Any) -> tuple[Any, int, float, str] | None:
    """x [k, n] with A x = b, corrections, the backward error and the way; None where nothing converges.

    Args:
        cupy: the package.
        device: number of the device, which is the current one.
        a: [n, n] of float64, row by row.
        b: [k, n] of float64, a right side in each row.
    """
    equations = Equations(cupy, device, a)
    try:
        if not equations.has_factors:
            return None
        x, left, steps, is_done = equations.classical(b)
        way = "refinement"
        if not is_done:
            x = cupy.where(cupy.isfinite(x), x, 0)
            x, left, more, is_done = equations.by_gmres(b, x)
            steps, way = steps + more, "gmres"
        return (x, steps, equations.backward_error(x, b, left), way) if is_done else None
    finally:
        equations.close()


class Equations:
    """A x = b on the device, one matrix.

    Args:
        cupy: the package.
        device: number of the device, which is the current one.
        a: [n, n] of float64, row by row.
        ahead: as for `Elimination`.
    """

    def __init__(self, cupy: Any, device: int, a: Any, *, ahead: bool = True) -> None:
        self._cupy, self._a, self.n = cupy, a, len(a)
        self._factors = Elimination(cupy, device, padded(self.n), ahead=ahead)
        try:
            self._factorise()
        except BaseException:
            self.close()
            raise

    def _factorise(self) -> None:
        """Narrow the matrix, and factorise it where its elements allow that."""
        cupy = self._cupy
        sums, most = cupy.zeros(self.n), cupy.zeros(self.n)
        self._scale = 1.0
        size = self._narrow(sums, most)
        if 0 < size < np.inf and not _SMALL < size < _LARGE:
            self._scale = 2.0 ** -math.frexp(size)[1]
            size = self._narrow(sums, most)
        self.norm = float(sums.max()) / self._scale
        self.is_finite = bool(np.isfinite(size))
        self.has_factors = self.is_finite and size > 0
        if self.has_factors:
            self._factors.factorise(2.0 ** round(math.log2(_TARGET / size)))
            self.has_factors = not int(self._factors.wrong[0])

    def _narrow(self, sums: Any, most: Any) -> float:
        cupy, factors = self._cupy, self._factors
        factors.narrow(self._a.data.ptr, self.n, self._scale, sums.data.ptr, most.data.ptr)
        return float(cupy.max(most))

    def close(self) -> None:
        """Give back what the factors hold."""
        self._factors.close()

    def left(self, x: Any, b: Any) -> Any:
        """b - A x, [k, n]."""
        return self._factors.residual(self._a, x, b)

    def correction(self, r: Any) -> Any:
        """A^-1 r by the factors, [k, n]."""
        cupy, n = self._cupy, self.n
        size = cupy.abs(r).max(1, keepdims=True)
        size = cupy.where(size == 0, 1, size)
        right = cupy.zeros((len(r), self._factors.total), cupy.float32)
        right[:, :n] = r / size
        return self._factors.solve(right)[:, :n] * (size * self._scale)

    def ratio(self, x: Any, left: Any) -> float:
        """How much of what LAPACK's dsgesv allows is left, at most 1 where x is done."""
        cupy = self._cupy
        allowed = self.norm * cupy.abs(x).max(1) * (np.finfo(np.float64).eps * self.n**0.5)
        floor = cupy.where(allowed == 0, np.finfo(np.float64).tiny, allowed)
        return float((cupy.abs(left).max(1) / floor).max())

    def backward_error(self, x: Any, b: Any, left: Any) -> float:
        """The largest `|A x - b| / (|A| |x| + |b|)`."""
        cupy = self._cupy
        size = self.norm * cupy.abs(x).max(1) + cupy.abs(b).max(1)
        return float((cupy.abs(left).max(1) / cupy.where(size == 0, 1, size)).max())

    def classical(self, b: Any) -> tuple[Any, Any, int, bool]:
        """x, what it leaves, corrections made, and whether that is little enough."""
        x = self.correction(b)
        before = math.inf
        for step in range(_MOST):
            left = self.left(x, b)
            ratio = self.ratio(x, left)
            if ratio <= 1 or not ratio <= 0.5 * before:
                return x, left, step, ratio <= 1
            x, before = x + self.correction(left), ratio
        return x, self.left(x, b), _MOST, False

    def by_gmres(self, b: Any, x: Any) -> tuple[Any, Any, int, bool]:
        """The same from some x on, by GMRES with the factors as its preconditioner."""
        steps, x = 0, x.copy()
        for row in range(len(b)):
            one = slice(row, row + 1)
            for _ in range(_MOST // 5):
                left = self.left(x[one], b[one])
                ratio = self.ratio(x[one], left)
                if ratio <= 1 or not math.isfinite(ratio):
                    break
                correction, more = self._gmres(self.correction(left))
                x[one] += correction
                steps += more
        left = self.left(x, b)
        return x, left, steps, self.ratio(x, left) <= 1

    def _gmres(self, right: Any) -> tuple[Any, int]:
        """y with M^-1 A y = right, to eight digits or as far as some vectors go."""
        cupy, zero = self._cupy, self._cupy.zeros_like(right)
        size = float(cupy.linalg.norm(right))
        if not 0 < size < math.inf:
            return zero, 0
        basis, table = [right / size], np.zeros((_RESTART + 1, _RESTART))
        for k in range(_RESTART):
            v = self.correction(-self.left(basis[k], zero))
            for i, w in enumerate(basis):
                table[i, k] = float((w * v).sum())
                v = v - table[i, k] * w
            table[k + 1, k] = float(cupy.linalg.norm(v))
            goal = np.zeros(k + 2)
            goal[0] = size
            y = np.linalg.lstsq(table[: k + 2, : k + 1], goal)[0]
            rest = np.linalg.norm(table[: k + 2, : k + 1] @ y - goal)
            if rest <= 1e-8 * size or table[k + 1, k] <= 1e-14 * size or k + 1 == _RESTART:
                break
            basis.append(v / table[k + 1, k])
        return sum((float(c) * w for c, w in zip(y, basis, strict=True)), zero), k + 1
