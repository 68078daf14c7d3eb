"""Norms, conditions, ranks and powers of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.op import Array
from magmadnn.graph.signature import axes_text, is_integer, shape_text
from magmadnn.memory.dtypes import is_complex
from magmadnn.ops import abs as abs_
from magmadnn.ops import (
    cast,
    equal,
    expand_dims,
    greater,
    matmul,
    not_equal,
    power,
    reshape,
    sqrt,
    transpose,
    where,
)
from magmadnn.ops import max as max_
from magmadnn.ops import min as min_
from magmadnn.ops import sum as sum_
from magmadnn.tensor import Tensor, asarray
from magmadnn.tensor.known_values import known
from magmadnn.tensor.on_gpu import on_gpu

from ._at_once import is_finite
from ._matrices import identity, refuse_unless_finite
from ._operands import operand, operands, refuse_unless_square, truth
from .equations import inverse
from .least_squares import is_number, settled_rcond
from .singular_values import singular_now, values_of

_INF = float("inf")


# --- sizes ----------------------------------------------------------------------------------------


@checked_call
@on_gpu("x")
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Norms of vectors or matrices, as np.linalg.norm's.

    Args:
        x: any shape.
        ord: None, the root of the sum of squares; of vectors inf, -inf, 0 or a number p, of matrices "fro",
            "nuc", inf, -inf, 1, -1, 2, -2.
        axis: of vectors an integer, of matrices a pair; all of x where it is left out, which has then
            one axis or two unless ord is None.
        keepdims: whether these axes stay, with size 1.

    Returns:
        Of the dtype of x, float64 for integers. The largest of no numbers is 0, as NumPy's. Where a norm has
        no gradient, at 0, it gets 0.

    Raises:
        ArgumentError: if there is no such ord or axis.
    """
    keepdims = truth("norm", "keepdims", keepdims)
    ord = _named("norm", "ord", ord)
    if (at_once := known(x)) is not None:
        found = _norm_at_once(at_once.arrays[0], ord, axis, keepdims)
        if found is not None:
            return at_once.given(found)
    x = operand("norm", "x", x)
    dtype = np.dtype(np.float64) if x.dtype.kind in "iub" else x.dtype
    if is_complex(dtype):
        return _norm(x, ord, axis, keepdims)
    # squares of integers and of half precision overflow
    wide = cast(x, dtype if dtype.itemsize > 2 else np.dtype(np.float32))
    return cast(_norm(wide, ord, axis, keepdims), dtype)


def _named(name: str, argument: str, value: Any) -> int | float | str | None:
    """Which norm is meant: a number of Python's, a name, or None.

    Raises:
        ArgumentError: if it is something else.
    """
    value = value.item() if isinstance(value, np.number) else value
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ArgumentError(
            f"{name}: {argument} must be a number, a name of a norm or None, got {value!r}"
        )
    return value


def _norm_at_once(x: Array, ord: Any, axis: Any, keepdims: bool) -> Any:
    """The same by NumPy; None for what `norm` has to look at itself."""
    if axis is not None or ord is not None:
        axes = _axes(x, ord, tuple(range(x.ndim)) if axis is None else axis)
        if len(axes) == 2 and (ord is None or isinstance(ord, str) or ord in (1, -1, _INF, -_INF)):
            if ord not in (None, "fro", 1, -1, _INF, -_INF):
                return None
        elif len(axes) != 1 or not (ord is None or isinstance(ord, (int, float))):
            return None
    with np.errstate(all="ignore"):
        return np.linalg.norm(x, ord, axis if axis is None or is_integer(axis) else axes, keepdims)


def _norm(x: Any, ord: Any, axis: Any, keepdims: bool) -> Any:
    if axis is None and ord is None:
        found = _root(sum_(abs_(x) * abs_(x)))
        return reshape(found, (1,) * x.ndim) if keepdims else found
    if axis is None:
        axis = tuple(range(x.ndim))
    axes = _axes(x, ord, axis)
    if len(axes) == 1:
        return _vector_norm(x, 2 if ord is None else ord, axes[0], keepdims)
    if len(axes) == 2:
        found = _matrix_norm(_with_last(x, axes), "fro" if ord is None else ord)
        if keepdims:
            for one in sorted(a % x.ndim for a in axes):
                found = expand_dims(found, one)
        return found
    raise ArgumentError(
        f"norm: x has {axes_text(x.ndim)}; of vectors give one as axis, of matrices a pair, got {axis!r}"
    )


