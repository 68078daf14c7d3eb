"""Factors L and U of matrices whose rows are exchanged, and solutions by them: parts of other ops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.errors import NumericError
from magmadnn.graph.computed_by import LibraryCall
from magmadnn.graph.op import (
    REQUIRED,
    Array,
    Draw,
    NoGradient,
    Op,
    OpKind,
    Sample,
    promote_floating,
    takes_complex,
)
from magmadnn.graph.signature import Attributes, OpWords, by_signature
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import elementwise, last_axes
from magmadnn.linalg._elsewhere import factored, lies_elsewhere, substituted
from magmadnn.linalg._matrices import as_stacks, computed, matrix_name, refuse_unless_finite

_LARGE = 32  # rows from which on a call for each matrix is faster
_WHY = "what is made of factors has gradients of its own"


def _shapes(words: OpWords, specs: Any, attributes: Attributes) -> Any:
    """[..., n + 1, n]."""
    *leading, rows, columns = by_signature("... n n -> ... n n")(words, specs, attributes)
    return (*leading, rows + 1, columns)


def _numpy(a: Array) -> Array:
    """By LAPACK where SciPy is installed, else column by column."""
    (a,) = computed(a)
    refuse_unless_finite("lu_factor", "a", a)
    if lies_elsewhere(a) and a.size:
        return factored(a)
    if not (a.size and scipy_lapack()):
        return packed(*eliminated(a))
    function = scipy_lapack().get_lapack_funcs(("getrf",), (a,))[0]
    found = np.empty((*a.shape[:-2], a.shape[-1] + 1, a.shape[-1]), a.dtype)
    for index in np.ndindex(a.shape[:-2]):
        factors, found[(*index, 0)], _ = function(a[index])
        found[(*index, slice(1, None))] = factors.T
    return found


def scipy_lapack() -> Any:
    """SciPy's module of LAPACK; None where it is not installed."""
    try:
        lapack = import_module("scipy.linalg.lapack")
    except ImportError:
        return None
    return lapack


def by_lapack(a: Array) -> tuple[Array, Array]:
    """What `eliminated` gives, matrix by matrix."""
    function = scipy_lapack().get_lapack_funcs(("getrf",), (a,))[0]
    if a.ndim == 2:
        one, exchanges, _ = function(a)
        return one, exchanges.astype(np.int64)
    factors = np.empty(a.shape, a.dtype)
    pivots = np.empty((*a.shape[:-2], min(a.shape[-2:])), np.int64)
    for index in np.ndindex(a.shape[:-2]):
        factors[index], pivots[index], _ = function(a[index])
    return factors, pivots


def eliminated(a: Array, columns: int | None = None) -> tuple[Array, Array]:
    """Factors in one matrix, and with which row each was exchanged; of all matrices side by side."""
    a = a.copy()
    n = a.shape[-1] if columns is None else columns
    pivots = np.zeros((*a.shape[:-2], n), np.int64)
    for k in range(n):
        pivots[..., k] = k + np.abs(a[..., k:, k]).argmax(-1)
        chosen = pivots[..., k, None, None]
        rows = np.take_along_axis(a, chosen, -2)
        first = a[..., k : k + 1, :].copy()
        np.put_along_axis(a, np.broadcast_to(chosen, first.shape), first, -2)
        a[..., k : k + 1, :] = rows
        pivot = np.where(a[..., k, k] == 0, 1, a[..., k, k])[..., None]
        if a.dtype.kind == "c":  # NumPy's division overflows where a pivot is denormal
            size = np.abs(pivot)
            a[..., k + 1 :, k] = _over(a[..., k + 1 :, k], size) * _over(pivot.conj(), size)
        else:
            a[..., k + 1 :, k] /= pivot
        a[..., k + 1 :, k + 1 :] -= a[..., k + 1 :, k, None] * a[..., k, None, k + 1 :]
    return a, pivots


