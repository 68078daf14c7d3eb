"""Equations with a dominant diagonal by Jacobi's method without barriers: chaotic relaxation.

As in Chazan and Miranker, Chaotic relaxation, 1969: threads improve parts of x and read of the others
whatever is there. Where the diagonal is strictly dominant this converges in any order.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, DTypeError, NumericError, ShapeError
from magmadnn.graph.node import Node
from magmadnn.linalg._matrices import refuse_unless_finite
from magmadnn.linalg._operands import numbers
from magmadnn.runtime.threads import thread_count
from magmadnn.tensor import Operation, asarray

from .arguments import check_goal, checked_count, checked_tolerances, exponent_of, scaled
from .krylov import IterativeResult

Reals = NDArray[Any]


@checked_call
def jacobi(a: Any, b: Any, *, rtol: float | None = None, maxiter: int = 10_000) -> IterativeResult:
    """X with A X = B for A with a strictly dominant diagonal: `|a_ii| > sum over j != i of |a_ij|`.

    As many threads as programs run on (`md.set_threads`) have a part of the rows each and repeat
    x_i = (b_i - sum a_ij x_j) / a_ii without waiting for each other. So digits beyond `rtol` differ from run
    to run; `solve` by LU has the same ones in every run. `solve(a, b, method="jacobi")` calls this.

    Args:
        a: [n, n], float32 or float64, one matrix of known values.
        b: [n].
        rtol: steps end at `max |A x - b| <= rtol max |b|`; 1e-10 without, 1e-5 for float32; from 4 eps to 1.
        maxiter: most steps of each thread.

    Returns:
        x [n], the steps of the thread that made most, and `|A x - b| / |b|`.

    Raises:
        NumericError: if a diagonal element is not dominant, naming the row; if the steps do not suffice,
            saying the residual; if an operand holds NaN or infinity.
        ArgumentError, ShapeError, DTypeError: for other operands.
    """
    matrix, right = _checked(a, b)
    maxiter = checked_count("jacobi", "maxiter", maxiter)
    if rtol is None:
        rtol = 1e-5 if matrix.dtype == np.float32 else 1e-10
    rtol, _ = checked_tolerances("jacobi", rtol)
    power = exponent_of(float(np.abs(right).max(initial=0)), matrix.dtype)
    right = scaled(right, -power)
    size = float(np.abs(right).max(initial=0))
    goal = check_goal("jacobi", rtol, 0.0, size, matrix.dtype)
    x, steps = _relaxed(matrix, right, rtol, maxiter)
    with np.errstate(all="ignore"):
        rest = matrix @ x - right
        left, x = float(np.abs(rest).max(initial=0)), scaled(x, power)
    if not left <= goal:
        raise NumericError(
            f"jacobi: after {steps} steps max |A x - b| is {scaled(left, power):.3g}, and "
            f"{scaled(goal, power):.3g} is wanted: {_why(steps, maxiter)}, or use md.linalg.solve"
        )
    if not np.isfinite(x).all():
        raise NumericError(
            f"jacobi: x is beyond the range of {x.dtype}; use float64, or a smaller b"
        )
    norm = float(np.linalg.norm(right))
    residual = float(np.linalg.norm(rest)) / norm if norm else 0.0
    return IterativeResult(asarray(x), steps, residual)


def _why(steps: int, most: int) -> str:
    """The way out where steps did not suffice; they end at once where x overflows."""
    return "give a larger rtol" if steps < most else "give a larger maxiter or rtol"


def _checked(a: Any, b: Any) -> tuple[Reals, Reals]:
    if any(isinstance(one, (Node, Operation)) for one in (a, b)):
        raise ArgumentError(
            "jacobi: takes arrays and Tensors, not Operations; md.linalg.solve has gradients"
        )
    matrix, right = numbers("jacobi", "a", a).numpy(), numbers("jacobi", "b", b).numpy()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(f"jacobi: a must be one square matrix, got shape {matrix.shape}")
    if right.shape != matrix.shape[:1]:
        raise ShapeError(f"jacobi: b must be [{len(matrix)}], got shape {right.shape}")
    if "c" in (matrix.dtype.kind, right.dtype.kind):
        raise DTypeError(
            "jacobi: takes real numbers; use md.linalg.solve or gmres for complex ones"
        )
    wide = np.float32 if matrix.dtype == right.dtype == np.float32 else np.float64
    matrix, right = matrix.astype(wide, copy=False), right.astype(wide, copy=False)
    refuse_unless_finite("jacobi", "a", matrix)
    refuse_unless_finite("jacobi", "b", right[None])
    _refuse_unless_dominant(matrix)
    return matrix, right


def _refuse_unless_dominant(a: Reals) -> None:
    own = np.abs(np.diagonal(a)).astype(np.float64)
    others = np.abs(a).sum(1, dtype=np.float64) - own
    weak = np.flatnonzero(~(own > others))
    if len(weak):
        row = int(weak[0])
        raise NumericError(
            f"jacobi: row {row} of a has {own[row]:.4g} on its diagonal and {others[row]:.4g} beside it, "
            "which must be less: use md.linalg.solve, or gmres"
        )


def _relaxed(a: Reals, b: Reals, rtol: float, most: int) -> tuple[Reals, int]:
    """X, and the most steps of a thread."""
    n = len(a)
    x, diagonal = np.zeros_like(b), np.diagonal(a).copy()
    goal = 0.5 * rtol * np.abs(b).max(initial=0)
    count = min(thread_count(), max(n, 1))
    parts = [slice(n * k // count, n * (k + 1) // count) for k in range(count)]
    near, steps = [False] * count, [0] * count

    def relax(number: int) -> None:
        """Improve a part until all parts were near the solution when they were last looked at."""
        part = parts[number]
        while max(steps) < most:
            left = b[part] - a[part] @ x
            near[number] = bool(np.abs(left).max(initial=0) <= goal)
            if all(near):
                return
            if near[number]:
                time.sleep(0)  # others have the processor
                continue
            x[part] += left / diagonal[part]
            steps[number] += 1
            if not np.isfinite(x[part]).all():  # it overflowed, which ends all
                steps[number] = most

    def relax_quietly(number: int) -> None:
        with np.errstate(all="ignore"):  # of this thread
            relax(number)

    # A part that was near may be so no more, as others went on: then all begin again where they are.
    while max(steps) < most and not np.abs(b - a @ x).max(initial=0) <= 2 * goal:
        near[:] = [False] * count
        threads = [
            threading.Thread(target=relax_quietly, args=(number,)) for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return x, max(steps)
