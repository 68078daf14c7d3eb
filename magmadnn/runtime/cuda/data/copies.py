"""Several copies by one launch, also between GPUs that see each other's memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.backends.cuda.engine import Graph
from magmadnn.compiler.cuda.fused.step_ends import FetchPart, fetch
from magmadnn.compiler.kernels.formula import KEPT

from .arrays import node_of
from .block import Block

_MOST = 64  # arrays: a kernel is compiled for their number


class CopiesAtOnce:
    """Copies of arrays to places that mostly stay the same.

    Args:
        arrays: dtype and number of elements of each; see `can`.
        device: number of the GPU that copies.
    """

    def __init__(self, arrays: Sequence[tuple[str, int]], device: int) -> None:
        self._arrays, self._device = [one for one in arrays if one[1]], device
        self._has = [bool(count) for _, count in arrays]
        self._block = Block(8 * (1 + len(self._arrays)), device)
        self._sources: tuple[int, ...] = ()
        self._goals: tuple[int, ...] = ()
        self._graph: Graph | None = None

    @staticmethod
    def can(arrays: Sequence[tuple[str, int]]) -> bool:
        """Whether there are not too many arrays, of dtypes that kernels read."""
        return 0 < len(arrays) <= _MOST and all(dtype in KEPT for dtype, _ in arrays)

    def begin(self, sources: Sequence[int], goals: Sequence[int]) -> None:
        """Begin to copy between these addresses, after all that was launched."""
        if (there := tuple(sources)) != self._sources:
            words = [0, *(one for one, has in zip(there, self._has, strict=True) if has)]
            told = np.array(words, np.int64).view(np.uint8)
            device_memory(self._device).copy_to_device(self._block.address, told)
            self._sources = there
        if self._graph is None or (to := tuple(goals)) != self._goals:
            self._goals = to = tuple(goals)
            self._graph = self._made([one for one, has in zip(to, self._has, strict=True) if has])
        self._graph.launch()

    def _made(self, goals: Sequence[int]) -> Graph:
        first, parts = self._block.address, []
        for k, ((dtype, count), goal) in enumerate(zip(self._arrays, goals, strict=True)):
            parts.append((FetchPart(dtype, dtype), 1, count, first + 8 * (k + 1), 0, goal))
        engine = device_engine(self._device)
        return engine.graph([node_of(engine, fetch(first, 0, parts))])
