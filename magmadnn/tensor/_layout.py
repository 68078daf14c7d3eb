"""Layout of a Tensor's elements in memory: spans, addresses and shapes."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from magmadnn.errors import ShapeError
from magmadnn.memory import Kind, MemoryManager

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
