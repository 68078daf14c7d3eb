"""Eigenvalues and eigenvectors of symmetric matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, NumericError, ShapeError
from magmadnn.graph.computed_by import LibraryCall
from magmadnn.graph.op import (
    REQUIRED,
    Array,
    Draw,
    Op,
    OpKind,
    Sample,
    promote_floating,
    takes_complex,
)
from magmadnn.graph.signature import Attributes, OpWords, by_signature, is_integer, shape_text
from magmadnn.graph.transforms.stacking import last_axes
from magmadnn.memory.dtypes import limits_of
from magmadnn.ops import abs as abs_
from magmadnn.ops import conj, expand_dims, less_equal, matmul, real, reciprocal, where
from magmadnn.ops import max as max_
from magmadnn.tensor import Tensor, asarray
from magmadnn.tensor.known_values import known
from magmadnn.tensor.on_gpu import on_gpu

from ._at_once import eigen_at_once, is_finite
from ._elsewhere import failures_of
from ._matrices import (
    adjoint,
    as_stacks,
    by_ascent,
    computed,
    half_lower,
    refuse_unless_finite,
    transposed,
    truth_values,
    with_diagonal,
)  # fmt: skip
from ._operands import EighResult, operand, refuse_unless_square
from .factorisations.elimination import scipy_lapack
from .factorisations.factorisation import factor_of_b
from .factorisations.triangular import solve_triangular


def _shapes(words: OpWords, specs: Any, attributes: Attributes) -> Any:
    """[..., n + 1, n]: eigenvalues, and below them eigenvectors as rows; or eigenvalues alone."""
    *leading, n, _ = by_signature("... n n -> ... n n")(words, specs, attributes)
    return (*leading, n + 1 if attributes["vectors"] else 1, n)


def _refuse_unless_finite(name: str, argument: str, a: Array, lower: bool) -> None:
    """Look at the triangle that is read: the other may hold anything."""
    if not is_finite(a):
        refuse_unless_finite(name, argument, np.tril(a) if lower else np.triu(a))


def _by_numpy(a: Array, lower: bool, vectors: bool, name: str = "eigh") -> tuple[Array, ...]:
    """Eigenvalues and eigenvectors, or eigenvalues alone."""
    if not is_finite(a):
        _refuse_unless_finite(name, "a", a, lower)
    elif (found := eigen_at_once(a, lower, vectors)) is not None:
        return found
    try:
        with np.errstate(all="ignore"), failures_of(a):
            if not vectors:
                return (np.linalg.eigvalsh(a, "L" if lower else "U"),)
            return tuple(np.linalg.eigh(a, "L" if lower else "U"))
    except np.linalg.LinAlgError:
        raise NumericError(
            f"{name}: the eigenvalues of a did not converge; scale it, or look for numbers near the largest"
        ) from None


def _numpy(a: Array, lower: bool, vectors: bool) -> Array:
    (a,) = computed(a)
    values, *columns = _by_numpy(a, lower, vectors)
    if not vectors:
        return values[..., None, :].astype(a.dtype, copy=False)
    return np.concatenate([values[..., None, :], np.swapaxes(columns[0], -1, -2)], -2)


def _rule(g: Any, y: Any, a: Any, lower: bool, vectors: bool) -> Any:
    """V (diag(dw) + F o V^H dV) V^H, with F_ij = 1 / (w_j - w_i), and 0 for equal eigenvalues.

    As in Giles, An extended collection of matrix derivative results, 2008, section 3.1; of the triangle that
    is read. Eigenvectors of equal eigenvalues are any basis of a space: what depends on that space, and on
    these alike, gets its gradient; anything else has none there, and gets what a 0 makes of it.
    """
    if not vectors:
        whole = symmetric_eigen(a, lower=lower, vectors=True)
        columns = transposed(whole[..., 1:, :])
        inner = with_diagonal(real(g[..., 0, :]))
    else:
        values, columns = real(y[..., 0, :]), transposed(y[..., 1:, :])
        turned = matmul(adjoint(columns), transposed(g[..., 1:, :]))
        inner = with_diagonal(real(g[..., 0, :])) + inverse_gaps(values) * turned
    dense = matmul(matmul(columns, inner), adjoint(columns))
    both = half_lower(dense + adjoint(dense))
    return both if lower else adjoint(both)


def inverse_gaps(values: Any) -> Any:
    """1 / (v_j - v_i), 0 where the two are equal to rounding: n eps times the largest."""
    n = values.shape[-1]
    gaps = expand_dims(values, -2) - expand_dims(values, -1)
    least = 4 * limits_of(values.dtype).eps * n
    largest = expand_dims(expand_dims(max_(abs_(values), axis=-1), -1), -1)
    equal = less_equal(abs_(gaps), largest * least)
    return where(equal, 0, reciprocal(where(equal, 1, gaps)))


def _reference(a: Array, lower: bool, vectors: bool) -> Array:
    """By Jacobi's rotations, one element after the other."""
    kept = np.tril(a) if lower else np.triu(a)
    full = kept + np.swapaxes(kept, -1, -2) - kept * np.eye(a.shape[-1])
    found = [
        np.concatenate([w[None], v.T]) for w, v in map(_rotated, full.reshape(-1, *a.shape[-2:]))
    ]
    made = np.asarray(found).reshape(*a.shape[:-2], a.shape[-1] + 1, a.shape[-1])
    return made if vectors else made[..., :1, :]