def _axes(x: Any, ord: Any, axis: Any) -> tuple[int, ...]:
    """The axes of vectors or matrices, looked at.

    Raises:
        ArgumentError: if one is no axis of x, or stands twice.
        ShapeError: if there is nothing to take a minimum of.
    """
    axes = (axis,) if is_integer(axis) or not isinstance(axis, tuple | list) else tuple(axis)
    if not all(is_integer(one) and -x.ndim <= one < x.ndim for one in axes):
        raise ArgumentError(f"norm: x has {axes_text(x.ndim)}, and axis is {axis!r}")
    if len({one % x.ndim for one in axes}) < len(axes):
        raise ArgumentError(f"norm: axis names one axis twice: {axis!r}")
    if isinstance(ord, (int, float)) and ord < 0 and 0 in [x.shape[one] for one in axes]:
        raise ShapeError(f"norm: x of shape {shape_text(x.shape)} has no elements for ord={ord!r}")
    return axes


def _with_last(x: Any, axes: tuple[int, ...]) -> Any:
    """`x` with two axes moved to its end."""
    last = [axis % x.ndim for axis in axes]
    order = (*(k for k in range(x.ndim) if k not in last), *last)
    return x if order == tuple(range(x.ndim)) else transpose(x, order)


def _vector_norm(x: Any, ord: Any, axis: Any, keepdims: bool) -> Any:
    options = {"axis": axis, "keepdims": keepdims}
    size = abs_(x)
    if ord == _INF or ord == -_INF:
        return (_largest if ord > 0 else min_)(size, **options)
    if ord == 0:
        return sum_(where(not_equal(x, 0), np.ones((), size.dtype), 0), **options)
    if ord == 1:
        return sum_(size, **options)
    if ord == 2:
        return _root(sum_(size * size, **options))
    if isinstance(ord, (int, float)) and not isinstance(ord, bool):
        none = equal(size, 0)
        powers = where(none, 0.0 if ord > 0 else _INF, power(where(none, 1, size), float(ord)))
        return _root(sum_(powers, **options), ord)
    raise ArgumentError(f"norm: ord of a vector must be a number, inf or -inf, got {ord!r}")


def _root(total: Any, ord: float = 2) -> Any:
    """A root of a sum of powers, whose gradient is 0 where the sum is: one of those that lie between."""
    none = equal(total, 0)
    inner = where(none, 1, total)
    return where(none, 0 if ord > 0 else _INF, sqrt(inner) if ord == 2 else power(inner, 1.0 / ord))


def _largest(sizes: Any, axis: int, keepdims: bool = False) -> Any:
    """The largest of numbers that are not negative; 0 where there is none."""
    none = sizes.shape[axis] == 0
    return (sum_ if none else max_)(sizes, axis=axis, keepdims=keepdims)


def _matrix_norm(x: Any, ord: Any) -> Any:
    if ord == "fro":
        return _root(sum_(abs_(x) * abs_(x), axis=(-2, -1)))
    if ord == "nuc":
        return sum_(values_of("norm", "x", x), axis=-1)
    if ord in (2, -2):
        return (_largest if ord > 0 else min_)(values_of("norm", "x", x), axis=-1)
    if ord in (1, -1, _INF, -_INF):
        sums = sum_(abs_(x), axis=-2 if abs(ord) == 1 else -1)
        return (_largest if ord > 0 else min_)(sums, axis=-1)
    raise ArgumentError(
        f'norm: ord of a matrix must be "fro", "nuc", 1, -1, 2, -2, inf or -inf, got {ord!r}'
    )


