"""The Cholesky factor of positive definite matrices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.errors import NumericError
from magmadnn.graph.computed_by import LibraryCall
from magmadnn.graph.op import Array, Draw, Op, OpKind, Sample, promote_floating, takes_complex
from magmadnn.graph.signature import by_signature
from magmadnn.graph.transforms.stacking import last_axes
from magmadnn.linalg._at_once import factor_at_once
from magmadnn.linalg._elsewhere import failures_of, lies_elsewhere
from magmadnn.linalg._matrices import (
    adjoint,
    as_stacks,
    by_ascent,
    computed,
    half_lower,
    matrix_name,
)
from magmadnn.ops import conj, matmul

from .triangular import solve_triangular


def _numpy(a: Array, function: str = "cholesky", operand: str = "a") -> Array:
    (a,) = computed(a)
    try:
        with failures_of(a):
            return np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        if lies_elsewhere(a):
            raise NumericError(f"{function}: {operand} is not positive definite") from None
        return _one_by_one(a, function, operand)


def _one_by_one(a: Array, function: str, operand: str) -> Array:
    """The factors, of which that of a matrix with NaN is NaN, whatever NumPy's library makes of it.

    Raises:
        NumericError: for a matrix that is not positive definite.
    """
    factors = np.zeros_like(a)
    for index in np.ndindex(a.shape[:-2]):
        if np.isnan(np.tril(a[index])).any():
            factors[index] = np.tril(np.full_like(a[index], np.nan))
            continue
        try:
            factors[index] = np.linalg.cholesky(a[index])
        except np.linalg.LinAlgError:
            order = _first_minor(a[index])
            raise NumericError(
                f"{function}: {matrix_name(operand, index)} is not positive definite: its leading minor of "
                f"order {order} of {a.shape[-1]} is not positive; add a small number to the diagonal, "
                "or look whether it is a covariance"
            ) from None
    return factors


def _first_minor(a: Array) -> int:
    """The order of the first leading minor that is not positive; those of all higher orders fail as well."""
    good, bad = 0, int(a.shape[-1])
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            np.linalg.cholesky(a[:middle, :middle])
            good = middle
        except np.linalg.LinAlgError:
            bad = middle
    return bad


def _rule(g: Any, factor: Any, a: Any) -> Any:
    """With P = Phi(L^H dL) and S = L^-H P L^-1: Phi(S + S^H), where Phi takes the lower half.

    As in Murray, Differentiation of the Cholesky decomposition, 2016, arXiv:1602.07527, equation 10; here it
    is the gradient of the lower triangle, which alone is read.
    """
    inner = half_lower(matmul(adjoint(factor), g))
    both = _solved_flipped(factor, adjoint(_solved_flipped(factor, inner)))
    return half_lower(both + adjoint(both))


def _solved_flipped(factor: Any, x: Any) -> Any:
    """L^-H x."""
    return conj(solve_triangular(factor, conj(x), lower=True, transpose=True))


def _reference(a: Array) -> Array:
    """Row by row, as in textbooks."""
    factor = np.zeros(a.shape)
    for i in range(a.shape[-1]):
        for j in range(i + 1):
            rest = a[..., i, j] - (factor[..., i, :j] * factor[..., j, :j]).sum(-1)
            factor[..., i, j] = np.sqrt(rest) if i == j else rest / factor[..., j, j]
    return factor


def _samples(draw: Draw) -> Iterable[Sample]:
    for shape in ((5,), (1,), (2, 3), (2, 1, 3)):
        yield Sample((_matrices(draw, *shape),))


def _matrices(draw: Draw, *shape: int) -> Array:
    """Positive definite by their lower triangles, other numbers above; also with the first row everywhere."""
    *leading, n = shape
    below = np.tril(draw(*leading, n, n, low=-0.6, high=-0.3), -1)
    return below + np.triu(np.broadcast_to(4.1 + np.arange(n), (*leading, n, n)))


cholesky: Op = Op(
    name="cholesky",
    args=("a",),
    formula="the lower triangular L with positive diagonal and L L.T = a",
    kind=OpKind.LIBRARY,
    library=LibraryCall("potrf"),
    rewrites=(as_stacks,),
    stacked=last_axes,
    shapes=by_signature("... n n -> ... n n"),
    dtypes=promote_floating,
    numpy=_numpy,
    at_once=factor_at_once,
    on_gpu=True,
    vjp=by_ascent(_rule),
    reference=_reference,
    samples=_samples,
    notes=(
        "a [..., n, n], symmetric (Hermitian where it is complex, a = L L.H) and positive definite -> "
        "[..., n, n]. Only the lower triangle of a is read, as by np.linalg.cholesky, so the gradient above "
        "the diagonal is 0. Raises NumericError for a matrix that is not positive definite, naming it and "
        "its first leading minor that is not positive, and "
        "of arrays for NaN and infinity, which in a plan stay in their matrix."
    ),
)
# The same of the second operand of `eigh`, which its errors name.
factor_of_b: Op = replace(
    cholesky,
    name="_eigh_factor",
    args=("b",),
    formula="the lower triangular L with positive diagonal and L L.T = b",
    numpy=lambda b: _numpy(b, "eigh", "b"),
    notes="",
)
takes_complex(cholesky, factor_of_b)