def _rotated(a: Array) -> tuple[Array, Array]:
    n, a = len(a), a.copy()
    basis = np.eye(n)
    for _ in range(30):
        for i in range(n):
            for j in range(i):
                angle = 0.5 * np.arctan2(2 * a[i, j], a[j, j] - a[i, i])
                turn = np.eye(n)
                turn[i, i] = turn[j, j] = np.cos(angle)
                turn[j, i], turn[i, j] = np.sin(angle), -np.sin(angle)
                a, basis = turn.T @ a @ turn, basis @ turn
    order = np.argsort(np.diag(a))
    return np.diag(a)[order], basis[:, order]


def _samples(draw: Draw) -> Iterable[Sample]:
    for shape, lower, vectors in (((5,), True, False), ((2, 3), False, False)):
        apart = 3.0 * np.diag(np.arange(shape[-1]))
        matrices = draw(*shape, shape[-1], low=-0.8, high=0.8) + apart
        yield Sample((matrices,), {"lower": lower, "vectors": vectors})


symmetric_eigen: Op = Op(
    name="_eigh",
    args=("a",),
    formula="eigenvalues of a symmetric a in a row, and below them eigenvectors, each a row",
    kind=OpKind.LIBRARY,
    library=LibraryCall("syevd", settings=("lower", "vectors")),
    rewrites=(as_stacks,),
    stacked=last_axes,
    shapes=_shapes,
    dtypes=promote_floating,
    numpy=_numpy,
    vjp=by_ascent(_rule),
    reference=_reference,
    samples=_samples,
    attributes={"lower": REQUIRED, "vectors": REQUIRED},
    canonical=truth_values,
)
takes_complex(symmetric_eigen)


def _is_lower(name: str, which: Any) -> bool:
    if not isinstance(which, str) or which not in ("L", "U", "l", "u"):
        raise ArgumentError(
            f'{name}: UPLO must be "L" or "U", the triangle that is read, got {which!r}'
        )
    return which in ("L", "l")