def _over(x: Array, size: Array) -> Array:
    """Complex numbers over real ones, which NumPy would take for complex."""
    made = np.empty_like(x)
    made.real, made.imag = x.real / size, x.imag / size
    return made


def packed(factors: Array, pivots: Array) -> Array:
    """What `lu_factored` gives."""
    turned = np.swapaxes(factors, -1, -2)
    return np.concatenate([pivots[..., None, :].astype(factors.dtype), turned], -2)


def _reference(a: Array) -> Array:
    return packed(*eliminated(a))


def square_samples(draw: Draw) -> Iterable[Sample]:
    """Square matrices and stacks of them whose rows are exchanged."""
    for shape in ((5,), (1,), (2, 3), (2, 1, 3)):
        yield Sample((exchanging(draw, *shape),))


def exchanging(draw: Draw, *shape: int) -> Array:
    """Matrices with large elements beside the diagonal, so that rows are exchanged."""
    *leading, n = shape
    large = np.roll(2.5 * np.eye(n), 1, 0)
    return np.asarray(draw(*leading, n, n, low=-0.6, high=0.6) + large)


lu_factored: Op = Op(
    name="_lu_factored",
    args=("a",),
    formula="exchanges of rows as numbers in a row, below them L and U of a, turned",
    kind=OpKind.LIBRARY,
    library=LibraryCall("getrf"),
    rewrites=(as_stacks,),
    stacked=last_axes,
    shapes=_shapes,
    dtypes=promote_floating,
    numpy=_numpy,
    vjp=NoGradient(why=_WHY),
    reference=_reference,
    samples=square_samples,
)


# --- solutions ------------------------------------------------------------------------------------


def _solved_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Any:
    *leading, _, n = specs[0].shape
    square = Spec((*leading, n, n), specs[0].dtype)
    return by_signature("... n n, ... k n -> ... k n")(words, [square, specs[1]], attributes)


def _solved_numpy(factors: Array, b: Array, transpose: bool, of: str, refuses: bool) -> Array:
    """Substitution by LAPACK's getrs; without it, or for many small ones, by equations with each triangle.

    Raises:
        NumericError: for a 0 in U, and if it `refuses` one, for a right side that is not finite.
    """
    factors, b = computed(factors, b)
    if refuses:
        refuse_unless_finite(of, "b", np.swapaxes(b, -1, -2))
    exchanges, both = (
        factors[..., 0, :].real.astype(np.int64),
        np.swapaxes(factors[..., 1:, :], -1, -2),
    )
    refuse_singular(of, both)
    if lies_elsewhere(both) and both.size and b.size:
        return substituted(both, exchanges, b, transpose)
    leading = np.broadcast_shapes(both.shape[:-2], b.shape[:-2])
    if both.size and b.size and _one_by_one(leading, both.shape[-1]) and scipy_lapack():
        return _substituted(both, exchanges, b, leading, transpose)
    x = np.array(np.broadcast_to(np.swapaxes(b, -1, -2), (*leading, b.shape[-1], b.shape[-2])))
    lower = np.tril(both, -1) + np.eye(both.shape[-1], dtype=both.dtype)
    upper = np.triu(both)
    if not x.size:
        return np.swapaxes(x, -1, -2)
    places = order_of(np.broadcast_to(exchanges, (*leading, exchanges.shape[-1])))[..., None]
    if transpose:
        turned = (np.swapaxes(upper, -1, -2), np.swapaxes(lower, -1, -2))
        x = np.linalg.solve(turned[1], np.linalg.solve(turned[0], x))
        out = np.empty_like(x)
        np.put_along_axis(out, np.broadcast_to(places, x.shape), x, -2)
        return np.swapaxes(out, -1, -2)
    x = np.take_along_axis(x, np.broadcast_to(places, x.shape), -2)
    return np.swapaxes(np.linalg.solve(upper, np.linalg.solve(lower, x)), -1, -2)


