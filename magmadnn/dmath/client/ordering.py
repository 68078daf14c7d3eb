"""Functions over axes with the arguments that the array API standard gives them."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from magmadnn.dmath.client.arranging import reshape
from magmadnn.dmath.client.combining import concat, home
from magmadnn.dmath.client.matrix import Matrix
from magmadnn.dmath.client.spectra import svdvals
from magmadnn.dmath.functions import reducing
from magmadnn.dmath.layouts.recipes import LayoutLike
from magmadnn.errors import ArgumentError, ShapeError, quoted


def _running(name: str, x: Matrix, axis: Any, dtype: Any, initial: bool, first: int) -> Matrix:
    session = home(name, x)
    if axis is None and x.ndim != 1:
        raise ShapeError(f"{name}: axis=None is for vectors, got shape {x.shape}: give axis")
    (along,) = reducing.axes_of(name, 0 if axis is None else axis, x.ndim)
    if dtype is not None:
        x = x.astype(dtype, copy=False)
    made: Matrix = session.along(name, x, along)
    made = made if dtype is None else made.astype(dtype, copy=False)
    if not initial:
        return made
    shape = [1 if i == along else n for i, n in enumerate(x.shape)]
    return concat([session.full(shape, first, made.dtype), made], axis=along)


def cumulative_sum(
    x: Matrix, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Matrix:
    """Sums of the first 1, 2, ... elements along an axis.

    Args:
        x: the array.
        axis: along which; None is for vectors.
        dtype: in which is added; None for that of `md.dmath.sum`.
        include_initial: whether the sum of no elements, 0, stands in front.

    Raises:
        ShapeError: without `axis` for other arrays than vectors.
    """
    return _running("cumulative_sum", x, axis, dtype, include_initial, 0)


def cumulative_prod(
    x: Matrix, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Matrix:
    """Products of the first 1, 2, ... elements along an axis; arguments are those of `cumulative_sum`, the
    product of no elements is 1.
    """
    return _running("cumulative_prod", x, axis, dtype, include_initial, 1)


def sort(x: Matrix, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Matrix:
    """Elements in order along one axis, which is brought together on a worker first where it is cut.

    Equal elements keep their order, whatever `stable` says.
    """
    made: Matrix = home("sort", x).along("sort", x, axis, descending=bool(descending))
    return made


def argsort(
    x: Matrix, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Matrix:
    """Places of the elements of `sort`, int64; the first of equal ones first, whatever `stable` says."""
    made: Matrix = home("argsort", x).along("argsort", x, axis, descending=bool(descending))
    return made


def flip(x: Matrix, /, *, axis: Any = None) -> Matrix:
    """A copy with elements in reverse order along an axis, several, or all (None); nothing is sent."""
    home("flip", x)
    axes = reducing.axes_of("flip", axis, x.ndim)
    made: Matrix = x[tuple(slice(None, None, -1 if i in axes else 1) for i in range(x.ndim))]
    return made.copy()


def _place(name: str, x: Matrix, axis: int | None, keepdims: bool) -> Matrix:
    session, shape = home(name, x), x.shape
    if axis is None:
        x, kept = reshape(x, (x.size,)), (1,) * len(shape)
    else:
        kept = reducing.reduced_shape(shape, reducing.axes_of(name, axis, x.ndim), True)
    along = 0 if axis is None else axis
    if not x.shape[along]:
        raise ShapeError(f"{name}: an axis of size 0 has no {name}, shape {shape}")
    made: Matrix = session.along(name, x, along)
    return reshape(made, kept) if keepdims else made


def argmax(x: Matrix, /, *, axis: int | None = None, keepdims: bool = False) -> Matrix:
    """The place of the largest element along an axis, the first of equal ones; among all elements in rows
    for None. int64.

    Raises:
        ShapeError: where there is no element.
    """
    return _place("argmax", x, axis, keepdims)


def argmin(x: Matrix, /, *, axis: int | None = None, keepdims: bool = False) -> Matrix:
    """The place of the smallest element along an axis; as `argmax`."""
    return _place("argmin", x, axis, keepdims)


def clip(x: Matrix, /, min: Any = None, max: Any = None, *, layout: LayoutLike = None) -> Matrix:
    """Elements not below `min` and not above `max`, numbers or arrays that broadcast; None for no bound."""
    session = home("clip", x)
    made: Matrix
    if min is not None and max is not None:
        made = session.apply("clip", x, min, max, layout=layout)
    elif min is not None:
        made = session.apply("maximum", x, min, layout=layout)
    elif max is not None:
        made = session.apply("minimum", x, max, layout=layout)
    else:
        made = x.to(layout)
    return made


def where(condition: Any, x1: Any, x2: Any, /, *, layout: LayoutLike = None) -> Matrix:
    """Elements of x1 where the condition is true, of x2 elsewhere; all broadcast."""
    found = [x for x in (condition, x1, x2) if isinstance(x, Matrix)]
    session = home("where", found[0] if found else condition)
    made: Matrix = session.apply("where", condition, x1, x2, layout=layout)
    return made


def vector_norm(
    x: Matrix, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2
) -> Matrix:
    """(sum of |x|**ord)**(1 / ord) over axes, or all elements.

    Args:
        x: the array.
        axis: one axis, several, or None for all.
        keepdims: whether axes stay, with size 1.
        ord: inf and -inf for the largest and smallest |x|, 0 for how many elements are not 0; 2 is scaled so
            that nothing overflows (`norm`).
    """
    session = home("vector_norm", x)
    if isinstance(ord, bool) or not isinstance(ord, (int, float)) or ord != ord:
        raise ArgumentError(f"vector_norm: ord must be a number, got {quoted(ord)}")
    if ord == 2:
        found: Matrix = session.norm(x, axis=axis, keepdims=keepdims)
        return found
    wide = x.astype(np.float64) if x.dtype.kind in "iub" else x
    sizes: Matrix = session.apply("abs", wide)
    made: Matrix
    if not isfinite(ord):
        made = session.reduce("max" if ord > 0 else "min", sizes, axis, keepdims)
    elif ord == 0:
        made = session.reduce("sum", session.apply("not_equal", x, 0), axis, keepdims)
        made = made.astype(sizes.dtype)
    elif ord == 1:
        made = session.reduce("sum", sizes, axis, keepdims)
    else:
        powers = session.apply("pow", sizes, float(ord))
        made = session.apply("pow", session.reduce("sum", powers, axis, keepdims), 1 / ord)
    return made


def matrix_norm(x: Matrix, /, *, keepdims: bool = False, ord: float | str = "fro") -> Matrix:
    """A norm of each matrix of [..., m, n].

    Args:
        x: the matrices.
        keepdims: whether the last two axes stay, with size 1.
        ord: "fro" for the square root of the sum of squares; 1 and inf for the largest sum of sizes in a
            column or a row, -1 and -inf for the smallest; 2, -2 and "nuc" for the largest and smallest
            singular value and their sum, which needs room for a matrix on one worker.

    Raises:
        ShapeError: for fewer than two axes.
        ArgumentError: for another `ord`.
    """
    session = home("matrix_norm", x)
    if x.ndim < 2:
        raise ShapeError(f"matrix_norm: needs two axes, shape {x.shape} has {x.ndim}")
    if ord not in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf) or isinstance(ord, bool):
        raise ArgumentError(
            f'matrix_norm: ord must be "fro", "nuc", 1, -1, 2, -2, inf or -inf, got {quoted(ord)}'
        )
    made: Matrix
    if ord == "fro":
        made = session.norm(x, axis=(-2, -1), keepdims=keepdims)
        return made
    if ord in ("nuc", 2, -2):
        values = svdvals(x)
        how = "sum" if ord == "nuc" else "max" if ord == 2 else "min"
    else:
        values = vector_norm(x, axis=-2 if ord in (1, -1) else -1, ord=1)
        how = "max" if ord in (1, np.inf) else "min"
    made = session.reduce(how, values, -1)
    return reshape(made, (*made.shape, 1, 1)) if keepdims else made


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(cumulative_sum, cumulative_prod, sort, argsort, argmax, argmin),
        *(clip, where, vector_norm, matrix_norm, flip),
    )
}
