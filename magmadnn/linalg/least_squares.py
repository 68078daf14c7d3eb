"""Least squares and pseudo-inverses by singular values; on a GPU in faster ways where the rank is full."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, NumericError, OutOfMemoryError, ShapeError
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
from magmadnn.graph.signature import by_signature
from magmadnn.graph.transforms.stacking import elementwise, last_axes
from magmadnn.memory import Kind, MemoryManager
from magmadnn.memory.dtypes import limits_of
from magmadnn.ops import abs as abs_
from magmadnn.ops import (
    cast,
    conj,
    equal,
    expand_dims,
    greater,
    less_equal,
    matmul,
    real,
    reciprocal,
    squeeze,
    where,
)
from magmadnn.ops import max as max_
from magmadnn.ops import min as min_
from magmadnn.ops import sum as sum_
from magmadnn.tensor import Tensor
from magmadnn.tensor.eager.operands import lies_on_gpu
from magmadnn.tensor.known_values import known
from magmadnn.tensor.on_gpu import on_gpu

from ._at_once import is_finite, least_squares_at_once
from ._matrices import (
    adjoint,
    by_ascent,
    computed,
    diagonal,
    in_single,
    refuse_unless_finite,
    transposed,
    with_diagonal,
)
from ._operands import operand, operands
from .factorisations.factorisation import cholesky
from .factorisations.triangular import solve_triangular
from .orthogonal import decomposed as reflections
from .singular_values import parts_of, singular, singular_now, svdvals, values_of
from .tall import FULL, LOW, UNKNOWN, all_hold, by_products, by_ranges


def _inverted(s: Any, rcond: float) -> Any:
    """1 / s, 0 for those that count as 0: rcond times the largest, or less."""
    kept = greater(s, max_(s, axis=-1, keepdims=True) * rcond) if s.shape[-1] else greater(s, 0)
    return where(kept, reciprocal(where(kept, s, 1)), 0)


def _known(a: Array, rcond: float, name: str) -> tuple[Array, Array, Array, Array]:
    """U, 1 / S, V^T and S of matrices that are known."""
    u, s, v = singular_now(a, True, False, name)
    kept = s > rcond * s.max(-1, keepdims=True, initial=0)
    with np.errstate(all="ignore"):
        inverse = np.where(kept, 1 / np.where(kept, s, 1), 0).astype(s.dtype)
    return u, inverse, v, s


def _shortest(u: Array, inverse: Array, v: Array, b: Array) -> Array:
    """V (1 / S) U^H b."""
    with np.errstate(all="ignore"):
        turned = np.swapaxes(u.conj(), -1, -2) @ b
        return np.asarray(np.swapaxes(v.conj(), -1, -2) @ (inverse[..., None] * turned))


# --- pinv -----------------------------------------------------------------------------------------


def _pinv_numpy(a: Array, rcond: float) -> Array:
    (a,) = computed(a)
    u, inverse, v, _ = _known(a, rcond, "pinv")
    with np.errstate(all="ignore"):
        scaled = np.swapaxes(v.conj(), -1, -2) * inverse[..., None, :]
        return np.asarray(scaled @ np.swapaxes(u.conj(), -1, -2))


def _pinv(a: Any, rcond: float) -> Any:
    u, s, v = parts_of(singular(a, vectors=True, full=False), a.shape)
    return matmul(adjoint(v) * expand_dims(_inverted(s, rcond), -2), adjoint(u))


def _pinv_rule(g: Any, y: Any, a: Any, rcond: float) -> Any:
    """Of P: -P^H g P^H, and where A has not full rank what it does not reach.

    As in Golub and Pereyra, The differentiation of pseudo-inverses, 1973, equation 4.12, for constant rank.
    """
    pt, gt = adjoint(y), adjoint(g)
    first = -matmul(matmul(pt, g), pt)
    outside = gt - matmul(a, matmul(y, gt))  # (I - A P) g^H
    second = matmul(outside, matmul(y, pt))
    third = matmul(matmul(pt, y), gt - matmul(matmul(gt, y), a))  # g^H (I - P A)
    return first + second + third


pseudo_inverse: Op = Op(
    name="_pinv",
    args=("a",),
    formula="V diag(1 / S) U^T of a",
    kind=OpKind.OTHER,
    decompose=in_single(_pinv),
    stacked=last_axes,
    shapes=by_signature("... m n -> ... n m"),
    dtypes=promote_floating,
    numpy=_pinv_numpy,
    vjp=by_ascent(_pinv_rule),
    reference=lambda a, rcond: np.linalg.pinv(a, rcond),
    samples=lambda draw: [Sample((draw(5, 3),), {"rcond": 1e-9})],
    attributes={"rcond": REQUIRED},
)


@checked_call
@on_gpu("a")
def pinv(a: Any, rcond: float | None = None) -> Any:
    """The pseudo-inverse [..., n, m] of A [..., m, n], by its singular values.

    Args:
        a: the matrices.
        rcond: singular values below rcond times the largest count as 0; eps times the larger of m and n where
            it is left out. (np.linalg.pinv takes 1e-15 then.)

    Raises:
        NumericError: if a matrix holds NaN or infinity.
    """
    if (at_once := known(a)) is not None and a.ndim > 1:
        limit = settled_rcond("pinv", a, rcond)
        return at_once.given(_pinv_numpy(at_once.arrays[0], limit))
    a = operand("pinv", "a", a, 2)
    return pseudo_inverse(a, rcond=settled_rcond("pinv", a, rcond))


def is_number(x: Any) -> bool:
    """Whether it is a real number, also one of NumPy's."""
    return isinstance(x, Real) and not isinstance(x, bool)


