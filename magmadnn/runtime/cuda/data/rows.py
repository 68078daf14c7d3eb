"""Rows of arrays on a device, gathered there again and again into the same memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.backends.cuda.engine import Graph
from magmadnn.compiler.cuda.fused.step_ends import FetchPart, fetch
from magmadnn.memory.foreign import OnDevice

from .arrays import empty, node_of
from .block import Block

_SIZES = 4  # of batches whose launches are kept


class GatheredRows:
    """Batches of rows, one at a time: one copy of their numbers and one launch for all arrays.

    Args:
        arrays: at least one, all on one device, of as many rows.
        most: rows of a batch at most.
    """

    def __init__(self, arrays: Sequence[OnDevice], most: int) -> None:
        self.arrays, self.most, self._device = tuple(arrays), most, arrays[0].device
        self._made = [empty((most, *a.shape[1:]), a.dtype, self._device) for a in arrays]
        self._head = 2 + len(arrays)  # batches before; where arrays and numbers of rows lie
        self._numbers = np.zeros(self._head + most, np.int64)
        self._block = Block(self._numbers.nbytes, self._device)
        self._numbers[1] = self._block.address + 8 * self._head
        self._fetching = lru_cache(_SIZES)(self._launch)

    def take(self, rows: NDArray[np.int64]) -> list[OnDevice]:
        """These rows of each array, in this order, until the next call."""
        count, head = len(rows), self._head
        self._numbers[2:head] = [array.address for array in self.arrays]  # settles copies
        self._numbers[head : head + count] = rows
        told = self._numbers[: head + count].view(np.uint8)
        device_memory(self._device).copy_to_device(self._block.address, told)
        if count:
            self._fetching(count).launch()
        return [made[:count] for made in self._made]

    def _launch(self, count: int) -> Graph:
        first, order = self._block.address, self._block.address + 8
        parts = []
        for k, (array, made) in enumerate(zip(self.arrays, self._made, strict=True)):
            part = FetchPart(array.dtype.name, array.dtype.name)
            columns, source = math.prod(array.shape[1:]), order + 8 * (k + 1)
            parts.append((part, count, columns, source, order, made.place))
        engine = device_engine(self._device)
        return engine.graph([node_of(engine, fetch(first, 0, parts))])
