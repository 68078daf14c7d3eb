"""Equations with square matrices, inverses and determinants: all by the same factors; and triangles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, NumericError, quoted
from magmadnn.graph.op import Array, Draw, Op, OpKind, Sample, promote_floating, takes_complex
from magmadnn.graph.signature import by_signature
from magmadnn.graph.transforms.stacking import elementwise, last_axes
from magmadnn.memory.dtypes import is_complex
from magmadnn.ops import abs as abs_
from magmadnn.ops import (
    cast,
    conj,
    equal,
    exp,
    expand_dims,
    imag,
    log,
    matmul,
    not_equal,
    prod,
    real,
    sign,
    squeeze,
    stack,
    where,
)
from magmadnn.ops import sum as sum_
from magmadnn.tensor.known_values import known
from magmadnn.tensor.on_gpu import on_gpu

from ._at_once import inverse_at_once, is_finite, solution_at_once
from ._matrices import (
    adjoint,
    by_ascent,
    computed,
    counted,
    diagonal,
    identity,
    in_single,
    refuse_unless_finite,
    transposed,
)
from ._operands import SlogdetResult, operand, operands, refuse_unless_square, truth
from .factorisations import factorisation, triangular
from .factorisations.elimination import (
    eliminated,
    exchanging,
    lu_factored,
    lu_solved,
    refuse_singular,
    square_samples,
)
from .iterative.chaotic import jacobi
from .iterative.device_refinement import lies_on_device, refined_on_device
from .iterative.refinement import refined

# --- solve ----------------------------------------------------------------------------------------


def _numpy(a: Array, b: Array, transpose: bool, of: str, refuses: bool) -> Array:
    a, b = computed(a, b)
    refuse_unless_finite(of, "a", a)
    if refuses:
        refuse_unless_finite(of, "b", b)
    try:
        return np.linalg.solve(np.swapaxes(a, -1, -2) if transpose else a, b)
    except np.linalg.LinAlgError:
        refuse_singular(of, eliminated(a)[0])
        raise NumericError(
            f"{of}: a is singular; md.linalg.lstsq or pinv take such matrices"
        ) from None


def _decomposed(a: Any, b: Any, transpose: bool, of: str, refuses: bool) -> Any:
    x = lu_solved(lu_factored(a), transposed(b), transpose=transpose, of=of, refuses=refuses)
    return transposed(x)


def _vjp(g: Any, x: Any, a: Any, b: Any, transpose: bool, of: str, refuses: bool) -> Any:
    """With op(A) X = B: dB = op(A)^-T dX, d op(A) = -dB X^T.

    The right side G may have overflowed, as with mixed_fp16, whose step is left out then: it is not
    refused, so that NaN and infinity stay in their matrix.
    """
    of = f"gradient of {of}" if refuses else of  # else it is one already
    db = solved(a, g, transpose=not transpose, of=of, refuses=False)
    left, right = (x, db) if transpose else (db, x)
    return -matmul(left, transposed(right)), db


def _reference(a: Array, b: Array, transpose: bool, of: str, refuses: bool) -> Array:
    inverse = np.linalg.inv(np.swapaxes(a, -1, -2) if transpose else a)
    return np.asarray(np.matmul(inverse, b))


def _samples(draw: Draw) -> Iterable[Sample]:
    for shape, right, transpose in (
        ((5,), (5, 3), False),
        ((3,), (2, 3, 7), True),
        ((2, 1, 3), (5, 3, 1), False),
    ):
        yield Sample((exchanging(draw, *shape), draw(*right)), {"transpose": transpose})


solved: Op = Op(
    name="_solve",
    args=("a", "b"),
    formula="x with a x = b, or a.T x = b",
    kind=OpKind.OTHER,
    decompose=in_single(_decomposed),
    stacked=elementwise,
    shapes=by_signature("... n n, ... n k -> ... n k"),
    dtypes=promote_floating,
    numpy=_numpy,
    at_once=solution_at_once,
    vjp=_vjp,
    reference=_reference,
    samples=_samples,
    attributes={"transpose": False, "of": "solve", "refuses": True},
)


@checked_call
def solve(a: Any, b: Any, method: str = "lu", assume_a: str = "gen", info: bool = False) -> Any:
    """X with A X = B, by LU with exchanges of rows (LAPACK's getrf and getrs).

    On a GPU these are cuSOLVER's, or cuBLAS's for many small matrices, as parts of a step's graph.

    Args:
        a: [..., n, n]; NaN and infinity are refused.
        b: [n], one right side for all; or [..., n, k]. Leading axes broadcast.
        method: "lu"; or "refine": factors in float32 and steps that give the digits of float64, of one matrix
            of known values; falls back to float64 by itself (see `refinement.py` for the sources). A Tensor
            in a GPU's memory is factorised in float32 there, and x lies there. "jacobi": by threads that do
            not wait for each other, of one matrix with a dominant diagonal; see `jacobi`.
        assume_a: "pos" lets "refine" take a Cholesky factor of a positive definite A.
        info: whether "refine" gives (x, iterations, residual, way), and "jacobi" (x, iterations, residual).

    Returns:
        [..., n] or [..., n, k], of the operands' common dtype, float64 for integers and by
        "refine". Gradients of both operands use the same factors once more.

    Raises:
        NumericError: if a matrix is singular, naming it and the pivot, or one holds NaN or infinity.
        ShapeError: if the sizes do not fit.
    """
    if method not in ("lu", "refine", "jacobi") or assume_a not in ("gen", "pos"):
        raise ArgumentError(
            'solve: method must be "lu", "refine" or "jacobi", and assume_a "gen" or "pos", got '
            f"{method!r}, {assume_a!r}"
        )
    if method == "jacobi" and assume_a == "gen":
        relaxed = jacobi(a, b)
        return relaxed if info else relaxed.x
    if method == "refine":
        by_gpu = lies_on_device(a)
        found = refined_on_device(a, b) if by_gpu else refined(a, b, assume_a == "pos")
        return found if info else found.x
    if info or assume_a != "gen":
        raise ArgumentError(
            'solve: info and assume_a go with method="refine", info with "jacobi" too; leave them out'
        )
    return _by_factors(a, b)


@on_gpu("a", "b")
def _by_factors(a: Any, b: Any) -> Any:
    """`solve` by LU."""
    if (at_once := known(a, b)) is not None and a.ndim > 1 and b.ndim > 0:
        values, right = at_once.arrays
        right = right[:, None] if b.ndim == 1 else right
        x = solved.compute([values, right], solved.attributes)
        return at_once.given(x[..., 0] if b.ndim == 1 else x)
    a, b = operands("solve", ("a", a, 2), ("b", b, 1))
    if b.ndim == 1:
        return squeeze(solved(a, expand_dims(b, -1)), axis=-1)
    return solved(a, b)


@checked_call
@on_gpu("a")
def inv(a: Any) -> Any:
    """The inverse of A [..., n, n]: X with A X = I.

    To solve equations `solve` is faster and more exact.

    Raises:
        NumericError: if a matrix is singular, naming it and the pivot, or it holds NaN or infinity.
        ShapeError: if it is not square.
    """
    if (at_once := known(a)) is not None and a.ndim > 1:
        (values,) = at_once.arrays
        refuse_unless_square("inv", "a", values)
        if is_finite(values) and (found := inverse_at_once(values)) is not None:
            return at_once.given(found)
        one = np.eye(a.shape[-1], dtype=values.dtype)
        return at_once.given(solved.compute([values, one], {**solved.attributes, "of": "inv"}))
    a = operand("inv", "a", a, 2)
    return inverse(a, of="inv")


def inverse(a: Any, of: str) -> Any:
    """The same, under the name of the function that wants it."""
    refuse_unless_square(of, "a", a)
    dtype = a.dtype if a.dtype.kind not in "iub" else np.dtype(np.float64)
    return solved(a, identity(a.shape[-1], dtype), of=of)


# --- determinants ---------------------------------------------------------------------------------


def _signs_and_pivots(a: Any) -> tuple[Any, Any]:
    """The sign of the exchanges [...], and the diagonal of U [..., n]."""
    factors = lu_factored(a)
    exchanged = not_equal(factors[..., 0, :], counted(a.shape[-1], factors.dtype))
    signs = prod(where(exchanged, -1, np.ones((), factors.dtype)), axis=-1)
    return signs, diagonal(factors[..., 1:, :])


def _det_numpy(a: Array) -> Array:
    (a,) = computed(a)
    if not is_finite(a):
        refuse_unless_finite("det", "a", a)
    with np.errstate(all="ignore"):
        return np.asarray(np.linalg.det(a))


def _det(a: Any) -> Any:
    """The product of pivots; where it overflows, or gives 0, by logarithms, as NumPy's.

    What comes out may be of usual size where the first pivots are large and the last small.
    """
    signs, pivots = _signs_and_pivots(a)
    found = signs * prod(pivots, axis=-1)
    direction, size = _polar(signs, pivots)
    is_number = where(equal(found, 0), False, equal(found - found, 0))  # not of infinity
    return where(is_number, found, direction * cast(exp(size), found.dtype))


def _det_vjp(g: Any, y: Any, a: Any) -> Any:
    scale = expand_dims(expand_dims(g * y, -1), -1)
    return scale * transposed(inverse(a, of="det"))


def _minors(a: Array) -> Array:
    """By the first row, as in textbooks."""
    if a.shape[-1] == 0:
        return np.ones(a.shape[:-2])
    total = np.zeros(a.shape[:-2])
    for k in range(a.shape[-1]):
        total += (-1) ** k * a[..., 0, k] * _minors(np.delete(a[..., 1:, :], k, -1))
    return total


determinant: Op = Op(
    name="_det",
    args=("a",),
    formula="the determinant of a",
    kind=OpKind.OTHER,
    decompose=in_single(_det),
    stacked=last_axes,
    shapes=by_signature("... n n -> ..."),
    dtypes=promote_floating,
    numpy=_det_numpy,
    vjp=_det_vjp,
    reference=_minors,
    samples=square_samples,
)


def _slogdet_numpy(a: Array) -> Array:
    (a,) = computed(a)
    refuse_unless_finite("slogdet", "a", a)
    return np.stack(np.linalg.slogdet(a), -1)


def _polar(signs: Any, pivots: Any) -> tuple[Any, Any]:
    """The direction of a product of pivots, of size 1 or 0, and the logarithm of its size."""
    sizes = abs_(pivots)
    if is_complex(pivots.dtype):
        directions = where(equal(sizes, 0), 0, pivots / where(equal(sizes, 0), 1, sizes))
    else:
        directions = sign(pivots)
    return signs * prod(directions, axis=-1), sum_(log(sizes), axis=-1)


def _slogdet(a: Any) -> Any:
    direction, size = _polar(*_signs_and_pivots(a))
    return stack([direction, cast(size, direction.dtype)], axis=-1)


def _slogdet_rule(g: Any, y: Any, a: Any) -> Any:
    """(g_log - i Im(conj(g_sign) sign)) A^-H, from d log|det| + i d angle = tr(A^-1 dA)."""
    scale = g[..., 1]
    if is_complex(a.dtype):
        scale = real(scale) - imag(conj(g[..., 0]) * y[..., 0]) * 1j
    return expand_dims(expand_dims(scale, -1), -1) * adjoint(inverse(a, of="slogdet"))


def _slogdet_reference(a: Array) -> Array:
    value = _minors(a)
    return np.stack([np.sign(value), np.log(np.abs(value))], -1)


log_determinant: Op = Op(
    name="_slogdet",
    args=("a",),
    formula="the sign of the determinant of a, and the logarithm of its size",
    kind=OpKind.OTHER,
    decompose=in_single(_slogdet),
    stacked=last_axes,
    shapes=by_signature("... n n -> ... 2"),
    dtypes=promote_floating,
    numpy=_slogdet_numpy,
    vjp=by_ascent(_slogdet_rule),
    reference=_slogdet_reference,
    samples=square_samples,
)
takes_complex(solved, determinant, log_determinant)


@checked_call
@on_gpu("a")
def det(a: Any) -> Any:
    """Determinants [...] of matrices A [..., n, n]. The gradient is that times A^-T.

    Raises:
        NumericError: if a matrix holds NaN or infinity; for the gradient, if one is singular.
        ShapeError: if it is not square.
    """
    if (at_once := known(a)) is not None and a.ndim > 1:
        refuse_unless_square("det", "a", a)
        return at_once.given(_det_numpy(at_once.arrays[0]))
    a = operand("det", "a", a, 2)
    refuse_unless_square("det", "a", a)
    return determinant(a)


@checked_call
@on_gpu("a")
def slogdet(a: Any) -> SlogdetResult:
    """The determinant of A [..., n, n] as its sign and the logarithm of its size, which do not overflow.

    A singular matrix gives 0 and -inf. The gradient of the logarithm is A^-T, that of the sign 0.

    Raises:
        NumericError: if a matrix holds NaN or infinity; for the gradient, if one is singular.
        ShapeError: if it is not square.
    """
    if (at_once := known(a)) is not None and a.ndim > 1:
        refuse_unless_square("slogdet", "a", a)
        (values,) = at_once.arrays
        if not is_finite(values):
            refuse_unless_finite("slogdet", "a", values)
        return SlogdetResult(*map(at_once.given, np.linalg.slogdet(values)))
    a = operand("slogdet", "a", a, 2)
    refuse_unless_square("slogdet", "a", a)
    both = log_determinant(a)
    return SlogdetResult(both[..., 0], real(both[..., 1]))


# --- triangles -----------------------------------------------------------------------------------

_TRANS = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}


@checked_call
def cholesky(a: Any, *, upper: bool = False) -> Any:
    """The lower triangular L with a positive diagonal and L L^H = A; with `upper` L^H.

    Only the lower triangle of A is read, with `upper` only the upper one, as by np.linalg.cholesky, so the
    gradient of the other is 0.

    Args:
        a: [..., n, n], symmetric (Hermitian where it is complex) and positive definite.
        upper: whether the upper factor is wanted.

    Returns:
        [..., n, n], float64 for integers.

    Raises:
        NumericError: for a matrix that is not positive definite, naming it and its first leading minor that
            is not positive; of arrays also for NaN and infinity, which in a compiled step stay in their
            matrix.
        ShapeError: if a matrix is not square.
    """
    return _upper(a) if truth("cholesky", "upper", upper) else factorisation.cholesky(a)


@on_gpu("a")
def _upper(a: Any) -> Any:
    """L^H, of the upper triangle."""
    a = operand("cholesky", "a", a, 2)
    refuse_unless_square("cholesky", "a", a)
    return adjoint(factorisation.cholesky(adjoint(a)))


@checked_call
def solve_triangular(
    a: Any, b: Any, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False
) -> Any:
    """X with op(A) X = B, of the upper or the lower triangle of A, as scipy.linalg.solve_triangular.

    The other triangle may hold anything, and has gradient 0; so has the diagonal with `unit_diagonal`.

    Args:
        a: [..., n, n].
        b: [n], one right side for all; or [..., n, k]. Leading axes broadcast.
        trans: what op(A) is: 0 or "N": A; 1 or "T": A^T; 2 or "C": A^H.
        lower: which triangle of A is read, whatever `trans` is.
        unit_diagonal: whether the diagonal counts as 1 and is not read.

    Returns:
        [..., n] or [..., n, k], of the operands' common dtype, float64 for integers.

    Raises:
        NumericError: where an element of the diagonal is 0; of arrays also for NaN and infinity in what is
            read.
        ShapeError: if the sizes do not fit.
        ArgumentError: if there is no such `trans`.
    """
    is_named = isinstance(trans, (int, np.integer, str)) and not isinstance(trans, bool)
    way = _TRANS.get(trans) if is_named else None
    if way is None:
        raise ArgumentError(
            'solve_triangular: trans must be 0, 1 or 2, or "N", "T" or "C" (for a, its transpose and its '
            f"conjugate transpose), got {quoted(trans)}"
        )
    lower = truth("solve_triangular", "lower", lower)
    has_ones = truth("solve_triangular", "unit_diagonal", unit_diagonal)
    if way < 2 and not has_ones and min(getattr(x, "ndim", 0) for x in (a, b)) > 1:
        return triangular.solve_triangular(a, b, lower=lower, transpose=way > 0)
    return _solved(a, b, way, lower, has_ones)


@on_gpu("a", "b")
def _solved(a: Any, b: Any, way: int, lower: bool, has_ones: bool) -> Any:
    """`solve_triangular` by its op: of a vector, with conjugates, or with ones on the diagonal."""
    a, b = operands("solve_triangular", ("a", a, 2), ("b", b, 1))
    a = _with_ones(a) if has_ones else a
    right = expand_dims(b, -1) if b.ndim == 1 else b
    right = conj(right) if way == 2 else right
    x = triangular.solve_triangular(a, right, lower=lower, transpose=way > 0)
    x = conj(x) if way == 2 else x
    return squeeze(x, axis=-1) if b.ndim == 1 else x


def _with_ones(a: Any) -> Any:
    """Matrices with 1 on the diagonal."""
    return where(identity(a.shape[-1], bool), 1, a)