def settled_rcond(name: str, a: Any, rcond: float | None, argument: str = "rcond") -> float:
    """The limit below which singular values are 0."""
    if rcond is None:
        dtype = np.float64 if a.dtype.kind in "iub" else a.dtype
        sizes = [n for n in a.shape[-2:] if isinstance(n, int)]
        return float(limits_of(dtype).eps) * max(sizes, default=1)
    if not is_number(rcond) or not 0 <= rcond < 1:
        raise ArgumentError(f"{name}: {argument} must be a number from 0 to below 1, got {rcond!r}")
    return float(rcond)


# --- lstsq ----------------------------------------------------------------------------------------


class LstsqResult(NamedTuple):
    """Solutions, sums of squares of what they leave, ranks, and singular values of A."""

    x: Any
    residuals: Any
    rank: Any
    s: Any


def _numpy(a: Array, b: Array, rcond: float) -> Array:
    a, b = computed(a, b)
    refuse_unless_finite("lstsq", "a", a)
    refuse_unless_finite("lstsq", "b", b)
    return _shortest(*_known(a, rcond, "lstsq")[:3], b)


def _decomposed(a: Any, b: Any, rcond: float) -> Any:
    u, s, v = parts_of(singular(a, vectors=True, full=False), a.shape)
    return matmul(adjoint(v), expand_dims(_inverted(s, rcond), -1) * matmul(adjoint(u), b))


def _rule(g: Any, x: Any, a: Any, b: Any, rcond: float) -> tuple[Any, Any]:
    """That of P b, without a product of P with a matrix as large as A."""
    p = pseudo_inverse(a, rcond=rcond)
    db = matmul(adjoint(p), g)
    left = b - matmul(a, x)
    first = -matmul(db, adjoint(x))
    second = matmul(left, adjoint(matmul(p, db)))
    null = g - matmul(p, matmul(a, g))
    third = matmul(matmul(adjoint(p), x), adjoint(null))
    return first + second + third, db


def _samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 3), draw(5, 2)), {"rcond": 1e-9})
    yield Sample((draw(3, 4), draw(2, 3, 1)), {"rcond": 1e-9})


fitted: Op = Op(
    name="_lstsq",
    args=("a", "b"),
    formula="the shortest x with the least |a x - b|",
    kind=OpKind.OTHER,
    decompose=in_single(_decomposed),
    stacked=elementwise,
    shapes=by_signature("... m n, ... m k -> ... n k"),
    dtypes=promote_floating,
    numpy=_numpy,
    vjp=by_ascent(_rule),
    reference=lambda a, b, rcond: np.linalg.pinv(a, rcond) @ b,
    samples=_samples,
    attributes={"rcond": REQUIRED},
)


takes_complex(pseudo_inverse, fitted)


def _at_once(a: Array, b: Array, rcond: float | None) -> tuple[Any, ...] | None:
    """What `lstsq` gives of values that fit; None for what it has to look at itself."""
    right = b[:, None] if b.ndim == 1 else b
    if a.ndim < 2 or right.ndim < 2 or a.shape[-2] != right.shape[-2] or not (a.size and b.size):
        return None
    ones = all(1 in sizes or sizes[0] == sizes[1] for sizes in _leading(a, right))
    if not (ones and is_finite(a) and is_finite(b)):
        return None
    limit, of_a = settled_rcond("lstsq", a, rcond), a.real.dtype
    a, right = computed(a, right)
    found = least_squares_at_once(a, right, limit)
    if found is None:
        u, inverse, v, s = _known(a, limit, "lstsq")
        x = _shortest(u, inverse, v, right)
        rank: Any = np.count_nonzero(inverse, axis=-1)
    else:
        x, s, rank = found
    with np.errstate(all="ignore"):
        left = a @ x - right
        residuals = (left.real**2 + left.imag**2).sum(-2)
    if b.ndim == 1:
        x, residuals = x[..., 0], residuals[..., 0]
    return x, residuals, np.asarray(rank, np.int64), s.astype(of_a, copy=False)