@checked_call
@on_gpu("a", "b")
def eigh(
    a: Any, UPLO: str = "L", *, b: Any = None, subset_by_index: Sequence[int] | None = None
) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric, or Hermitian, A [..., n, n], by LAPACK's syevd.

    On a GPU by cuSOLVER's syevd, between the graphs of a step; stacks of up to 32 rows by Jacobi's method.

    Of A the triangle UPLO alone is read, "L" or "U", and the gradient is that triangle's. The sign of an
    eigenvector, or its phase where it is complex, is the library's: what depends on it has no gradient.
    Vectors of equal eigenvalues are any basis of their space; what depends on that space and on these
    eigenvalues alike has the right gradient, and of the rest no part is infinite: in place of 1 / 0 there is
    a 0.

    With B it is A V = B V diag(w) with V^H B V = I: of L^-1 A L^-H, with the Cholesky factor L of B, whose
    lower triangle alone is read.

    Args:
        a: the matrices.
        UPLO: the triangle of A that is read.
        b: [..., n, n], symmetric or Hermitian and positive definite; None for I.
        subset_by_index: first and last number of the eigenvalues that are wanted, from 0 for the smallest, as
            SciPy's. One matrix of known values is then decomposed for these alone, where SciPy is installed.

    Returns:
        `eigenvalues` [..., n], ascending, and `eigenvectors` [..., n, n], each a column; [..., k] and
        [..., n, k] of a subset.

    Raises:
        NumericError: if a matrix holds NaN or infinity, its eigenvalues do not converge, or B is not positive
            definite (its leading minor is named).
        ShapeError: if it is not square.
        ArgumentError: for numbers outside 0 ... n - 1, or in the wrong order.
    """
    lower = _is_lower("eigh", UPLO)
    if b is None and subset_by_index is None and (at_once := known(a)) is not None and a.ndim > 1:
        refuse_unless_square("eigh", "a", a)
        return EighResult(*map(at_once.given, _by_numpy(at_once.arrays[0], lower, True)))
    a = operand("eigh", "a", a, 2)
    refuse_unless_square("eigh", "a", a)
    if b is not None:
        return _generalised(a, lower, operand("eigh", "b", b, 2), subset_by_index)
    wanted = None if subset_by_index is None else _subset(a, subset_by_index)
    if wanted is not None and isinstance(a, Tensor) and a.ndim == 2 and scipy_lapack() and len(a):
        return _only(a, lower, wanted)
    both = symmetric_eigen(a, lower=lower, vectors=True)
    found = EighResult(real(both[..., 0, :]), transposed(both[..., 1:, :]))
    return found if wanted is None else _part(found, wanted)


def _subset(a: Any, wanted: Sequence[int]) -> slice:
    n, numbers = a.shape[-1], tuple(wanted) if isinstance(wanted, Sequence) else ()
    if len(numbers) != 2 or not all(map(is_integer, numbers)):
        raise ArgumentError(
            f"eigh: subset_by_index must be two integers, the first and the last, got {wanted!r}"
        )
    if numbers[0] < 0 or numbers[0] > numbers[1] or (isinstance(n, int) and numbers[1] >= n):
        raise ArgumentError(
            f"eigh: subset_by_index must be two numbers in order of 0 ... {n} - 1, got {wanted!r}"
        )
    return slice(int(numbers[0]), int(numbers[1]) + 1)


def _part(found: EighResult, wanted: slice) -> EighResult:
    return EighResult(found.eigenvalues[..., wanted], found.eigenvectors[..., wanted])


def _only(a: Tensor, lower: bool, wanted: slice) -> EighResult:
    """Some eigenvalues of one matrix of known values, by LAPACK's syevr."""
    (values,) = computed(a.numpy())
    refuse_unless_finite("eigh", "a", np.tril(values) if lower else np.triu(values))
    function = import_module("scipy.linalg").eigh
    ends = (wanted.start, wanted.stop - 1)
    found = function(values, lower=lower, subset_by_index=ends)
    if a.dtype.itemsize == 2 and a.dtype != values.dtype and a.dtype.kind not in "iu":
        found = [x.astype(a.dtype) for x in found]  # half precision is rounded once
    return EighResult(*map(asarray, found))


def _mirrored(a: Any, lower: bool) -> Any:
    """The symmetric or Hermitian matrices whose one triangle is read."""
    if isinstance(a, Tensor):
        values = a.numpy()
        kept = np.tril(values, -1) if lower else np.triu(values, 1)
        one = np.eye(values.shape[-1], dtype=bool)
        own = np.real(np.where(one, values, 0))
        return asarray(kept + np.swapaxes(kept, -1, -2).conj() + own)
    half = half_lower(a) if lower else adjoint(half_lower(adjoint(a)))
    return half + adjoint(half)


def _generalised(a: Any, lower: bool, b: Any, wanted: Sequence[int] | None) -> EighResult:
    refuse_unless_square("eigh", "b", b)
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            f"eigh: a and b must have equal sizes, got shapes {shape_text(a.shape)} and {shape_text(b.shape)}"
        )
    for argument, one, half in (("a", a, lower), ("b", b, True)):
        if isinstance(one, Tensor):
            _refuse_unless_finite("eigh", argument, one.read(), half)
    factor = factor_of_b(b)
    left = solve_triangular(factor, _mirrored(a, lower), lower=True)  # L^-1 A
    inner = adjoint(solve_triangular(factor, adjoint(left), lower=True))
    found = eigh(inner, subset_by_index=wanted)
    columns = conj(solve_triangular(factor, conj(found.eigenvectors), lower=True, transpose=True))
    return EighResult(found.eigenvalues, columns)


@checked_call
@on_gpu("a")
def eigvalsh(a: Any, UPLO: str = "L") -> Any:
    """The eigenvalues of symmetric A [..., n, n], ascending: [..., n]; see `eigh`.

    Raises:
        NumericError: if a matrix holds NaN or infinity, or its eigenvalues do not converge.
        ShapeError: if it is not square.
    """
    lower = _is_lower("eigvalsh", UPLO)
    if (at_once := known(a)) is not None and a.ndim > 1:
        refuse_unless_square("eigvalsh", "a", a)
        return at_once.given(_by_numpy(at_once.arrays[0], lower, False, "eigvalsh")[0])
    a = operand("eigvalsh", "a", a, 2)
    refuse_unless_square("eigvalsh", "a", a)
    if isinstance(a, Tensor):
        _refuse_unless_finite("eigvalsh", "a", a.read(), lower)
    found = symmetric_eigen(a, lower=lower, vectors=False)
    return real(found[..., 0, :])
