"""What is done to arrays on a device outside of plans: looking at values, taking rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.backends.cuda.engine import Engine, KernelNode
from magmadnn.compiler.cuda.fused.draw import DrawKeys, draw_keys
from magmadnn.compiler.cuda.fused.put_rows import PutRows
from magmadnn.compiler.cuda.fused.step_ends import FetchPart, fetch
from magmadnn.compiler.cuda.text.finite import LookFinite, LookWithin, look_finite, look_within
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.compiler.kernels.formula import HALVES
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.cuda.code import functions_of

from .block import Block
from .upload import upload

# Compiled together with the first that is wanted: each module takes its time.
USUAL = (DrawKeys(), LookFinite(("float32",)), LookWithin("int64"), PutRows((16, 8)))


def copied(values: Array, device: int) -> OnDevice:
    """A copy of an array of the host.

    Raises:
        OutOfMemoryError: if there is no room for it.
    """
    made = empty(values.shape, values.dtype.newbyteorder("="), device)
    upload(device_memory(device), made.place, values)
    return made


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], device: int) -> OnDevice:
    """A new array, holding anything.

    Raises:
        OutOfMemoryError: if there is no room for it.
    """
    block = Block(math.prod(shape) * dtype.itemsize, device)
    return OnDevice(shape, dtype, block.address, device, block)


def is_finite(array: OnDevice) -> bool:
    """Whether no element is NaN or infinite."""
    return _is_good(array, finite_launches)


def is_within(array: OnDevice, end: int) -> bool:
    """Whether all integers are at least 0 and below `end`."""
    return _is_good(array, partial(_within_launches, end=end))


def look_at(array: OnDevice, fault: int) -> None:
    """Begin to look for what `array.looks` wants to know; a word at `fault` is set where it is not so."""
    launches = []
    if array.looks.wants_finite:
        launches += finite_launches(array, fault)
    if (end := array.looks.wants_below) is not None:
        launches += _within_launches(array, fault, end)
    for launch in launches:
        begin(array.device, launch)


def finite_launches(array: OnDevice, fault: int) -> list[Launch]:
    """Launches that set a word where an element is NaN or infinite; none where none can be."""
    if array.dtype.kind == "c":  # two numbers beside each other
        parts = array.dtype.type(0).real.dtype.name, 2 * array.size, array.place
    elif array.dtype.name in ("float32", "float64", *HALVES):
        parts = array.dtype.name, array.size, array.place
    else:
        return []
    return [look_finite(fault, [parts])]


def _within_launches(array: OnDevice, fault: int, end: int) -> list[Launch]:
    return [look_within(fault, array.dtype.name, array.size, array.place, end)]


def _is_good(array: OnDevice, launches_for: Callable[[OnDevice, int], list[Launch]]) -> bool:
    """Whether no launch finds a fault, in the array as it is meant."""
    fault = Block(8, array.device)  # new memory holds zeros
    if array.copy is not None:
        array.copy.settle()
    launches = launches_for(array, fault.address)
    for launch in launches:
        begin(array.device, launch)
    return not launches or not _value(fault, array.device)


def take_rows(array: OnDevice, rows: NDArray[np.int64]) -> OnDevice:
    """A copy of these rows, in this order, on the device."""
    return _fetched(array, len(rows), array.dtype, rows)


def converted(array: OnDevice, dtype: np.dtype[Any]) -> OnDevice:
    """A copy in another dtype, on the device."""
    return _fetched(array, len(array), dtype, None)


def permutation(count: int, seed: int, stream: int, device: int) -> NDArray[np.int64]:
    """`ops.philox.permutation`, drawn and sorted by the device: the same numbers."""
    engine = device_engine(device)
    return engine.argsort(count, lambda at: node_of(engine, draw_keys(count, at, stream, seed)))


def _fetched(
    array: OnDevice, rows: int, dtype: np.dtype[Any], order: NDArray[np.int64] | None
) -> OnDevice:
    """Rows in an order, or as they stand, in memory of their own."""
    columns, device = math.prod(array.shape[1:]), array.device
    result = Block(rows * columns * dtype.itemsize, device)
    numbers = np.r_[[0, array.address, 0], [] if order is None else order].astype(np.int64)
    held = _holding(numbers, device)
    if order is not None:  # which lies behind its address
        numbers[2] = held.address + 24
        device_memory(device).copy_to_device(held.address, numbers[:3].view(np.uint8))
    part = FetchPart(array.dtype.name, dtype.name)
    source, place = held.address + 8, 0 if order is None else held.address + 16
    launch = fetch(held.address, 0, [(part, rows, columns, source, place, result.address)])
    if result.nbytes:
        begin(device, launch)
    return OnDevice((rows, *array.shape[1:]), dtype, result.address, device, result)


def _value(word: Block, device: int) -> int:
    found = np.zeros(1, np.int64)
    device_memory(device).copy_to_host(found.view(np.uint8), word.address)
    return int(found[0])


def _holding(numbers: NDArray[np.generic], device: int) -> Block:
    """Integers on the device."""
    values = np.ascontiguousarray(numbers, np.int64)
    block = Block(values.nbytes, device)
    device_memory(device).copy_to_device(block.address, values.view(np.uint8))
    return block


def begin(device: int, launch: Launch) -> None:
    """Begin to run one kernel, after all that was launched."""
    engine = device_engine(device)
    engine.launch(node_of(engine, launch))


def node_of(engine: Engine, launch: Launch) -> KernelNode:
    """A launch with its function."""
    function = functions_of(engine, [launch.variant, *USUAL])[launch.variant]
    return KernelNode(function, launch.grid, launch.block, launch.shared_bytes, launch.arguments)
