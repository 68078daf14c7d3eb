"""Least squares of matrices of full rank on a GPU: by A^T A in float64, where that is proved to do."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.errors import NumericError
from magmadnn.linalg._matrices import transposed
from magmadnn.linalg.factorisations.factorisation import cholesky
from magmadnn.linalg.factorisations.triangular import solve_triangular
from magmadnn.ops import (
    cast,
    equal,
    expand_dims,
    greater,
    less_equal,
    matmul,
    sqrt,
    squeeze,
    where,
)
from magmadnn.ops import max as max_
from magmadnn.ops import min as min_
from magmadnn.ops import sum as sum_
from magmadnn.tensor import Tensor
from magmadnn.tensor.on_gpu import on_gpu

AWAY = 1e-4  # of Q^T Q from I, so that each correction leaves as much of what x is away
CORRECTIONS = 3
ROUNDED = 1e-5  # how far the inverse of a triangle times it may be from I
BELOW = 0.45  # of 1 / rcond are conditions for which singular values count beyond doubt
# Of the largest number of A^T A, so that its factor exists more often.
_SHIFT = 8 * float(np.finfo(np.float64).eps)
# Conditions from which on the rank is taken to be low, since the shift hides what is above them.
_HIDDEN = 3e6
_LEAST_LOW = 4  # of 1 / rcond: the same, where that is less
LOW, UNKNOWN, FULL = -1, 0, 1  # what is known of the ranks


def all_hold(*conditions: Any) -> Any:
    """1 where all of them hold, else 0."""
    found: Any = np.int64(1)
    for condition in conditions:
        found = where(condition, found, np.int64(0))
    return found


def squares(x: Any) -> Any:
    """Sums of squares of matrices, of their dtype."""
    return sum_(x * x, axis=(-2, -1))


@on_gpu("a", "b")
def by_products(a: Any, b: Any, limit: float) -> tuple[Any, ...]:
    """`x`, `residuals` and `rank` of `lstsq`; L and Q^T Q, which give `s`; and `FULL`, `UNKNOWN` or `LOW`.

    All are valid only with `FULL`.

    With L L^T = A^T A, nearly, and Q = A L^-T: X = L^-T Q^T B, corrected by what its residuals give, in
    float64. Each step leaves |Q^T Q - I| of the error, so that X is as exact as by QR: Bjoerck, Stability
    analysis of the method of seminormal equations for linear least squares problems, 1987. The rank is full
    where 1 / |L^-1| is far above rcond |A|: with bounds of both norms, which are no estimates. Numbers that
    are not finite, and those whose squares are not, make no full rank.
    """
    if isinstance(a, Tensor):  # the device cannot do it
        raise NumericError("lstsq: products are for the device alone")
    n = a.shape[-1]
    right = expand_dims(b, -1) if b.ndim == 1 else b
    wide, sides, one = cast(a, "float64"), cast(right, "float64"), np.eye(n)
    gram = matmul(transposed(wide), wide)
    size = max_(gram, axis=(-2, -1), keepdims=True)
    size = where(equal(size, 0), 1.0, size)
    lower = cholesky(gram + size * (_SHIFT * one))
    inverse = solve_triangular(lower, one, lower=True)
    q = solve_triangular(lower, transposed(wide), lower=True)  # [..., n, m], each a column of Q
    second = matmul(q, transposed(q))
    x = matmul(transposed(inverse), matmul(q, sides))
    for _ in range(CORRECTIONS):
        x = x + matmul(transposed(inverse), matmul(q, sides - matmul(wide, x)))
    # The fourth power of |A| |L^-1|, or more: |M|^2 is at most the Frobenius norm of M M^T.
    small = gram / size
    first = squares(matmul(inverse, transposed(inverse)) * size)
    condition = first * sqrt(squares(matmul(small, small)))
    most = min(ROUNDED / (n * np.finfo(np.float64).eps), BELOW / max(limit, 1e-30))
    near = less_equal(squares(second - one), AWAY**2)  # False for NaN, as all that follow
    is_good = all_hold(near, less_equal(condition, most**4))
    rank, left = is_good * np.int64(n), matmul(wide, x) - sides
    residuals = sum_(left * left, axis=-2)
    ends = less_equal(residuals, np.finfo(np.float64).max)
    least = min(_HIDDEN, _LEAST_LOW / max(limit, 1e-30))
    is_low = max_(where(greater(condition, least**4), np.int64(1), np.int64(0)))
    known_of_rank = min_(is_good) * min_(all_hold(ends)) - is_low
    if b.ndim == 1:
        x, residuals = squeeze(x, axis=-1), squeeze(residuals, axis=-1)
    x, residuals = cast(x, a.dtype), cast(residuals, a.dtype)
    return x, residuals, rank, lower, second, known_of_rank
