"""Synchronous training with a parameter server: rank 0 adds up gradients and updates, and gives out
parameters.

The sums are those of `DataParallel`, so are all bits. Only rank 0 has moments of the optimiser while an
epoch runs; at its end all ranks get them. Each batch the gradients of all ranks go to one, and parameters
from one to all: more for one link to carry than in `DataParallel`, where each rank adds up its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from magmadnn.errors import NumericError
from magmadnn.graph.op import Array
from magmadnn.runtime.step_memory import StepMemory

from .data_parallel import DataParallel
from .step import ParallelStep


class ParameterServer(DataParallel):
    """Synchronous training in which rank 0 holds the optimiser; the same bits as `DataParallel`.

    Args:
        communicator, shards, computed: as for `DataParallel`.
    """

    travelling: ClassVar[tuple[str, ...] | None] = ("shards",)

    def __repr__(self) -> str:
        return f"ParameterServer({self._shown_shards})"

    def step_class(self) -> type[ParallelStep]:
        """What computes and shares gradients."""
        return ServerStep


class ServerStep(ParallelStep):
    """One step, whose update rank 0 makes."""

    def collect(self) -> None:
        """Give all ranks the moments of rank 0."""
        self.share_state()

    def _most_vectors(self) -> float:
        """On rank 0 the blocks of all ranks."""
        if self._comm.rank or self._comm.size == 1:
            return super()._most_vectors()
        every = range(self._way.parts)
        own = len(self._tree.blocks(0, every))
        others = sum(len(self._tree.blocks(rank, every)) for rank in range(self._comm.size))
        return max(own + others, super()._most_vectors())

    def _memory_for(self, sizes: Mapping[str, int], workspace: bool) -> StepMemory | None:
        """As `ParallelStep`; parameters travel as vectors."""
        found = super()._memory_for(sizes, workspace)
        return None if found is None else replace(found, copies=found.copies + found.parameters)

    def _share(
        self, small: Array, parts: Sequence[list[Array]], likes: Sequence[Array], there: Sequence[int],
        guard: bool,
    ) -> None:  # fmt: skip
        comm, wrong = self._comm, None
        vectors = [
            self._tree.reduced_share(own, like, there, [0, *[len(like)] * comm.size])
            for own, like in zip(parts, likes, strict=True)
        ]
        told = np.zeros(1, np.int64)
        if comm.rank == 0:
            try:
                self._apply(small, vectors, self.scalars(), guard)
            except NumericError as error:
                wrong = error
                told[0] = 1
        if comm.broadcast(told)[0]:
            self.share_state()  # nobody goes on from moments of the last epoch
            raise wrong or NumericError(
                "the update on rank 0 made NaN or infinity; nothing was updated"
            )
        values = self._values()
        for one in values:
            comm.broadcast(one)
        self._take(values)
        if comm.rank:
            self._count.value.write(np.asarray(self.count + 1, np.int64))
