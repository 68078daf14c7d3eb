"""Synchronous training with a parameter server: rank 0 adds up gradients and updates, and gives out
parameters.

The sums are those of `DataParallel`, so are all bits. Only rank 0 has moments of the optimiser while an
epoch runs; at its end all ranks get them. Each batch the gradients of all ranks go to one, and parameters
from one to all: more for one link to carry than in `DataParallel`, where each rank adds up its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from magmadnn.comm.communicator import Json
from magmadnn.errors import NumericError
from magmadnn.graph import Node
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.agreement import ALONE, agreeing
from magmadnn.runtime.step_memory import StepMemory

from .data_parallel import DataParallel
from .peers.parameters import PeerParameters
from .peers.served import PeerServed
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


class ServerStep(PeerServed):
    """One step, whose update rank 0 makes."""

    is_worker_too = True

    def offers(self) -> Json:
        """As `PeerServed`, where each rank computes one part of a batch."""
        return super().offers() if self._way.parts == self._comm.size else "none"

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
        if self._peers is not None:
            self._share_there(self._peers, small, there, guard)
            return
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

    # --- from GPU to GPU --------------------------------------------------------------------------

    def _likes(self) -> list[Array]:
        found = super()._likes()
        return found if self._peers is None else found[:1]

    def _rows_of(
        self, shard: int, own: Mapping[Node, Any], bounds: Sequence[int]
    ) -> dict[Node, Any]:
        if self._peers is None or not all(isinstance(one, OnDevice) for one in own.values()):
            return super()._rows_of(shard, own, bounds)
        return dict(own)  # a rank has one shard, whose rows these are

    def _share_there(
        self, peers: PeerParameters, small: Array, there: Sequence[int], guard: bool
    ) -> None:
        """As `_share`, by rank 0's GPU; all have computed their gradients before they added up `small`."""
        told, wrong = np.zeros(1, np.int64), None
        if self._comm.rank == 0:
            try:
                with agreeing(ALONE):
                    peers.add_up(there, self._compiling)
                self._apply_there(small, self.scalars(), guard, self._give)
            except NumericError as error:
                wrong = error
                told[0] = 1
            peers.done()
        if self._comm.broadcast(told)[0]:
            self.share_state()  # nobody goes on from moments of the last epoch
            raise wrong or NumericError(
                "the update on rank 0 made NaN or infinity; nothing was updated"
            )
        if self._comm.rank:
            peers.take()
            self._count.value.write(np.asarray(self.count + 1, np.int64))

    def _give(self) -> None:
        assert self._peers is not None
        for rank in range(1, self._comm.size):
            self._peers.give(rank)
