"""Operands of eager calls where they lie, and views of blocks of a device's memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.memory import DTYPES, Kind, MemoryManager
from magmadnn.memory.dtypes import COMPLEX
from magmadnn.memory.foreign import OnDevice
from magmadnn.ops import reshape, transpose

Shape = tuple[int, ...]
_MOST_PARTS = 64  # of a step between rows
_DTYPES = {*DTYPES.values(), *COMPLEX.values()}


@dataclass(frozen=True)
class View:
    """Which elements of a contiguous block an operand is made of.

    Attributes:
        begin: the first element of the block in its memory.
        block: the block's shape.
        index: what is taken of the block; None for all.
        order: in which order its axes are taken then; None for theirs.
        shape: the operand's.
    """

    begin: int
    block: Shape
    index: tuple[slice | int, ...] | None
    order: Shape | None
    shape: Shape

    @property
    def key(self) -> tuple[Any, ...]:
        """What programs depend on: all but where the block begins."""
        taken = self.index or ()
        index = tuple((i.start, i.stop, i.step) if isinstance(i, slice) else (i,) for i in taken)
        return self.block, index, self.order, self.shape

    def of(self, block: Node) -> Any:
        """The operand, as a node made of the block's."""
        x: Any = block if self.index is None else block[self.index]
        x = x if self.order is None else transpose(x, self.order)
        return x if x.shape == self.shape else reshape(x, self.shape)


@lru_cache(maxsize=1024)
def view_of(shape: Shape, strides: Shape, begin: int, size: int) -> View | None:
    """How elements lie in memory, as a part of a block there; None where no block has them so.

    Args:
        shape: the operand's, without a size of 0.
        strides: elements from one to the next along each axis.
        begin: the first element.
        size: elements of the memory.
    """
    axes = sorted((a for a, n in enumerate(shape) if n > 1), key=lambda a: -strides[a])
    steps, sizes = [strides[a] for a in axes], [shape[a] for a in axes]
    if all(step == math.prod(sizes[k + 1 :]) for k, step in enumerate(steps)):
        order = _order(axes)
        return View(begin, shape if order is None else tuple(sizes), None, order, shape)
    if min(steps) < 1:
        return None
    for parts in range(min(steps[0], _MOST_PARTS), 0, -1):  # rows for each that is taken
        if steps[0] % parts:
            continue
        # a row of units[0] elements has rows of units[1] elements, and so on
        units = list(accumulate(steps[1:], math.gcd, initial=steps[0] // parts))
        rows = (sizes[0] - 1) * parts + 1
        block = (rows, *(a // b for a, b in pairwise(units)), units[-1])
        last = size - math.prod(block)  # where a block may begin at most
        for start in (begin - begin % units[0], min(begin, last)):
            left, index = begin - start, list[slice]()
            for step, unit, count in zip(steps, units, sizes, strict=True):
                first, left = divmod(left, unit)
                index.append(slice(first, first + (count - 1) * (step // unit) + 1, step // unit))
            fits = all(i.stop <= n for i, n in zip(index, block, strict=False))
            if fits and 0 <= start <= last:
                return View(start, block, (*index, left), _order(axes), shape)
    return None


def _order(axes: list[int]) -> Shape | None:
    """How axes that lie in this order are turned to 0, 1, ...; None where they are."""
    order = tuple(sorted(range(len(axes)), key=axes.__getitem__))
    return None if order == tuple(range(len(axes))) else order


@dataclass(frozen=True)
class Given:
    """An operand as a program is fed with it.

    Attributes:
        values: its block on the device, or its values on the host.
        view: which part of the block it is.
    """

    values: OnDevice | Array
    view: View

    @property
    def key(self) -> tuple[Any, ...]:
        """What programs depend on."""
        return isinstance(self.values, OnDevice), self.values.dtype, self.view.key


def lies_on_gpu(memory: MemoryManager) -> bool:
    """Whether the values of now are in the memory of a GPU."""
    return memory.kind in (Kind.DEVICE, Kind.CUDA_MANAGED) or (
        memory.kind is Kind.MANAGED and memory.device_valid
    )


def given(operand: Any, device: int) -> Given | None:
    """An array, or a Tensor, for a program on a device; None where it has to go through the host there.

    Args:
        operand: an ndarray, or a Tensor; what lies on the host is copied from there.
        device: number of the device.
    """
    if isinstance(operand, np.ndarray):
        if operand.dtype not in _DTYPES:
            return None
        return Given(operand, View(0, operand.shape, None, None, operand.shape))
    memory, shape = operand.memory, operand.shape
    if not operand.size:
        return None
    if not lies_on_gpu(memory):
        return given(operand.read(), device)
    if operand.device != device:
        return None
    item = operand.dtype.itemsize
    strides = tuple(step // item for step in operand.strides)
    view = view_of(shape, strides, operand.offset, memory.size)
    if view is None:
        return None
    place = memory.device_pointer() + view.begin * item
    return Given(OnDevice(view.block, operand.dtype, place, device, memory), view)
