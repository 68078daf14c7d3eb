"""Arrays in a structure: one array, or tuples, lists and dicts of arrays, nested as one likes.

Everything that takes "arrays" (batches, split, validation) walks them with these few functions.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DataError, DTypeError, ShapeError
from magmadnn.memory.foreign import OnDevice
from magmadnn.memory.foreign import as_array as on_host
from magmadnn.memory.on_demand import OnDemand

Array = NDArray[Any]

_BLOCK_BYTES = 1 << 20


def is_structure(value: object) -> bool:
    """Whether `value` holds arrays rather than being one; a list of numbers is an array."""
    if isinstance(value, list):
        return bool(value) and all(map(_holds_arrays, value))
    return isinstance(value, tuple | dict)


def _holds_arrays(value: object) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_holds_arrays, value))
    return isinstance(value, dict) or getattr(value, "ndim", 0) > 0


def leaves(arrays: Any, name: str) -> list[tuple[str, Array]]:
    """The arrays in order, each with the words a message calls it by: `x`, `x[1]`, `x['age']`."""
    if not is_structure(arrays):
        return [(name, as_array(arrays, name))]
    items = arrays.items() if isinstance(arrays, dict) else enumerate(arrays)
    return [leaf for key, value in items for leaf in leaves(value, f"{name}[{key!r}]")]


def as_array(value: object, name: str) -> Array:
    """`value` as an array, without copying one that is in memory or mapped from a file; one on a GPU is.

    Raises:
        DTypeError: `value` is an iterator, a ragged list or something else that is no array.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, OnDevice | OnDemand):
        found: Any = value  # has what rows need
        return found  # type: ignore[no-any-return]  # no ndarray, and typed as one
    if value is None or not hasattr(value, "__len__"):
        raise DTypeError(f"{name}: expected an array, got {type(value).__name__}")
    try:
        return on_host(value)
    except ShapeError as error:
        raise DTypeError(f"{name}: expected an array, got rows of unequal length") from error


def rebuild(arrays: Any, change: Callable[[Array], Array]) -> Any:
    """The same structure with `change` applied to each array."""
    if not is_structure(arrays):
        return change(as_array(arrays, "arrays"))
    if isinstance(arrays, dict):
        return {key: rebuild(value, change) for key, value in arrays.items()}
    values = [rebuild(value, change) for value in arrays]
    return type(arrays)(*values) if hasattr(arrays, "_fields") else type(arrays)(values)


def row_count(arrays: Any, name: str) -> int:
    """The length of the first axis, which all arrays share.

    Raises:
        ShapeError: an array has no axis, or first axes differ.
        DataError: there is no array, or there are no rows.
    """
    found = leaves(arrays, name)
    if not found:
        raise DataError(
            f"{name}: expected at least one array, got an empty {type(arrays).__name__}"
        )
    for label, array in found:
        if array.ndim == 0:
            raise ShapeError(f"{label}: expected an array with rows, got a single number")
    first_label, first = found[0]
    for label, array in found[1:]:
        if len(array) != len(first):
            raise ShapeError(
                f"{label} has {len(array)} rows but {first_label} has {len(first)}: "
                "all arrays need the same number of rows"
            )
    if len(first) == 0:
        raise DataError(f"{first_label} is empty: its shape is {first.shape}, expected some rows")
    return len(first)


def is_mapped(array: Array) -> bool:
    """Whether the values stand in a memory-mapped file, also behind views of it, or are made on demand."""
    if isinstance(array, OnDemand):
        return True
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def take_rows(array: Array, rows: NDArray[np.int64]) -> Array:
    """A copy of these rows, in this order, where the array lies; a mapped file is read in its own order."""
    if isinstance(array, OnDevice):
        from magmadnn.runtime.cuda.data import arrays

        found: Any = arrays.take_rows(array, rows)
        return found
    if not is_mapped(array):
        return array[rows]
    ascending = np.argsort(rows, kind="stable")
    out = np.empty((len(rows), *array.shape[1:]), array.dtype)
    out[ascending] = array[rows[ascending]]
    return out


def write_rows(goal: Array, first: int, rows: Array) -> None:
    """Copy rows into those of `goal` from `first` on, where that lies; to be held while a device copies."""
    part = goal[first : first + len(rows)]
    if isinstance(part, OnDevice):
        part.fill_from(rows)
    else:
        part[...] = rows


def read_rows(array: Array, rows: NDArray[np.int64], out: Array) -> None:
    """Copy these rows, in this order, into `out`; no further memory is needed to speak of."""
    if isinstance(array, OnDemand):
        out[...] = array[rows]
        return
    plain = array.view(np.ndarray)
    if rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        np.copyto(out, plain[rows[0] : rows[-1] + 1])
    elif plain.flags.c_contiguous and plain.flags.aligned and plain.dtype == out.dtype:
        # "clip" writes straight into `out`, and needs the interpreter for nothing.
        np.take(plain, rows, axis=0, out=out, mode="clip")
    else:
        step = max(1, _BLOCK_BYTES // max(1, plain[:1].nbytes))
        for k in range(0, len(rows), step):
            out[k : k + step] = plain[rows[k : k + step]]
