"""What may travel: arrays that are contiguous, their bytes, and elements made narrower for the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from magmadnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError

Array = Any

REDUCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}
WIRES: Final = ("float16", "bfloat16")
_HALVES: Final = frozenset({"float16", "bfloat16"})
_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


def described(array: Array) -> str:
    """Dtype and shape, as errors and the ledger name an array: float32 (3, 4)."""
    return f"{array.dtype.name} {array.shape}"


def sendable(array: Array, call: str, what: str = "array") -> Array:
    """`array` if it can travel as it lies in memory.

    Raises:
        DTypeError: if it is no NumPy array, or holds Python objects.
        ArgumentError: if its rows do not follow one another in memory.
    """
    if not isinstance(array, np.ndarray):
        kind = type(array).__name__
        raise DTypeError(f"{call}: {what} must be a NumPy array, got {kind}: use numpy.asarray")
    if array.dtype.hasobject:
        raise DTypeError(f"{call}: {what} has dtype {array.dtype}, which cannot travel as bytes")
    if not array.flags.c_contiguous:
        raise ArgumentError(
            f"{call}: {what} of shape {array.shape} is not C-contiguous: use numpy.ascontiguousarray"
        )
    return array


def receiving(out: Array | None, shape: tuple[int, ...], dtype: Any, call: str) -> Array:
    """`out` if a result of this shape and dtype fits, or a new array.

    Raises:
        ShapeError: if the shapes differ.
        DTypeError: if the dtypes differ.
        ArgumentError: if `out` cannot be written to.
    """
    if out is None:
        return np.empty(shape, dtype)
    sendable(out, call, "out")
    if out.shape != shape:
        raise ShapeError(f"{call}: out has shape {out.shape}, the result {shape}")
    if out.dtype != dtype:
        raise DTypeError(f"{call}: out has dtype {out.dtype}, the result {np.dtype(dtype)}")
    if not out.flags.writeable:
        raise ArgumentError(f"{call}: out is read-only: give an array that may be written to")
    return out


def reduction(name: str, array: Array, call: str) -> Callable[..., Any]:
    """The function of two arrays by this name.

    Raises:
        UnknownNameError: if there is none.
        DTypeError: if elements of the array are no numbers.
    """
    if name not in REDUCTIONS:
        raise UnknownNameError.of(f"{call}: op", name, REDUCTIONS)
    if array.dtype.kind not in "iufcb" and array.dtype.name not in _FLOATS:
        raise DTypeError(f"{call}: elements of dtype {array.dtype} cannot be reduced")
    if array.dtype.kind == "b" and name in ("sum", "prod"):
        raise DTypeError(
            f"{call}: op {name!r} of bool is not defined: use 'max' for any, 'min' for all"
        )
    return REDUCTIONS[name]


def wire_dtype(wire: str | None, dtype: Any, call: str) -> Any:
    """The dtype in which elements of `dtype` travel: `wire` for floating-point elements that are wider.

    Raises:
        UnknownNameError: if `wire` is no dtype of the wire.
    """
    if wire is None:
        return dtype
    if wire not in WIRES:
        raise UnknownNameError.of(f"{call}: wire", wire, WIRES)
    return dtype_of(wire) if dtype.name in ("float32", "float64") else dtype


@cache
def dtype_of(name: str) -> Any:
    """The dtype by this name, bfloat16 too."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def sum_dtype(dtype: Any) -> Any:
    """The dtype in which elements are summed: float32 for those of 16 bits, else their own."""
    return np.dtype(np.float32) if dtype.name in _HALVES else dtype


def cast(array: Array, dtype: Any) -> Array:
    """The elements in `dtype`; the array itself where they are already. The too large become inf."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def as_bytes(array: Array) -> Array:
    """The memory of a contiguous array as bytes, which every engine can send, bfloat16 too."""
    return array.reshape(-1).view(np.uint8)


def cuts(length: int, parts: int) -> list[int]:
    """Bounds of `parts` shares of `length`, which differ by one at most: the first ones are larger.

    >>> cuts(7, 3)
    [0, 3, 5, 7]
    """
    share, more = divmod(length, parts)
    return [part * share + min(part, more) for part in range(parts + 1)]


def bounds_of(counts: Sequence[int] | None, length: int, size: int, call: str) -> list[int]:
    """Where the rows of each rank begin and end: by `counts`, or equal shares.

    Raises:
        ShapeError: if there are not as many counts as ranks, or they do not add up to `length`.
    """
    if counts is None:
        if length % size:
            raise ShapeError(
                f"{call}: axis 0 of {length} rows does not divide among {size} ranks: give counts"
            )
        return cuts(length, size)
    if len(counts) != size or min(counts) < 0:
        raise ShapeError(
            f"{call}: counts needs {size} numbers from 0, one a rank, got {list(counts)}"
        )
    if sum(counts) != length:
        raise ShapeError(f"{call}: counts add up to {sum(counts)}, axis 0 has {length} rows")
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + int(count))
    return bounds
