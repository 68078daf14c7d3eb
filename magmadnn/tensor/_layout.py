"""Which elements of memory a Tensor has: spans, addresses and shapes; which indices make views."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from magmadnn.errors import ArgumentError, IndexOutOfRangeError, ShapeError
from magmadnn.graph.signature import shape_text
from magmadnn.memory import Kind, MemoryManager
from magmadnn.memory.dtypes import refuse_masked

Array = NDArray[Any]


def filled(values: Array, kind: Kind, device: int) -> MemoryManager:
    """New memory that holds `values`, from the pool of its kind."""
    memory = MemoryManager.of(values.size, values.dtype, kind, device)
    if kind in (Kind.HOST, Kind.MANAGED):  # nobody has seen it, and the host has its bytes
        memory.frame().reshape(values.shape)[...] = values
    else:
        memory.copy_from(values)
    return memory


def flat(array: Array) -> Array:
    """All memory from an array's lowest element to its highest, as one axis."""
    if array.flags.forc or not array.size:
        return array.reshape(-1, order="A")
    item = array.itemsize
    upwards = array[tuple(slice(None, None, -1 if s < 0 else 1) for s in array.strides)]
    reach = sum((n - 1) * abs(s) for n, s in zip(array.shape, array.strides, strict=True))
    return as_strided(upwards, (reach // item + 1,), (item,), writeable=array.flags.writeable)


def fetched(memory: MemoryManager, frame: Array) -> tuple[Array, MemoryManager, int]:
    """A copy, on the host, of the part of a memory that a frame spans.

    Returns:
        The frame's values, the memory on the host that they are in, and which element of `memory` that
        begins with.
    """
    if not frame.size:
        return np.empty(frame.shape, frame.dtype), MemoryManager(0, frame.dtype, Kind.HOST), 0
    low, high = byte_bounds(frame)
    begin = (low - address_of(memory.frame())) // frame.itemsize
    span = MemoryManager((high - low) // frame.itemsize, frame.dtype, Kind.HOST)
    span.copy_from(memory, begin, span.size)
    first = span.host(write=True)[(address_of(frame) - low) // frame.itemsize :]
    return as_strided(first, frame.shape, frame.strides), span, begin


def address_of(array: Array) -> int:
    """Where an array's first element is."""
    address: int = array.__array_interface__["data"][0]
    return address


def offset_of(frame: Array, memory: MemoryManager) -> int:
    """Elements from the beginning of the memory to a view's first element."""
    if frame.size == memory.size and frame.flags.c_contiguous:
        return 0  # all of it, as most are
    return (address_of(frame) - address_of(memory.frame())) // frame.itemsize


def as_shape(what: str, shape: Any, free: bool = False) -> tuple[int, ...]:
    """A shape as a tuple of integers of at least 0, or -1 where one may be free."""
    try:
        sizes = (
            tuple(map(operator.index, shape)) if np.iterable(shape) else (operator.index(shape),)
        )
    except TypeError:
        sizes = (-2,)
    if min(sizes, default=0) < (-1 if free else 0):
        raise ShapeError(f"{what}: a shape holds integers of at least 0, got {shape!r}")
    return sizes


def settled_index(index: Any) -> tuple[bool, Any]:
    """Whether an index makes a view, and the index for NumPy.

    Integers, slices, None and `...` make views, also where no axis is left: NumPy would give a number
    then, but with `...` at the end it gives a view without axes.
    """
    items = [_settled(item) for item in (index if isinstance(index, tuple) else (index,))]
    if not all(item is None or isinstance(item, (int, slice, type(...))) for item in items):
        return False, tuple(items)
    if not any(item is ... for item in items):
        items.append(...)
    return True, tuple(items)


def _settled(item: Any) -> Any:
    """An integer as an int, a Tensor as an ndarray; a bool is a mask, no integer."""
    if item is None or item is ... or isinstance(item, slice):
        return item
    if isinstance(item, (bool, np.bool)):
        return np.asarray(item)
    if getattr(item, "ndim", 0) == 0 and hasattr(item, "__index__"):
        dtype = getattr(item, "dtype", None)
        if dtype is None or dtype.kind in "iu":
            return operator.index(item)
    return item.read() if hasattr(item, "read") else item


@contextmanager
def indexing(shape: tuple[int, ...]) -> Iterator[None]:
    """Words NumPy's complaints about an index."""
    try:
        yield
    except IndexError as error:
        raise IndexOutOfRangeError(f"Tensor of shape {shape_text(shape)}: {error}") from error


@contextmanager
def assigning(shape: tuple[int, ...], dtype: np.dtype[Any], value: object) -> Iterator[None]:
    """Words NumPy's complaints about an index, or about a value that is assigned, and refuses masked ones."""
    refuse_masked("Tensor", value)
    try:
        with indexing(shape):
            yield
    except (TypeError, OverflowError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        where = f"Tensor of {dtype.name}{shape_text(shape)}: cannot assign"
        if "broadcast" in str(error):
            raise ShapeError(f"{where}: {error}") from error
        raise ArgumentError(f"{where} a {type(value).__name__}: {error}") from error
