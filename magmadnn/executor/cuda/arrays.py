"""What is done to arrays on a device outside of plans: looking at values, taking rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.compiler.emit.cuda.finite import look_finite, look_within
from magmadnn.compiler.emit.cuda.step_ends import FetchPart, fetch
from magmadnn.compiler.emit.cuda.variant import Launch
from magmadnn.memory.foreign import OnDevice

from .data import Block
from .items import Item, graph_of


def is_finite(array: OnDevice) -> bool:
    """Whether no element is NaN or infinite; of float32 or float64."""
    fault = _word(array.device)
    _run(array.device, look_finite(fault.address, [(array.dtype.name, array.size, array.address)]))
    return not _value(fault, array.device)


def is_within(array: OnDevice, end: int) -> bool:
    """Whether all integers are at least 0 and below `end`."""
    fault = _word(array.device)
    launch = look_within(fault.address, array.dtype.name, array.size, array.address, end)
    _run(array.device, launch)
    return not _value(fault, array.device)


def take_rows(array: OnDevice, rows: NDArray[np.int64]) -> OnDevice:
    """A copy of these rows, in this order, on the device."""
    shape = (len(rows), *array.shape[1:])
    columns = array.size // len(array)
    result = Block(len(rows) * columns * array.dtype.itemsize, array.device)
    order = _holding(rows, array.device)
    places = _holding(np.array([array.address, order.address]), array.device)
    first, name = _holding(np.zeros(1), array.device), array.dtype.name
    part = (FetchPart(name, name), len(rows), columns, places.address, places.address + 8)
    _run(array.device, fetch(first.address, 0, [(*part, result.address)]))
    return OnDevice(shape, array.dtype, result.address, array.device, result)


def _word(device: int) -> Block:
    return Block(8, device)  # new memory holds zeros


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


def _run(device: int, launch: Launch) -> None:
    """Run one kernel, and wait for it."""
    engine = device_engine(device)
    graph_of(engine, [Item(launch, (), ())]).launch()
    engine.wait()
