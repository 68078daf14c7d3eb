"""Least squares of matrices of low rank on a GPU: by products and Cholesky factors, where that is proved."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from magmadnn.errors import NumericError
from magmadnn.graph.op import Array
from magmadnn.linalg._matrices import diagonal, transposed, with_diagonal
from magmadnn.linalg.factorisations.factorisation import cholesky
from magmadnn.linalg.factorisations.triangular import solve_triangular
from magmadnn.ops import (
    cast,
    equal,
    expand_dims,
    greater_equal,
    less,
    less_equal,
    matmul,
    maximum,
    sqrt,
    squeeze,
    where,
)
from magmadnn.ops import max as max_
from magmadnn.ops import min as min_
from magmadnn.ops import sum as sum_
from magmadnn.ops.movement import copy
from magmadnn.tensor import Tensor
from magmadnn.tensor.on_gpu import on_gpu

from .products import AWAY, BELOW, CORRECTIONS, ROUNDED, all_hold, squares

_SHIFT = 4 * float(np.finfo(np.float64).eps)  # of |A^T A|, above what its factors are rounded by
_NOTHING = 0.5  # of rcond times the largest are singular values that do not count, beyond doubt
_STEPS = 2, 2  # towards orthonormal rows, from some that are 0.1 away to 1e-4, and from there
_LARGE = 512  # columns from which on sums of squares bound norms, since a product takes longer than it tells


@lru_cache(maxsize=4)
def _mixing(n: int) -> Array:
    """An orthogonal matrix whose first columns lie in no special way: waves in any order, of any sign."""
    k = np.arange(n)
    waves = np.cos(np.pi / n * (k[:, None] + 0.5) * k) * np.sqrt(2 / n)
    waves[:, 0] /= np.sqrt(2)
    drawn = np.random.default_rng(n)
    signs = drawn.choice((-1.0, 1.0), n)
    return np.asarray(signs[:, None] * waves[:, drawn.permutation(n)])


def _orthonormal(rows: Any, steps: int) -> Any:
    """Rows of the same span, after some steps of Newton's method for the polar factor."""
    for _ in range(steps):
        rows = 1.5 * rows - matmul(matmul(rows, transposed(rows)) * 0.5, rows)
    return rows


def _fourth_power(x: Any) -> Any:
    """The fourth power of |X|, or more: |X|^2 is at most the Frobenius norm of X^T X, and X's squared."""
    if x.shape[-1] < _LARGE:
        return squares(matmul(transposed(x), x))
    size = squares(x)
    return size * size


def _steepest(d: Any, n: int) -> Any:
    """1 up to where numbers [..., n] fall most from one to the next, 0 behind [..., n]."""
    falls = d[..., :-1] / maximum(d[..., 1:], np.finfo(np.float64).tiny)
    index = np.arange(n - 1.0)
    is_most = greater_equal(falls, max_(falls, axis=-1, keepdims=True))
    last = min_(where(is_most, index, float(n)), axis=-1, keepdims=True)
    return where(less_equal(np.arange(float(n)), last), 1.0, 0.0)


@on_gpu("a", "b")
def by_ranges(a: Any, b: Any, limit: float) -> tuple[Any, ...]:
    """`x`, `residuals`, `rank`, a copy of A, and 1 where all matrices are proved to have such ranks, below n.

    The columns of M = A W, with W orthogonal, are mixtures of all of A's, so that the first k of them span
    what A does, if k is its rank: where the diagonal of the Cholesky factor of M^T M falls most. With
    Q1 [m, k] orthonormal of their span, A^T Q1 spans the rows of A, and Q2 [n, k] is orthonormal of that.
    Then C = A Q2 has full rank, X = Q2 Y with the least |C Y - B|, and A = C Q2^T + E. All is in float64.

    Proved is, by norms and no estimates: |E| <= rcond |A| / 2, so that n - k singular values do not count;
    and 1 / |C^+| > 2 rcond |A|, so that k do. Rows and columns of k and more are 0 and stay so.

    Args:
        a: [..., m, n], m >= n > 1.
        b: [m] or [..., m, k].
        limit: singular values below so many times the largest count as 0.
    """
    if isinstance(a, Tensor):  # the device cannot do it
        raise NumericError("lstsq: ranges are for the device alone")
    n, one = a.shape[-1], np.eye(a.shape[-1])
    right = expand_dims(b, -1) if b.ndim == 1 else b
    wide, sides = cast(a, "float64"), cast(right, "float64")
    mixed = matmul(wide, _mixing(n))
    gram = matmul(transposed(mixed), mixed)
    total = sqrt(sum_(gram * gram, axis=(-2, -1), keepdims=True))  # |A|^2 at least
    total = where(equal(total, 0), 1.0, total)
    lower = cholesky(gram + total * (_SHIFT * one))
    counts = _steepest(diagonal(lower), n)
    rows, apart = expand_dims(counts, -1), with_diagonal(1.0 - counts)
    first = matmul(solve_triangular(lower, one, lower=True), transposed(mixed)) * rows  # Q1^T
    spanned = matmul(_orthonormal(first, _STEPS[0]), wide)  # [..., n, n]
    lower = cholesky(matmul(spanned, transposed(spanned)) + apart * total)
    inverse = solve_triangular(lower, one, lower=True)
    base = _orthonormal(matmul(inverse, spanned), _STEPS[1])  # Q2^T
    columns = matmul(wide, transposed(base))  # C
    rest = wide - matmul(columns, base)  # E
    # C is nearly Q1 times the factor, and what that leaves is as well orthonormal as Q1.
    third = matmul(transposed(inverse), transposed(columns))
    y = matmul(inverse, matmul(third, sides))
    for _ in range(CORRECTIONS):
        y = y + matmul(inverse, matmul(third, sides - matmul(columns, y)))
    x = matmul(transposed(base), y)
    # Fourth powers of norms: |A|^2 from both sides, |E|^4, and |C^+|^4.
    least, most = squares(gram) / sum_(diagonal(gram), axis=-1), sqrt(squares(gram))
    small = rest / sqrt(total)
    left = _fourth_power(small)
    inverse = inverse * rows
    condition = _fourth_power(transposed(inverse) * sqrt(total)) * (most / total[..., 0, 0]) ** 2
    known = min(ROUNDED / (n * np.finfo(np.float64).eps), BELOW / max(limit, 1e-30))
    is_known = all_hold(
        less_equal(squares(matmul(third, transposed(third)) - with_diagonal(counts)), AWAY**2),
        less_equal(condition, known**4),
        less_equal(left, (_NOTHING * limit) ** 4 * (least / total[..., 0, 0]) ** 2),
    )
    rank = is_known * cast(sum_(counts, axis=-1), "int64")
    left_over = matmul(wide, x) - sides
    residuals = sum_(left_over * left_over, axis=-2)
    ends = all_hold(less(residuals, np.inf))
    is_proved = min_(is_known) * min_(ends)
    if b.ndim == 1:
        x, residuals = squeeze(x, axis=-1), squeeze(residuals, axis=-1)
    return cast(x, a.dtype), cast(residuals, a.dtype), rank, copy(a), is_proved
