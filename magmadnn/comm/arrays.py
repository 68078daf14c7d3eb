"""What may travel: arrays that are contiguous, their bytes, and elements made narrower for the wire."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from magmadnn.errors import ArgumentError, DeviceError, DTypeError, ShapeError, UnknownNameError
from magmadnn.memory.dtypes import refuse_masked

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
    return f"{_name_of(array.dtype)} {array.shape}"


@cache
def _name_of(dtype: Any) -> str:
    """A dtype's name, which NumPy makes anew each time."""
    return str(dtype.name)


def gpu_of(array: Array) -> int | None:
    """The number of the GPU whose memory an array of CuPy's is in; None for NumPy's."""
    return int(array.device.id) if _is_cupy(array) else None


def _is_cupy(array: Array) -> bool:
    return str(type(array).__module__).partition(".")[0] == "cupy"


def empty(shape: Any, dtype: Any, like: Array) -> Array:
    """A new array in the kind of memory where `like` is: the host's, or that of the current GPU."""
    return (sys.modules["cupy"] if _is_cupy(like) else np).empty(shape, dtype)


def flat_for(result: Array, dtype: Any) -> Array:
    """Where elements of this dtype arrive for a result: in a flat one itself, or beside it to be cast."""
    if result.dtype != dtype:
        return empty(result.size, dtype, result)
    return result if result.ndim == 1 else result.reshape(-1)


def overlap(one: Array, other: Array) -> bool:
    """Whether two contiguous arrays share memory."""
    if not _is_cupy(one):
        return bool(np.shares_memory(one, other))
    first, second = int(one.data.ptr), int(other.data.ptr)
    return first < second + int(other.nbytes) and second < first + int(one.nbytes)


def sendable(array: Array, call: str, what: str = "array", gpu: int | None = None) -> Array:
    """`array` if it can travel as it lies in memory.

    Args:
        array: the array.
        call: for errors.
        what: likewise, the argument's name.
        gpu: number of the GPU that it has to be on; None for arrays of NumPy.

    Raises:
        DTypeError: if it is no array of that kind, or holds Python objects.
        DeviceError: if it is on another GPU.
        ArgumentError: if its rows do not follow one another in memory.
        DataError: if elements are masked.
    """
    if gpu is not None:
        return _sendable_on(gpu, array, call, what)
    if not isinstance(array, np.ndarray):
        kind = type(array).__name__
        raise DTypeError(f"{call}: {what} must be a NumPy array, got {kind}: use numpy.asarray")
    refuse_masked(f"{call}: {what}", array)
    if array.dtype.hasobject:
        raise DTypeError(f"{call}: {what} has dtype {array.dtype}, which cannot travel as bytes")
    if not array.flags.c_contiguous:
        raise ArgumentError(
            f"{call}: {what} of shape {array.shape} is not C-contiguous: use numpy.ascontiguousarray"
        )
    return array


def _sendable_on(gpu: int, array: Array, call: str, what: str) -> Array:
    if not _is_cupy(array):
        kind = type(array).__name__
        raise DTypeError(f"{call}: {what} must be an array of CuPy, got {kind}: use cupy.asarray")
    if gpu_of(array) != gpu:
        raise DeviceError(
            f"{call}: {what} is on device {gpu_of(array)}, this rank works on {gpu}: copy it there"
        )
    if not array.flags.c_contiguous:
        raise ArgumentError(
            f"{call}: {what} of shape {array.shape} is not C-contiguous: use cupy.ascontiguousarray"
        )
    return array


def receiving(out: Array | None, shape: tuple[int, ...], like: Array, call: str) -> Array:
    """`out` if a result of this shape, with the dtype and memory of `like`, fits, or a new array.

    Raises:
        ShapeError: if the shapes differ.
        DTypeError: if the dtypes differ.
        ArgumentError: if `out` cannot be written to.
    """
    if out is None:
        return empty(shape, like.dtype, like)
    sendable(out, call, "out", gpu_of(like))
    if out.shape != shape:
        raise ShapeError(f"{call}: out has shape {out.shape}, the result {shape}")
    if out.dtype != like.dtype:
        raise DTypeError(f"{call}: out has dtype {out.dtype}, the result {like.dtype}")
    if not getattr(out.flags, "writeable", True):
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
