"""Solutions with the digits of float64 by factors in float32, which take half the time.

First as in Langou et al., Exploiting the performance of 32 bit floating point arithmetic in obtaining 64 bit
accuracy, 2006 (LAPACK's dsgesv and its rule when to stop); where that does not converge, GMRES with the
same factors as preconditioner, as in Carson and Higham, Accelerating the solution of linear systems by
iterative refinement in three precisions, 2018; where that does not either, factors in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from magmadnn.errors import ArgumentError, DTypeError, NumericError, ShapeError
from magmadnn.graph.op import Array
from magmadnn.linalg._matrices import refuse_unless_finite
from magmadnn.linalg._operands import operands
from magmadnn.linalg.factorisations.elimination import eliminated, refuse_singular
from magmadnn.linalg.factorisations.factorisation import cholesky
from magmadnn.linalg.orthogonal import scipy_linalg
from magmadnn.tensor import Tensor, asarray

_MOST = 30  # steps of either way
_RESTART = 30  # vectors of GMRES before it begins anew


class RefinedResult(NamedTuple):
    """Solutions x, steps of refinement, the largest `|A x - b| / (|A| |x| + |b|)`, and the way taken last."""

    x: Any
    iterations: int
    residual: float
    way: str


def refined(a: Any, b: Any, positive: bool) -> RefinedResult:
    """The solution of A x = b for one matrix [n, n] and b [n] or [n, k], known values.

    Raises:
        ArgumentError: for Operations. ShapeError: for a stack, or sizes that do not fit.
        NumericError: if A is singular, or not positive definite though `positive` says so.
    """
    a, b = checked(a, b)
    matrix, right = (np.asarray(x.numpy(), np.float64) for x in (a, b))
    refuse_unless_finite("solve", "a", matrix)
    if not right.size:
        return RefinedResult(asarray(right), 0, 0.0, "refinement")
    columns = right.reshape(len(right), -1)
    refuse_unless_finite("solve", "b", columns)
    x, steps, way = mixed(matrix, columns, positive)
    size = np.linalg.norm(matrix, np.inf) * np.abs(x).max(0) + np.abs(columns).max(0)
    left = np.abs(matrix @ x - columns).max(0)
    residual = float((left / np.where(size == 0, 1, size)).max())
    return RefinedResult(asarray(x.reshape(right.shape)), steps, residual, way)


def checked(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """One matrix and its right sides.

    Raises:
        ArgumentError: for Operations. ShapeError: for a stack, or sizes that do not fit.
        DTypeError: for complex numbers.
    """
    a, b = operands("solve", ("a", a, 2), ("b", b, 1))
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        raise ArgumentError(
            'solve: method="refine" takes arrays and Tensors, not Operations; leave it out'
        )
    if "c" in (a.dtype.kind, b.dtype.kind):
        raise DTypeError(
            f'solve: method="refine" takes real numbers, got {a.dtype} and {b.dtype}; leave it out'
        )
    if a.ndim != 2 or b.ndim > 2 or a.shape[0] != a.shape[1] or len(b) != len(a):
        raise ShapeError(
            f'solve: method="refine" takes one matrix [n, n] and b [n] or [n, k], got {a.shape} and '
            f"{b.shape}"
        )
    return a, b


def mixed(a: Array, b: Array, positive: bool) -> tuple[Array, int, str]:
    """Solutions, steps of refinement, and the way taken last."""
    step = _factorised(a, np.float32, positive)
    steps = 0
    if step is not None:
        x, steps, done = _classical(a, b, step)
        if done:
            return x, steps, "refinement"
        x, more, done = _by_gmres(a, b, x, step)
        steps += more
        if done:
            return x, steps, "gmres"
    exact = _factorised(a, np.float64, positive)
    if exact is None:
        _refuse(a, positive)
        raise NumericError(
            "solve: a is singular to the digits of float64; md.linalg.lstsq takes it"
        )
    return exact(b), steps, "float64"


def _factorised(a: Array, dtype: Any, positive: bool) -> Callable[[Array], Array] | None:
    """Solutions by factors in a precision; None where there are none."""
    lapack = (
        import_module("scipy.linalg.lapack") if scipy_linalg('solve(method="refine")') else None
    )
    with np.errstate(over="ignore"):
        narrow = a.astype(dtype)
    if not np.isfinite(narrow).all():
        return None
    letter = "s" if dtype == np.float32 else "d"
    if positive:
        factor, wrong = getattr(lapack, f"{letter}potrf")(narrow, lower=1)
        if wrong:
            return None
        return lambda r: _scaled(
            lambda v: getattr(lapack, f"{letter}potrs")(factor, v, lower=1)[0], r, dtype
        )
    factors, pivots, wrong = getattr(lapack, f"{letter}getrf")(narrow)
    if wrong:
        return None
    return lambda r: _scaled(
        lambda v: getattr(lapack, f"{letter}getrs")(factors, pivots, v)[0], r, dtype
    )


def _scaled(solve: Callable[[Array], Array], r: Array, dtype: Any) -> Array:
    """The solution for right sides whose largest elements are 1, so that none leaves the range of float32."""
    size = np.abs(r).max(0, keepdims=True)
    size = np.where(size == 0, 1, size)
    return np.asarray(solve((r / size).astype(dtype)).astype(np.float64) * size)


def _classical(a: Array, b: Array, step: Callable[[Array], Array]) -> tuple[Array, int, bool]:
    x, before = step(b), np.inf
    for k in range(_MOST):
        left = b - a @ x
        if not np.isfinite(left).all():
            return np.zeros_like(b), k, False
        ratio = _ratio(a, x, left)
        if ratio <= 1:
            return x, k, True
        if ratio > 0.5 * before:
            return x, k, False
        x, before = x + step(left), ratio
    return x, _MOST, False


def _ratio(a: Array, x: Array, left: Array) -> float:
    """How much of what dsgesv allows is left: `|A| |x| eps sqrt(n)`, for each right side."""
    n = len(a)
    allowed = np.linalg.norm(a, np.inf) * np.abs(x).max(0) * np.finfo(np.float64).eps * n**0.5
    return float(
        (np.abs(left).max(0) / np.where(allowed == 0, np.finfo(float).tiny, allowed)).max()
    )


def _by_gmres(
    a: Array, b: Array, x: Array, step: Callable[[Array], Array]
) -> tuple[Array, int, bool]:
    """Corrections by GMRES on M^-1 A d = M^-1 r; at most some restarts for each right side."""
    sparse = import_module("scipy.sparse.linalg")
    n, steps, x = len(a), 0, x.copy()
    product = sparse.LinearOperator(
        (n, n), lambda v: step((a @ v.reshape(n))[:, None])[:, 0], dtype=float
    )
    for column in range(b.shape[1]):
        one = np.s_[:, column : column + 1]
        for _ in range(_MOST // 5):
            left = b[one] - a @ x[one]
            if _ratio(a, x[one], left) <= 1:
                break
            d, _ = sparse.gmres(product, step(left)[:, 0], rtol=1e-8, restart=_RESTART, maxiter=1)
            if not np.isfinite(d).all():
                return x, steps, False
            x[one] += d[:, None]
            steps += 1
        if _ratio(a, x[one], b[one] - a @ x[one]) > 1:
            return x, steps, False
    return x, steps, True


def _refuse(a: Array, positive: bool) -> None:
    """Say what is wrong with a matrix that has no factors."""
    if positive:
        cholesky(a)
    else:
        refuse_singular("solve", eliminated(a)[0])