def _leading(a: Array, b: Array) -> Iterable[tuple[int, int]]:
    """Sizes of the leading axes of two stacks, side by side from the last one on."""
    return zip(a.shape[-3::-1], b.shape[-3::-1], strict=False)


@checked_call
def lstsq(a: Any, b: Any, rcond: float | None = None) -> LstsqResult:
    """X with the least `|A X - B|`, of those the shortest, by the singular values of A; ranks may be lower.

    Eager calls on real Tensors of a GPU's memory, m >= n, take X from A^T A in float64 where bounds show that
    all matrices have full rank and are far from losing it. There `s` is computed when it is first read, from
    two matrices [n, n] that are kept until then, and that read raises what goes wrong. Where bounds show that
    the rank is lower, far from the next one, they take X from orthonormal rows of the same span as A's, and
    keep a copy of A for `s`. Others take X from QR where the singular values say that the rank is full, else
    from singular vectors, which takes ten times as long.

    Args:
        a: [..., m, n].
        b: [m], one right side; or [..., m, k].
        rcond: singular values below rcond times the largest count as 0; eps times the larger of m and n where
            it is left out.

    Returns:
        `x` [..., n] or [..., n, k]; `residuals` [...] or [..., k], sums of squares of A x - b, of any rank
        (NumPy leaves them out where it is not n); `rank` [...]; `s` [..., min(m, n)].

    Raises:
        NumericError: if an operand holds NaN or infinity.
        ShapeError: if the sizes do not fit.
    """
    if _are_tall_on_gpu(a, b) and (found := _of_gpu(a, b, rcond)) is not None:
        return found
    return _by_values(a, b, rcond)


@on_gpu("a", "b", finite=True)
def _by_values(a: Any, b: Any, rcond: float | None) -> LstsqResult:
    """By singular values, of any rank."""
    if (at_once := known(a, b)) is not None:
        found = _at_once(at_once.arrays[0], at_once.arrays[1], rcond)
        if found is not None:
            return LstsqResult(*map(at_once.given, found))
    a, b = operands("lstsq", ("a", a, 2), ("b", b, 1))
    limit = settled_rcond("lstsq", a, rcond)
    right = expand_dims(b, -1) if b.ndim == 1 else b
    x = fitted(a, right, rcond=limit)
    if isinstance(a, Tensor):
        s = svdvals(a)
    else:  # by the factors of which x is made
        s = parts_of(singular(a, vectors=True, full=False), a.shape)[1]
    return LstsqResult(*_with_rest(a, x, right, s, limit, b.ndim == 1))


def _with_rest(a: Any, x: Any, b: Any, s: Any, limit: float, is_vector: bool) -> tuple[Any, ...]:
    """What `lstsq` gives, of its x and s."""
    left = matmul(a, x) - b
    residuals = sum_(real(left * conj(left)), axis=-2)
    largest = max_(s, axis=-1, keepdims=True) if s.shape[-1] else 0.0
    rank = sum_(where(greater(s, largest * limit), np.int64(1), np.int64(0)), axis=-1)
    if is_vector:
        x, residuals = squeeze(x, axis=-1), squeeze(residuals, axis=-1)
    return x, residuals, rank, s


def _are_tall_on_gpu(a: Any, b: Any) -> bool:
    """Whether they lie on a GPU: real matrices with m >= n, and right sides of their dtype."""
    if type(a) is not Tensor or type(b) is not Tensor or not lies_on_gpu(a.memory):
        return False
    if a.dtype.char not in "fd" or b.dtype != a.dtype or a.ndim < 2 or not (a.size and b.size):
        return False
    return bool(a.shape[-2] >= a.shape[-1])


# --- on a GPU, without the caller's wait for singular values --------------------------------------