@checked_call
@on_gpu("x")
def cond(x: Any, p: Any = None) -> Any:
    """How much a small change of A [..., m, n] may change solutions: `|A| |A^-1|`, in the norm p (2 without).

    In the norms 2 and -2 it is infinite where a singular value that divides is 0, as np.linalg.cond's.

    Raises:
        NumericError: if a matrix holds NaN or infinity, or is singular and p is not 2 or -2.
        ShapeError: if it has no elements, or is not square and p is not 2 or -2.
        ArgumentError: if there is no norm p.
    """
    if p is None and (at_once := known(x)) is not None and x.ndim > 1 and x.size:
        s = singular_now(at_once.arrays[0], False, False, "cond", "x")[0]
        with np.errstate(all="ignore"):
            found = np.where(s[..., -1] == 0, _INF, s[..., 0] / s[..., -1]).astype(s.dtype)
        return at_once.given(found)
    x, p = operand("cond", "x", x, 2), _named("cond", "p", p)
    if 0 in x.shape[-2:]:
        raise ShapeError(
            f"cond: x of shape {shape_text(x.shape)} holds empty matrices; they have none"
        )
    if p is None or p in (2, -2):
        s = values_of("cond", "x", x)
        above, below = (s[..., -1], s[..., 0]) if p == -2 else (s[..., 0], s[..., -1])
        none = equal(below, 0)
        return where(none, _INF, above / where(none, 1, below))
    if p not in (1, -1, _INF, -_INF, "fro", "nuc"):
        raise ArgumentError(
            f'cond: p must be None, "fro", "nuc", 1, -1, 2, -2, inf or -inf, got {p!r}'
        )
    refuse_unless_square("cond", "x", x)
    if isinstance(x, Tensor):
        if not is_finite(values := x.read()):
            refuse_unless_finite("cond", "x", values)
        x = asarray(_near_1(values)) if values.dtype.char in "fdFD" else x
    return norm(x, p, axis=(-2, -1)) * norm(inverse(x, of="cond"), p, axis=(-2, -1))


def _near_1(x: Array) -> Array:
    """Matrices over powers of 2 near their largest numbers: conditions are the same, and do not overflow."""
    largest = np.abs(x).max((-2, -1), keepdims=True)
    return np.asarray(x / np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1)))))


@checked_call
@on_gpu("a")
def matrix_rank(a: Any, tol: float | None = None, *, rtol: float | None = None) -> Any:
    """How many singular values of A [..., m, n] are above a limit.

    Args:
        a: the matrices.
        tol: the limit.
        rtol: the limit over the largest singular value, where tol is left out; eps max(m, n) without both.

    Raises:
        NumericError: if a matrix holds NaN or infinity.
        ArgumentError: if a limit is no number from 0, or both are given.
    """
    a = operand("matrix_rank", "a", a, 2)
    if tol is not None:
        if rtol is not None:
            raise ArgumentError("matrix_rank: give tol or rtol, not both")
        if not is_number(tol) or not tol >= 0:
            raise ArgumentError(f"matrix_rank: tol must be a number from 0, got {tol!r}")
    relative = settled_rcond("matrix_rank", a, rtol, "rtol")
    if (at_once := known(a)) is not None and a.size:
        values = singular_now(at_once.arrays[0], False, False, "matrix_rank")[0]
        least = values[..., :1] * relative if tol is None else float(tol)
        return at_once.given(np.count_nonzero(values > least, axis=-1))
    s = values_of("matrix_rank", "a", a)
    largest = max_(s, axis=-1, keepdims=True) if s.shape[-1] else 0.0
    limit = largest * relative if tol is None else float(tol)
    return sum_(where(greater(s, limit), np.int64(1), np.int64(0)), axis=-1)


# --- products -------------------------------------------------------------------------------------


@checked_call
@on_gpu("a")
def matrix_power(a: Any, n: int) -> Any:
    """A [..., k, k] times itself, n factors, by squares; of the inverse for n below 0, I for 0.

    Raises:
        ArgumentError: if n is not an integer.
        ShapeError: if A is not square.
        NumericError: if n is below 0 and a matrix is singular.
    """
    if not is_integer(n):
        raise ArgumentError(f"matrix_power: n must be an integer, got {n!r}")
    a = operand("matrix_power", "a", a, 2)
    refuse_unless_square("matrix_power", "a", a)
    if n < 0:
        return matrix_power(inverse(a, of="matrix_power"), -n)
    if n == 0:
        return where(np.False_, a, identity(a.shape[-1], a.dtype))  # whatever a holds
    if n == 1 and isinstance(a, Tensor):
        return a.copy()  # results have memory of their own
    found, square = None, a
    while n:
        if n & 1:
            found = square if found is None else matmul(found, square)
        n >>= 1
        if n:
            square = matmul(square, square)
    return found


@checked_call
@on_gpu("a", "b")
def kron(a: Any, b: Any) -> Any:
    """Kronecker's product: b times each element of a, [..., m p, n q] of [..., m, n] and [..., p, q].

    Leading axes broadcast; for matrices it is np.kron's.
    """
    a, b = operands("kron", ("a", a, 2), ("b", b, 2))
    (m, n), (p, q) = a.shape[-2:], b.shape[-2:]
    wide = expand_dims(expand_dims(a, -1), -3) * expand_dims(expand_dims(b, -2), -4)
    return reshape(wide, (*wide.shape[:-4], m * p, n * q))