def _one_by_one(leading: tuple[int, ...], n: int) -> bool:
    """Whether a call for each matrix takes less time than functions of all of them."""
    return math.prod(leading) == 1 or n >= _LARGE


def _substituted(
    both: Array, exchanges: Array, b: Array, leading: tuple[int, ...], transpose: bool
) -> Array:
    """Rows x, by a call for each matrix."""
    function = scipy_lapack().get_lapack_funcs(("getrs",), (both, b))[0]
    found = np.empty((*leading, *b.shape[-2:]), np.result_type(both, b))
    n = both.shape[-1]
    triangles = np.broadcast_to(both, (*leading, n, n))
    numbers = np.broadcast_to(exchanges, (*leading, n))
    rows = np.broadcast_to(b, found.shape)
    for index in np.ndindex(leading):
        x, _ = function(triangles[index], numbers[index], rows[index].T, trans=int(transpose))
        found[index] = x.T
    return found


def refuse_singular(name: str, factors: Array) -> None:
    """Refuse factors with a 0 in U.

    Raises:
        NumericError: naming the first matrix and pivot.
    """
    zeros = np.argwhere(np.diagonal(factors, axis1=-2, axis2=-1) == 0)
    if len(zeros):
        *index, row = zeros[0]
        raise NumericError(
            f"{name}: {matrix_name('a', tuple(index))} is singular: pivot {row + 1} of "
            f"{factors.shape[-1]} is 0; md.linalg.lstsq or pinv take such matrices"
        )


def order_of(exchanges: Array, rows: int | None = None) -> Array:
    """Which row comes where, after exchanges one after the other."""
    shape = (*exchanges.shape[:-1], exchanges.shape[-1] if rows is None else rows)
    order = np.broadcast_to(np.arange(shape[-1]), shape).copy()
    for k in range(exchanges.shape[-1]):
        chosen = exchanges[..., k, None]
        other = np.take_along_axis(order, chosen, -1)
        np.put_along_axis(order, chosen, order[..., k, None].copy(), -1)
        order[..., k, None] = other
    return order


def _solved_reference(factors: Array, b: Array, transpose: bool, of: str, refuses: bool) -> Array:
    exchanges, both = factors[..., 0, :].astype(np.int64), np.swapaxes(factors[..., 1:, :], -1, -2)
    n = both.shape[-1]
    product = (np.tril(both, -1) + np.eye(n)) @ np.triu(both)
    a = np.empty_like(product)
    order = order_of(exchanges)[..., None]
    np.put_along_axis(a, np.broadcast_to(order, product.shape), product, -2)
    inverse = np.linalg.inv(np.swapaxes(a, -1, -2) if transpose else a)
    return np.asarray(np.matmul(b, np.swapaxes(inverse, -1, -2)))


def _solved_samples(draw: Draw) -> Iterable[Sample]:
    for shape, right, transpose in (
        ((5,), (3, 5), False),
        ((3,), (2, 7, 3), True),
        ((2, 1, 3), (5, 1, 3), False),
    ):
        factors = packed(*eliminated(exchanging(draw, *shape)))
        yield Sample((factors, draw(*right)), {"transpose": transpose, "of": "solve"})


lu_solved: Op = Op(
    name="_lu_solved",
    args=("factors", "b"),
    formula="rows x with a x = b, or a.T x = b, of rows b and factors of a",
    kind=OpKind.LIBRARY,
    library=LibraryCall("getrs", settings=("transpose",)),
    rewrites=(as_stacks,),
    stacked=elementwise,
    shapes=_solved_shapes,
    dtypes=promote_floating,
    numpy=_solved_numpy,
    vjp=NoGradient(why=_WHY),
    reference=_solved_reference,
    samples=_solved_samples,
    attributes={"transpose": REQUIRED, "of": REQUIRED, "refuses": True},
)

takes_complex(lu_factored, lu_solved)