def _of_gpu(a: Tensor, b: Tensor, rcond: float | None) -> LstsqResult | None:
    """By products or by QR; None where singular vectors are needed, or something is wrong.

    The way that answered last for such sizes is tried first; each proves that others do not answer.
    """
    sizes = a.shape, b.shape, a.dtype.char
    was_low = sizes in _LAST_LOW
    if was_low and (low := _of_low_rank(a, b, rcond)) is not None:
        return low
    _LAST_LOW.discard(sizes)
    rank_is = LOW
    with suppress(NumericError, ShapeError, ArgumentError):  # which `_by_values` raises too
        try:
            x, residuals, rank, lower, second, known_of_rank = by_products(
                a, b, settled_rcond("lstsq", a, rcond)
            )
            rank_is = known_of_rank.item()
        except OutOfMemoryError:  # the other ways need less
            rank_is = UNKNOWN
        if rank_is == FULL:
            return LstsqResult(x, residuals, rank, _values_later(lower, second, a.dtype))
        if rank_is == UNKNOWN:
            *found, is_full = _by_reflections(a, b, rcond)
            return LstsqResult(*found) if is_full.item() else None
    low = None if was_low else _of_low_rank(a, b, rcond)
    if low is not None and len(_LAST_LOW) < _MOST_SIZES:
        _LAST_LOW.add(sizes)
    return low


def _of_low_rank(a: Tensor, b: Tensor, rcond: float | None) -> LstsqResult | None:
    """By ranges, where they prove the rank."""
    n = a.shape[-1]
    if not 1 < n <= _MOST_MIXED:
        return None
    with suppress(NumericError, ShapeError, ArgumentError, OutOfMemoryError):
        limit = settled_rcond("lstsq", a, rcond)
        x, residuals, rank, kept, is_proved = by_ranges(a, b, limit)
        if is_proved.item():
            return LstsqResult(
                x, residuals, rank, _late((*rank.shape, n), a.dtype, kept, partial(svdvals, kept))
            )
    return None


_MOST_MIXED = 2048  # columns of matrices of low rank that ranges are tried for
_MOST_SIZES = 1000
_LAST_LOW: set[tuple[object, ...]] = (
    set()
)  # sizes of operands of which the last ones had a low rank


def _values_later(lower: Tensor, second: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """Singular values of L Q^T, of float64, which are computed when they are first read."""
    return _late(
        lower.shape[:-1], dtype, lower, partial(_values_of_factors, lower, second, dtype.name)
    )


def _late(
    shape: tuple[int, ...], dtype: np.dtype[Any], of: Tensor, make: Callable[[], Tensor]
) -> Tensor:
    """What `make` gives of a Tensor on a device, when it is first read; at once, where it lies elsewhere."""
    if of.kind is not Kind.DEVICE:
        return make()
    memory = MemoryManager.late(math.prod(shape), dtype, of.device, lambda: make().memory)
    return Tensor.over(memory, memory.frame().reshape(shape))


@on_gpu("lower", "second")
def _values_of_factors(lower: Any, second: Any, dtype: str) -> Any:
    """The same at once, of L and Q^T Q.

    A = (Q C^-T) (C^T L^T) with C C^T = Q^T Q; the first factor has orthonormal columns.
    """
    triangle = matmul(transposed(cholesky(second)), transposed(lower))
    return cast(values_of("lstsq", "a", triangle), dtype)


@on_gpu("a", "b")
def _by_reflections(a: Any, b: Any, rcond: float | None) -> tuple[Any, ...]:
    """What `lstsq` gives where all matrices have full rank, by QR, and whether they do; else x is undefined.

    The singular values are those of R, which are those of A; singular vectors are not computed. It says no,
    too, where B is not finite, since `_by_values` says where.
    """
    if isinstance(a, Tensor):  # the device cannot do it: `_by_values` says what is wrong
        raise NumericError("lstsq: QR is for the device alone")
    limit, m = settled_rcond("lstsq", a, rcond), a.shape[-2]
    right = expand_dims(b, -1) if b.ndim == 1 else b
    both = reflections(a, full=False)
    q, lower = both[..., :m, :], both[..., m:, :]
    s = values_of("lstsq", "a", lower)
    zeros = equal(diagonal(lower), 0)  # a triangle with a zero on its diagonal has no inverse
    safe = lower + with_diagonal(where(zeros, np.ones((), a.dtype), 0))
    x = solve_triangular(safe, matmul(adjoint(q), right), lower=True, transpose=True)
    is_full = min_(all_hold(greater(s[..., -1], s[..., 0] * limit)))
    ends = min_(all_hold(less_equal(abs_(right), limits_of(a.dtype).max)))
    return *_with_rest(a, x, right, s, limit, b.ndim == 1), is_full * ends
