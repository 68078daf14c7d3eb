"""Functions that put arrays together, take them apart, or make one like another: of views and assignments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from magmadnn.dmath.client.checking import promoted, several, whole
from magmadnn.dmath.client.matrix import Matrix
from magmadnn.dmath.functions import reducing
from magmadnn.errors import ArgumentError, DTypeError, ShapeError, quoted
from magmadnn.memory.dtypes import limits_of


def home(name: str, x: Any) -> Any:
    """The session of an array.

    Raises:
        DTypeError: for what is no array on workers.
    """
    if not isinstance(x, Matrix):
        raise DTypeError(
            f"{name}: expected an array on workers, such as w.array(...) makes, got {quoted(x)}"
        )
    return x._session


def full_like(
    x: Matrix, /, fill_value: float, *, dtype: Any = None, device: str | None = None
) -> Matrix:
    """An array of one value, of the shape of another; `device`: None, or where that one is."""
    known = x.dtype if dtype is None else dtype
    made: Matrix = home("full_like", x).full(x.shape, fill_value, known, device=device)
    return made


def zeros_like(x: Matrix, /, *, dtype: Any = None, device: str | None = None) -> Matrix:
    """An array of zeros, of the shape of another."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Matrix, /, *, dtype: Any = None, device: str | None = None) -> Matrix:
    """An array of ones, of the shape of another."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Matrix, /, *, dtype: Any = None, device: str | None = None) -> Matrix:
    """An array of the shape of another; its elements are zeros."""
    return full_like(x, 0, dtype=dtype, device=device)


def broadcast_to(x: Matrix, /, shape: Sequence[int]) -> Matrix:
    """A copy of a larger shape, elements repeated along axes of size 1.

    Raises:
        ShapeError: if the array does not broadcast to it.
    """
    wanted = several("broadcast_to", "sizes", shape)
    try:
        fits = np.broadcast_shapes(x.shape, wanted) == wanted
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"broadcast_to: shape {x.shape} does not broadcast to {wanted}")
    made: Matrix = home("broadcast_to", x).full(wanted, 0, x.dtype)
    made[...] = x
    return made


def broadcast_arrays(*arrays: Matrix) -> list[Matrix]:
    """Copies of one shape."""
    try:
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
    except ValueError:
        raise ShapeError(
            f"broadcast_arrays: shapes {[x.shape for x in arrays]} do not broadcast"
        ) from None
    return [broadcast_to(x, shape) for x in arrays]


def concat(arrays: Sequence[Matrix], /, *, axis: int | None = 0) -> Matrix:
    """Arrays one behind the other along an axis; None: as vectors of all their elements.

    Raises:
        ShapeError: if other axes differ.
    """
    if not arrays:
        raise ShapeError("concat: no arrays are given")
    session, first = home("concat", arrays[0]), arrays[0]
    if axis is None and any(x.ndim != 1 for x in arrays):
        return concat([session.reshape(x, (x.size,)) for x in arrays])
    (along,) = reducing.axes_of("concat", 0 if axis is None else axis, first.ndim)
    rest = [x.shape[:along] + x.shape[along + 1 :] for x in arrays]
    if any(x.ndim != first.ndim for x in arrays) or any(one != rest[0] for one in rest):
        raise ShapeError(
            f"concat: shapes {', '.join(str(x.shape) for x in arrays)} differ in other axes than {along}"
        )
    shape = list(first.shape)
    shape[along] = sum(x.shape[along] for x in arrays)
    made: Matrix = session.full(shape, 0, promoted("concat", *(x.dtype for x in arrays)))
    at = 0
    for x in arrays:
        if x.shape[along]:
            made[(slice(None),) * along + (slice(at, at + x.shape[along]),)] = x
        at += x.shape[along]
    return made


def stack(arrays: Sequence[Matrix], /, *, axis: int = 0) -> Matrix:
    """Arrays of one shape along a new axis."""
    if not arrays or any(x.shape != arrays[0].shape for x in arrays):
        raise ShapeError(
            f"stack: shapes {', '.join(str(x.shape) for x in arrays)} must be one, of at least one"
        )
    (place,) = reducing.axes_of("stack", axis, arrays[0].ndim + 1)
    key = (slice(None),) * place + (None,)
    return concat([x[key] for x in arrays], axis=place)


def unstack(x: Matrix, /, *, axis: int = 0) -> tuple[Matrix, ...]:
    """Views of an array at each place of an axis."""
    (along,) = reducing.axes_of("unstack", axis, x.ndim)
    return tuple(x[(slice(None),) * along + (i,)] for i in range(x.shape[along]))


def roll(x: Matrix, /, shift: Any, *, axis: Any = None) -> Matrix:
    """Elements moved along axes, or in the flattened array (None); what leaves comes in at the other end."""
    if axis is None and x.ndim != 1:
        session = home("roll", x)
        made: Matrix = session.reshape(roll(session.reshape(x, (x.size,)), shift), x.shape)
        return made
    axes = (0,) if axis is None else several("roll", "axis", axis)
    shifts = several("roll", "shift", shift)
    shifts, axes = (
        one * (len(other) if len(one) == 1 else 1)
        for one, other in ((shifts, axes), (axes, shifts))
    )
    if len(shifts) != len(axes):
        raise ArgumentError(f"roll: {len(shifts)} shifts for {len(axes)} axes: give one for each")
    for one, by in zip(axes, shifts, strict=True):
        (along,) = reducing.axes_of("roll", one, x.ndim)
        n = x.shape[along]
        if n and by % n:
            ahead = (slice(None),) * along
            x = concat(
                [x[(*ahead, slice(n - by % n, n))], x[(*ahead, slice(0, n - by % n))]], axis=along
            )
    return x.copy()


def tile(x: Matrix, /, repetitions: Sequence[int]) -> Matrix:
    """The array repeated along each axis."""
    given = several("tile", "repetitions", repetitions)
    if min(given, default=1) < 0:
        raise ArgumentError(f"tile: repetitions must be at least 0, got {quoted(repetitions)}")
    counts = [1] * (x.ndim - len(given)) + list(given)
    x = x[(None,) * (len(counts) - x.ndim) + (...,)]
    for axis, count in enumerate(counts):
        if count != 1:
            x = (
                concat([x] * count, axis=axis)
                if count
                else x[(slice(None),) * axis + (slice(0, 0),)]
            )
    return x.copy()


def moveaxis(x: Matrix, source: Any, destination: Any, /) -> Matrix:
    """A view with axes at other places."""
    given, put = (
        [reducing.axes_of("moveaxis", a, x.ndim)[0] for a in several("moveaxis", "axes", one)]
        for one in (source, destination)
    )
    if len(given) != len(put) or any(len(set(one)) != len(one) for one in (given, put)):
        raise ArgumentError(
            f"moveaxis: axes {quoted(source)} and {quoted(destination)} must be as many different ones"
        )
    order = [axis for axis in range(x.ndim) if axis not in given]
    for place, axis in sorted(zip(put, given, strict=True)):
        order.insert(place, axis)
    return x.transpose(order)


def count_nonzero(x: Matrix, /, *, axis: Any = None, keepdims: bool = False) -> Matrix:
    """How many elements are not zero."""
    session = home("count_nonzero", x)
    made: Matrix = session.reduce(
        "sum", session.apply("not_equal", x, 0), axis=axis, keepdims=keepdims
    )
    return made


def diff(
    x: Matrix,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Matrix | None = None,
    append: Matrix | None = None,
) -> Matrix:
    """Differences of neighbours along an axis, taken n times, of x with others before and behind it."""
    (along,) = reducing.axes_of("diff", axis, x.ndim)
    if whole("diff", "n", n) < 0:
        raise ArgumentError(f"diff: n must be at least 0, got {n}")
    parts = [one for one in (prepend, x, append) if one is not None]
    x = concat(parts, axis=along) if len(parts) > 1 else x
    session, ahead = home("diff", x), (slice(None),) * along
    for _ in range(n):
        before = x[(*ahead, slice(0, max(x.shape[along] - 1, 0)))]
        x = session.apply("subtract", x[(*ahead, slice(1, None))], before)
    return x if n or len(parts) > 1 else x.copy()


def meshgrid(*arrays: Matrix, indexing: str = "xy") -> list[Matrix]:
    """Coordinates of a grid from vectors along its axes."""
    count, made = len(arrays), []
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f'meshgrid: indexing must be "xy" or "ij", got {quoted(indexing)}')
    for x in arrays:
        home("meshgrid", x)
        if x.ndim != 1:
            raise ShapeError(f"meshgrid: takes vectors, got shape {x.shape}")
    order = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    shape = [0] * count
    for x, place in zip(arrays, order, strict=True):
        shape[place] = x.shape[0]
    for x, place in zip(arrays, order, strict=True):
        key = tuple(slice(None) if i == place else None for i in range(count))
        made.append(broadcast_to(x[key], shape))
    return made


def isdtype(dtype: Any, kind: Any) -> bool:
    """NumPy's `isdtype`."""
    return bool(np.isdtype(dtype, kind))


def can_cast(given: Any, to: Any, /) -> bool:
    """NumPy's `can_cast`, of dtypes and arrays."""
    return bool(np.can_cast(given.dtype if isinstance(given, Matrix) else given, to))


def result_type(*given: Any) -> np.dtype[Any]:
    """NumPy's `result_type`, of dtypes, arrays and numbers."""
    return promoted("result_type", *(x.dtype if isinstance(x, Matrix) else x for x in given))


def finfo(given: Any, /) -> Any:
    """NumPy's `finfo`, of a dtype or an array."""
    return limits_of(given.dtype if isinstance(given, Matrix) else given)


def iinfo(given: Any, /) -> Any:
    """NumPy's `iinfo`, of a dtype or an array."""
    return np.iinfo(given.dtype if isinstance(given, Matrix) else given)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(
            full_like,
            zeros_like,
            ones_like,
            empty_like,
            broadcast_to,
            broadcast_arrays,
            concat,
            stack,
        ),
        *(unstack, roll, tile, moveaxis, count_nonzero, diff, meshgrid),
        *(isdtype, can_cast, result_type, finfo, iinfo),
    )
}
