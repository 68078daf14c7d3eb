"""Factors L and U as results of their own, and solutions by factors that are given."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.graph.signature import shape_text
from magmadnn.linalg._at_once import (
    cholesky_solved_at_once,
    factors_at_once,
    is_finite,
    substituted_at_once,
)
from magmadnn.linalg._matrices import (
    computed,
    places_of,
    refuse_unless_finite,
    transposed,
    triangle,
)
from magmadnn.linalg._operands import operand, operands, refuse_unless_square, truth
from magmadnn.memory import Kind
from magmadnn.memory.dtypes import is_complex, is_floating
from magmadnn.ops import (
    broadcast_to,
    cast,
    concat,
    conj,
    expand_dims,
    greater,
    real,
    squeeze,
    where,
)
from magmadnn.tensor import Tensor, asarray
from magmadnn.tensor.known_values import known
from magmadnn.tensor.on_gpu import on_gpu

from .elimination import (
    by_lapack,
    eliminated,
    lu_factored,
    lu_solved,
    order_of,
    packed,
    scipy_lapack,
)
from .triangular import solve_triangular


class LUFactors(NamedTuple):
    """Factors in one matrix [..., n, n], L below the diagonal; which row each was exchanged with [..., n]."""

    lu: Any
    piv: Any


class LUResult(NamedTuple):
    """A = P L U: exchanges of rows, a unit lower and an upper triangle."""

    P: Any
    L: Any
    U: Any


def _looked_at(name: str, a: Any) -> Node | Array:
    """A node of a program on a GPU, else the values of a Tensor or an array, as they are computed with.

    Raises:
        ArgumentError: for an Operation, whose factors have no gradients.
    """
    a = operand(name, "a", a, 2)
    if type(a) is Node:
        refuse_unless_square(name, "a", a)
        return a
    if not isinstance(a, Tensor):
        raise ArgumentError(
            f"{name}: takes arrays and Tensors, not Operations; solve, inv and det share factors"
        )
    (values,) = computed(a.numpy())
    if not is_finite(values):
        refuse_unless_finite(name, "a", values)
    return values


def _given(a: Any, *found: Array) -> list[Tensor]:
    """As Tensors, of half precision rounded once."""
    dtype = getattr(a, "dtype", None)
    halves = isinstance(dtype, np.dtype) and _is_half(dtype)
    return [asarray(x.astype(dtype) if halves and x.dtype.kind == "f" else x) for x in found]


def _is_half(dtype: np.dtype[Any]) -> bool:
    return bool(is_floating(dtype) and dtype.itemsize == 2)


def _in_library_dtype(a: Node) -> Any:
    """A node in the dtype that its factors are computed in."""
    if a.dtype.kind in "iub":
        return cast(a, "float64")
    return cast(a, "float32") if _is_half(a.dtype) else a


@checked_call
@on_gpu("a", finite=True)
def lu_factor(a: Any) -> LUFactors:
    """L and U of A [..., n, n] with exchanged rows, for `lu_solve`; a 0 in U is no error here.

    On a GPU by cuSOLVER, or cuBLAS for many small matrices.

    Raises:
        NumericError: if a matrix holds NaN or infinity.
        ArgumentError: for an Operation.
    """
    values = _looked_at("lu_factor", a)
    if isinstance(values, Node):
        both = lu_factored(_in_library_dtype(values))
        factors = cast(transposed(both[..., 1:, :]), _dtype_of(values))
        return LUFactors(factors, cast(real(both[..., 0, :]), "int64"))
    return LUFactors(*_given(a, *_factors(values)))


def _dtype_of(a: Node) -> np.dtype[Any]:
    return np.dtype(np.float64) if a.dtype.kind in "iub" else a.dtype


def _factors(values: Array) -> tuple[Array, Array]:
    if (found := factors_at_once(values)) is not None:
        return found
    by_library = values.size and scipy_lapack()
    return by_lapack(values) if by_library else eliminated(values, min(values.shape[-2:]))


@checked_call
@on_gpu("a", finite=True)
def lu(a: Any) -> LUResult:
    """A = P L U of A [..., m, n]: P [..., m, m], L [..., m, k] and U [..., k, n], k = min(m, n).

    On a GPU by cuSOLVER, or cuBLAS, where m and n are equal, else by the host.

    Raises:
        NumericError: if a matrix holds NaN or infinity.
        ArgumentError: for an Operation.
    """
    values = _looked_at("lu", a)
    if isinstance(values, Node):
        return _triangles(values)
    m, n = values.shape[-2:]
    k = min(m, n)
    factors, pivots = _factors(values)
    order = order_of(pivots, m)
    exchanges = np.zeros((*values.shape[:-2], m, m), values.real.dtype)
    np.put_along_axis(
        exchanges, order[..., None, :], values.real.dtype.type(1), -2
    )  # P[order[i], i] = 1
    lower = np.tril(factors[..., :k], -1) + np.eye(m, k, dtype=values.dtype)
    return LUResult(*_given(a, exchanges, lower, np.triu(factors[..., :k, :n])))


def _triangles(a: Node) -> LUResult:
    """P, L and U as nodes of a node.

    P^T is the solution of equations with factors I and I, the exchanges of A, and right sides I.
    """
    both, n = lu_factored(_in_library_dtype(a)), a.shape[-1]
    factors, one = transposed(both[..., 1:, :]), np.eye(n, dtype=both.dtype)
    ones = broadcast_to(one, (*both.shape[:-2], n, n))
    exchanges = lu_solved(concat([both[..., :1, :], ones], axis=-2), one, transpose=False, of="lu")
    rows, columns = places_of(factors)
    lower = where(greater(rows, columns), factors, one)
    dtype = _dtype_of(a)
    return LUResult(
        cast(real(exchanges), dtype.type(0).real.dtype if is_complex(dtype) else dtype),
        cast(lower, dtype),
        cast(triangle(factors, lower=False), dtype),
    )


@checked_call
def lu_solve(lu_and_piv: Any, b: Any, trans: int = 0) -> Any:
    """X with A X = B, A^T X = B with trans=1, or A^H X = B with trans=2, by what `lu_factor` gave.

    Args:
        lu_and_piv: the pair.
        b: [n], or [..., n, k].
        trans: 0, 1 or 2.

    Raises:
        NumericError: if a matrix is singular, naming it and the pivot, or an operand holds NaN or infinity.
        ShapeError: if the sizes do not fit.
        ArgumentError: if the first argument is no pair, or a number of `piv` is no row.
    """
    if not isinstance(lu_and_piv, tuple) or len(lu_and_piv) != 2:
        raise ArgumentError("lu_solve: the first argument must be the pair that lu_factor gives")
    if trans not in (0, 1, 2):
        raise ArgumentError(f"lu_solve: trans must be 0, 1 or 2, got {trans!r}")
    if (found := _substituted_now(*lu_and_piv, b, int(trans))) is not None:
        return found
    lu, piv = (
        operand("lu_solve", "lu_and_piv", x, axes)
        for x, axes in zip(lu_and_piv, (2, 1), strict=True)
    )
    if not (isinstance(lu, Tensor) and isinstance(piv, Tensor)):
        raise ArgumentError("lu_solve: the factors must be arrays or Tensors, not Operations")
    refuse_unless_square("lu_solve", "lu", lu)
    return _solved(lu, _rows_of(lu, piv), operand("lu_solve", "b", b, 1), int(trans))


def _substituted_now(lu: Any, piv: Any, b: Any, way: int) -> Tensor | None:
    """The solutions of one matrix on the host; None for what `lu_solve` has to look at itself."""
    at_once = known(lu, b)
    if at_once is None or type(piv) not in (Tensor, np.ndarray) or piv.dtype.kind not in "iu":
        return None
    if type(piv) is Tensor and piv.kind not in (Kind.HOST, Kind.MANAGED):
        return None
    exchanges = piv if type(piv) is np.ndarray else piv.read()
    if exchanges.ndim != 1 or not exchanges.size or exchanges.min() < 0:
        return None
    if exchanges.max() >= len(exchanges):
        return None
    x = substituted_at_once(at_once.arrays[0], exchanges, at_once.arrays[1], way)
    return None if x is None else at_once.given(x)


def _rows_of(lu: Tensor, piv: Tensor) -> Array:
    """Exchanges that LAPACK may read: it looks at no number of one."""
    exchanges, n = piv.numpy(), lu.shape[-1]
    if exchanges.shape != lu.shape[:-1] or exchanges.dtype.kind not in "iu":
        raise ShapeError(
            f"lu_solve: piv must be integers {shape_text(lu.shape[:-1])}, got {exchanges.dtype} "
            f"{shape_text(exchanges.shape)}"
        )
    if exchanges.size and not (exchanges.min() >= 0 and exchanges.max() < n):
        raise ArgumentError(
            f"lu_solve: piv must hold rows from 0 to {n - 1}, got {exchanges.min()} to {exchanges.max()}; "
            "they are counted from 0, as by lu_factor"
        )
    return exchanges


@on_gpu("lu", "piv", "b", finite=True)
def _solved(lu: Any, piv: Any, b: Any, trans: int) -> Any:
    """The solutions, whose right sides may be nodes; with nodes of factors where those lie on a GPU."""
    if b.shape[0 if b.ndim == 1 else -2] != lu.shape[-1]:
        raise ShapeError(
            f"lu_solve: b must have {lu.shape[-1]} rows, as the factors, got shape {shape_text(b.shape)}"
        )
    right = expand_dims(b, -1) if b.ndim == 1 else b
    right = conj(right) if trans == 2 else right
    turned = lu_solved(
        _together(lu, piv), right.swapaxes(-1, -2), transpose=bool(trans), of="lu_solve"
    )
    x = turned.swapaxes(-1, -2)
    x = conj(x) if trans == 2 else x
    x = squeeze(x, axis=-1) if b.ndim == 1 else x
    return cast(x, lu.dtype) if _is_half(lu.dtype) and b.dtype == lu.dtype else x


def _together(lu: Any, piv: Any) -> Any:
    """What `lu_factored` gives; in single precision where the factors are in half."""
    if isinstance(lu, Node):
        factors = _in_library_dtype(lu)
        return concat([cast(expand_dims(piv, -2), factors.dtype), transposed(factors)], axis=-2)
    (factors,) = computed(lu.numpy())
    if not is_finite(factors):
        refuse_unless_finite("lu_solve", "lu", factors)
    return packed(factors, np.asarray(piv))


@checked_call
@on_gpu("c_and_lower", "b", finite=True)
def cho_solve(c_and_lower: Any, b: Any) -> Any:
    """X with A X = B, by a Cholesky factor of A: with A = L L^H, or U^H U.

    Args:
        c_and_lower: the factor [..., n, n] and whether it is a lower triangle: (L, True).
        b: [n], or [..., n, k].

    Raises:
        NumericError: if an element of the factor's diagonal is 0, or a known operand holds NaN or infinity.
        ShapeError: if the sizes do not fit.
        ArgumentError: if the first argument is no pair.
    """
    if not isinstance(c_and_lower, tuple) or len(c_and_lower) != 2:
        raise ArgumentError(
            "cho_solve: the first argument must be a factor and True or False: (L, True)"
        )
    factor, lower = c_and_lower
    if (at_once := known(factor, b)) is not None and isinstance(lower, bool):
        triangle_of, right = at_once.arrays
        found = cholesky_solved_at_once(triangle_of, right, lower)
        if found is not None:
            return at_once.given(found)
    factor, b = operands("cho_solve", ("c", factor, 2), ("b", b, 1))
    refuse_unless_square("cho_solve", "c", factor)
    right = expand_dims(b, -1) if b.ndim == 1 else b
    lower = truth("cho_solve", "the second of the pair", lower)
    if right.shape[-2] != factor.shape[-1]:
        raise ShapeError(
            f"cho_solve: b must have {factor.shape[-1]} rows, as c, got shape {shape_text(b.shape)}"
        )
    for argument, one in (("c", factor), ("b", right)):
        if isinstance(one, Tensor) and not is_finite(values := one.read()):
            kept = values if argument == "b" else np.tril(values) if lower else np.triu(values)
            refuse_unless_finite("cho_solve", argument, kept)
    # with L L^H: L^-H is the conjugate of L^-T of conjugates; with U^H U likewise
    if lower:
        half = solve_triangular(factor, right, lower=True)
        x = conj(solve_triangular(factor, conj(half), lower=True, transpose=True))
    else:
        half = conj(solve_triangular(factor, conj(right), lower=False, transpose=True))
        x = solve_triangular(factor, half, lower=False)
    return squeeze(x, axis=-1) if b.ndim == 1 else x
