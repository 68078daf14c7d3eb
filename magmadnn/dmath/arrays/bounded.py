"""Elements that travel in fewer bytes with a bound on their error: multiples of twice the bound, as integers.

Whether an element is rounded depends on itself alone, and so does what it becomes: the nearest multiple; or
itself, where that is too large a number for an integer shorter than the element, or where it is not finite.
So copies are alike in any layout. A message has the shortest integers that hold all of its elements; with an
element that is not rounded it has the dtype.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from magmadnn.dmath.arrays.team import Array

_INTEGERS: Final = tuple(np.dtype(name) for name in ("int8", "int16", "int32"))


def _limit(dtype: np.dtype[Any]) -> int:
    """The largest multiple of a dtype's elements that is sent as an integer."""
    return int(max(np.iinfo(one).max for one in _INTEGERS if one.itemsize < dtype.itemsize))


def _multiples(xp: Any, x: Array, error: float) -> Array:
    """The nearest multiples of 2 * error, float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: Array = xp.rint(x.astype(np.float64) / (2 * error))
    return found


def rounded(xp: Any, x: Array, error: float) -> Array:
    """What elements are after they have travelled, of the same dtype."""
    multiples = _multiples(xp, x, error)
    small = xp.abs(multiples) <= _limit(x.dtype)  # neither for NaN
    with np.errstate(over="ignore", invalid="ignore"):
        made: Array = xp.where(small, multiples * (2 * error), x.astype(np.float64))
    return made.astype(x.dtype)


def packed(xp: Any, x: Array, error: float, largest: float) -> tuple[Array, int]:
    """Elements as bytes, and the size of an integer; 0 for elements of the dtype itself.

    Args:
        xp: the library of arrays.
        x: flat.
        error: the bound.
        largest: of the sizes of all multiples, as `largest_multiple` gives it.
    """
    for one in _INTEGERS:
        if one.itemsize < x.dtype.itemsize and largest <= np.iinfo(one).max:
            return _multiples(xp, x, error).astype(one).view(np.uint8), one.itemsize
    return rounded(xp, x, error).view(np.uint8), 0


def largest_multiple(xp: Any, x: Array, error: float) -> Array:
    """The size of the largest multiple, of the library; NaN where an element is none."""
    return xp.abs(_multiples(xp, x, error)).max()


def unpacked(flat: Array, size: int, dtype: np.dtype[Any], error: float) -> Array:
    """The elements that `packed` made bytes of."""
    if not size:
        return flat.view(dtype)
    whole = next(one for one in _INTEGERS if one.itemsize == size)
    made: Array = flat.view(whole).astype(np.float64) * (2 * error)
    return made.astype(dtype)
