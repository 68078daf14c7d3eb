"""Functions of other shapes and of matrices as wholes: `reshape`, `tensordot`, `inv` and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from magmadnn.dmath.client.checking import several, whole
from magmadnn.dmath.client.combining import home
from magmadnn.dmath.client.matrix import Matrix
from magmadnn.dmath.functions import reducing
from magmadnn.errors import ArgumentError, DTypeError, ShapeError, quoted


def reshape(x: Matrix, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Matrix:
    """A copy of another shape, elements in row-major order, in rows over all workers.

    Args:
        x: any array.
        shape: the new one; one size may be -1, for what is left.
        copy: None or True; elements move, so that a view is refused.

    Raises:
        ShapeError: if the sizes do not give as many elements.
        ArgumentError: for `copy=False`.
    """
    session = home("reshape", x)
    if copy is False:
        raise ArgumentError("reshape: elements move between workers: leave copy out")
    sizes = list(several("reshape", "sizes", shape))
    if sizes.count(-1) == 1:
        rest = -prod(sizes)
        if rest > 0 and x.size % rest == 0:
            sizes[sizes.index(-1)] = x.size // rest
    if min(sizes, default=0) < 0 or prod(sizes) != x.size:
        raise ShapeError(
            f"reshape: shape {x.shape} has {x.size} elements, which do not fit {quoted(shape)}"
        )
    made: Matrix = session._new("reshape", [x], sizes, x.dtype, shape=sizes)
    return made


def repeat(x: Matrix, repeats: Any, /, *, axis: int | None = None) -> Matrix:
    """Each element several times behind itself along an axis; of all elements in a row for None.

    Args:
        x: any array.
        repeats: how often, from 0: a number, or one for each place of the axis, which come to the client.
        axis: None for the vector of all elements.
    """
    session = home("repeat", x)
    if isinstance(repeats, (Matrix, np.ndarray, list, tuple)):
        return _repeated(x, np.asarray(repeats), axis)
    if isinstance(repeats, bool) or not isinstance(repeats, (int, np.integer)) or repeats < 0:
        raise ArgumentError(f"repeat: repeats must be a whole number from 0, got {quoted(repeats)}")
    if axis is None:
        x, axis = reshape(x, (-1,) if x.size else (0,)), 0
    (along,) = reducing.axes_of("repeat", axis, x.ndim)
    shape = list(x.shape)
    shape[along] *= int(repeats)
    made: Matrix = session.full(shape, 0, x.dtype)
    for first in range(int(repeats) if x.size else 0):
        made[(*(slice(None),) * along, slice(first, None, int(repeats)))] = x
    return made


def _repeated(x: Matrix, counts: np.ndarray[Any, Any], axis: int | None) -> Matrix:
    """`repeat` with a count for each place of the axis."""
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    (along,) = reducing.axes_of("repeat", axis, x.ndim)
    fits = counts.ndim == 1 and counts.size in (1, x.shape[along])
    if not fits or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ArgumentError(
            f"repeat: repeats must be whole numbers from 0, 1 or {x.shape[along]} of them for axis {along}, "
            f"got {counts.dtype} of shape {counts.shape}"
        )
    places = np.repeat(np.arange(x.shape[along]), counts)
    made: Matrix = take(x, home("repeat", x).array(places), axis=along)
    return made


def _vector_of_indices(name: str, session: Any, indices: Any) -> Matrix:
    given = indices if isinstance(indices, Matrix) else session.array(np.asarray(indices))
    if given.dtype.kind not in "iu" and given.size:
        raise DTypeError(f"{name}: indices are integers, got {given.dtype}")
    if given.ndim != 1:
        raise ShapeError(f"{name}: indices must be a vector, got shape {given.shape}")
    made: Matrix = given
    return made


def take(x: Matrix, indices: Any, /, *, axis: int | None = None) -> Matrix:
    """Elements along an axis by a vector of indices, which all workers get; negative ones from the end.

    The axis is brought together on a worker first where it is cut. `axis` may be left out for vectors.

    Raises:
        IndexOutOfRangeError: when the result is used, for an index beyond the axis.
    """
    session = home("take", x)
    if axis is None and x.ndim != 1:
        raise ShapeError(f"take: name the axis of an array of {x.ndim} axes")
    (along,) = reducing.axes_of("take", 0 if axis is None else axis, x.ndim)
    given = _vector_of_indices("take", session, indices)
    shape = (*x.shape[:along], given.shape[0], *x.shape[along + 1 :])
    made: Matrix = session._new("take", [x, given], shape, x.dtype, axis=along)
    return made


def searchsorted(x1: Matrix, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Matrix:
    """For each element of x2 the place in the sorted vector x1 that keeps it sorted.

    Args:
        x1: a vector, which all workers get.
        x2: values, in any layout, which the result has too.
        side: "left" before equal elements, "right" after them.
        sorter: indices that sort x1, if it is not sorted.
    """
    session = home("searchsorted", x1)
    if side not in ("left", "right"):
        raise ArgumentError(f'searchsorted: side must be "left" or "right", got {quoted(side)}')
    if x1.ndim != 1:
        raise ShapeError(f"searchsorted: x1 must be a vector, got shape {x1.shape}")
    vector = x1 if sorter is None else take(x1, sorter)
    values = x2 if isinstance(x2, Matrix) else session.array(np.asarray(x2))
    made: Matrix = session._new(
        "searchsorted", [vector, values], values.shape, np.dtype(np.int64), side=side
    )
    return made


def tensordot(a: Matrix, b: Matrix, /, *, axes: Any = 2) -> Matrix:
    """Sums of products over axes of both arrays, as a product of matrices.

    Args:
        a: any array.
        b: any array.
        axes: a number: the last axes of a with the first of b; or two sequences of axes in pairs.

    Raises:
        ShapeError: if axes are not there, or paired ones differ in size.
    """
    home("tensordot", a)
    if not np.ndim(axes) and not isinstance(axes, (tuple, list)):
        axes = whole("tensordot", "axes", axes)
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise ShapeError(f"tensordot: {axes} axes are not there in shapes {a.shape}, {b.shape}")
        left, right = list(range(a.ndim - axes, a.ndim)), list(range(axes))
    else:
        if len(axes) != 2:
            raise ArgumentError(
                f"tensordot: axes= takes axes of a and axes of b, got {quoted(axes)}"
            )
        left, right = (
            [reducing.axes_of("tensordot", i, x.ndim)[0] for i in several("tensordot", "axes", one)]
            for x, one in ((a, axes[0]), (b, axes[1]))
        )
    sizes, others = [a.shape[i] for i in left], [b.shape[i] for i in right]
    if sizes != others or len(set(left)) != len(left) or len(set(right)) != len(right):
        raise ShapeError(
            f"tensordot: axes {left} of shape {a.shape} do not pair with axes {right} of {b.shape}"
        )
    rows = [i for i in range(a.ndim) if i not in left]
    columns = [i for i in range(b.ndim) if i not in right]
    outside = [*(a.shape[i] for i in rows), *(b.shape[i] for i in columns)]
    inner = prod(sizes)
    first = reshape(a.transpose([*rows, *left]), (prod(a.shape[i] for i in rows), inner))
    second = reshape(b.transpose([*right, *columns]), (inner, prod(b.shape[i] for i in columns)))
    return reshape(first @ second, outside)


def outer(a: Matrix, b: Matrix, /) -> Matrix:
    """All products of elements of two vectors [m] and [n]: [m, n].

    Raises:
        ShapeError: if one is no vector.
    """
    session = home("outer", a)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"outer: takes two vectors, got shapes {a.shape} and {b.shape}")
    made: Matrix = session.apply("multiply", a[:, None], b[None, :])
    return made


def diagonal(x: Matrix, /, *, offset: int = 0) -> Matrix:
    """The diagonal of the last two axes [..., m, n], `offset` places to the right of the main one."""
    session = home("diagonal", x)
    if x.ndim < 2:
        raise ShapeError(f"diagonal: needs two axes, shape {x.shape} has {x.ndim}")
    rows, columns = x.shape[-2:]
    low = max(0, -offset)
    count = max(min(rows - low, columns - max(0, offset)), 0)
    flat = reshape(x, (*x.shape[:-2], rows * columns))
    places = (np.arange(count, dtype=np.int64) + low) * columns + np.arange(count) + max(0, offset)
    made: Matrix = take(flat, session.array(places), axis=-1)
    return made


def trace(x: Matrix, /, *, offset: int = 0, dtype: Any = None) -> Matrix:
    """The sum of `diagonal`, of the dtype that sums have, or of `dtype`."""
    made: Matrix = home("trace", x).reduce("sum", diagonal(x, offset=offset), axis=-1, dtype=dtype)
    return made


def inv(a: Matrix, /) -> Matrix:
    """The inverse of a square matrix, by LU factors with partial pivoting.

    Raises:
        ShapeError: if it is not square.
        NumericError: when the result is used, if it is singular.
    """
    session = home("inv", a)
    _square("inv", a)
    kind = a.dtype if a.dtype.kind in "fcV" else np.dtype(np.float64)
    made: Matrix = session.solve(a, session.eye(a.shape[0], dtype=kind))
    return made


def matrix_power(a: Matrix, n: int, /) -> Matrix:
    """`a @ a @ ...`, n times by squaring; for negative n powers of the inverse, for 0 the unit matrix."""
    session = home("matrix_power", a)
    _square("matrix_power", a)
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise ArgumentError(f"matrix_power: n must be a whole number, got {quoted(n)}")
    if n == 0:
        one: Matrix = session.eye(a.shape[0], dtype=a.dtype)
        return one
    base, left, made = (inv(a) if n < 0 else a), abs(int(n)), None
    while left:
        if left % 2:
            made = base if made is None else made @ base
        left //= 2
        if left:
            base = base @ base
    assert made is not None
    return made.copy() if made is a else made


def _square(name: str, a: Matrix) -> None:
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ShapeError(f"{name}: needs a square matrix, got shape {a.shape}")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(reshape, repeat, take, searchsorted, tensordot),
        *(outer, diagonal, trace, inv, matrix_power),
    )
}
