"""How stages of a pipeline on GPUs learn that a micro-batch's values have come.

By flags, where each rank is a process with a GPU of its own: when a stage's GPU has written values to
another's memory it writes a number behind them, for which that other GPU waits before it computes with them.
The hosts hand over a whole batch without waiting, and meet once at its end, before they wait for their GPUs:
from then on all flags will come. Elsewhere, and in the first batch with micro-batches of new sizes, for which
programs are compiled and memory is taken, the host waits for its GPU and sends a message.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.backends.cuda.stream_flags import BYTES
from magmadnn.comm import Communicator
from magmadnn.comm.gpu.peer_buffers import PeerBuffers, place_of
from magmadnn.errors import CommunicationError, DeviceError
from magmadnn.graph.op import Array

Ranks = tuple[Mapping[int, int], Mapping[int, int]]
"""On the way forward and back: other ranks, each with the tag of what crosses, which both know."""


class Turns(Protocol):
    """What a stage waits for and tells, on the way forward (0) or back (1) of a micro-batch."""

    def begin(self) -> None:
        """A batch begins on all ranks."""
        ...

    def wait(self, way: int, number: int) -> None:
        """What is computed from now on finds all that comes of a micro-batch."""
        ...

    def written(self, way: int) -> None:
        """What was computed is where it goes, if others are told of it; else the GPU goes on.

        Raises:
            DeviceError: if this rank's GPU has failed.
        """
        ...

    def tell(self, way: int, number: int) -> list[tuple[Any, Array]]:
        """Others find what was written for a micro-batch; messages under way, and what they send."""
        ...

    def meet(self) -> None:
        """All micro-batches of a batch have been handed over. Collective."""
        ...

    def let_go(self) -> None:
        """Let this GPU go on without what others have not sent, as the batch is given up."""
        ...


class HostTurns:
    """By messages of the host.

    Args:
        comm: the ranks.
        buffers: what values are written to.
        coming: from whom something comes.
        going: to whom.
    """

    def __init__(
        self, comm: Communicator, buffers: PeerBuffers, coming: Ranks, going: Ranks
    ) -> None:
        self._comm, self._buffers = comm, buffers
        self._coming, self._going = coming, going
        self._token, self._come = np.zeros(1, np.uint8), np.empty(1, np.uint8)

    def begin(self) -> None:
        """Messages follow each other: nothing to do."""

    def wait(self, way: int, number: int) -> None:
        """See `Turns`."""
        for rank, tag in self._coming[way].items():
            self._comm.recv(self._come, rank, tag=tag + way)

    def written(self, way: int) -> None:
        """See `Turns`."""
        if self._going[way]:
            self._buffers.done()

    def tell(self, way: int, number: int) -> list[tuple[Any, Array]]:
        """See `Turns`."""
        return [
            (self._comm.start_send(self._token, rank, tag=tag + way), self._token)
            for rank, tag in self._going[way].items()
        ]

    def meet(self) -> None:
        """Each message was waited for: nothing to do."""

    def let_go(self) -> None:
        """The GPU waits for nothing."""


class DeviceTurns:
    """By flags in the GPUs' memory. Made by `among`.

    A rank has a number for each other one, way and micro-batch: how many batches that one has written it in.

    Args:
        comm: the ranks.
        buffers: with the numbers in a buffer of `flag_bytes`.
        which: number of that buffer.
        coming, going: as for `HostTurns`.
        device: number of this rank's GPU.
        pieces: micro-batches of a batch at most.
    """

    def __init__(
        self, comm: Communicator, buffers: PeerBuffers, which: int, coming: Ranks, going: Ranks,
        device: int, pieces: int,
    ) -> None:  # fmt: skip
        self._comm, self._engine, self._memory = comm, device_engine(device), device_memory(device)
        self._buffers, self._pieces, self._turn = buffers, pieces, 0
        own = buffers.own[which]
        self._own = own, flag_bytes(comm.size, pieces)
        self._coming = [[own + self._place(rank, way) for rank in coming[way]] for way in range(2)]
        self._going = [
            [buffers.of[rank][which] + self._place(comm.rank, way) for rank in going[way]]
            for way in range(2)
        ]

    def _place(self, writer: int, way: int) -> int:
        """Where the numbers of a rank begin in a buffer."""
        return BYTES * (2 * writer + way) * self._pieces

    @classmethod
    def among(
        cls, comm: Communicator, buffers: PeerBuffers, which: int, coming: Ranks, going: Ranks,
        device: int, pieces: int,
    ) -> DeviceTurns | None:  # fmt: skip
        """The flags of this rank, tried; None on all ranks where some cannot have them. Collective.

        Ranks that share a GPU cannot: one that waits may keep it from the one that it waits for; nor can
        those of one process, whose hosts may wait for a GPU with locks that others want.
        """
        turns = cls(comm, buffers, which, coming, going, device, pieces)
        turns._memory.fill(turns._own[0], b"\0", turns._own[1])
        buffers.done()
        places = comm.exchange(list(place_of(device)))
        problem = any(len(set(one)) < comm.size for one in zip(*places, strict=True))
        try:
            if not problem:
                turns._turn = 1
                for number in range(pieces):
                    for way in range(2):
                        turns.tell(way, number)
                buffers.done()
        except DeviceError:
            problem = True
        if any(comm.exchange(problem)) or any(comm.exchange(not turns._have_come())):
            return None
        return turns

    def _have_come(self) -> bool:
        """Whether all flags are those of this batch."""
        found = np.empty(self._own[1], np.uint8)
        self._memory.copy_to_host(found, self._own[0])
        words = found.view(np.uint32)
        starts = [(first - self._own[0]) // BYTES for one in self._coming for first in one]
        return all(bool((words[at : at + self._pieces] == self._turn).all()) for at in starts)

    def begin(self) -> None:
        """See `Turns`."""
        self._turn = (self._turn + 1) % (1 << 32)

    def wait(self, way: int, number: int) -> None:
        """See `Turns`; the host goes on."""
        self._engine.hear(_at(self._coming[way], number), self._turn)

    def written(self, way: int) -> None:
        """The GPU writes flags behind values: nothing to do."""

    def tell(self, way: int, number: int) -> list[tuple[Any, Array]]:
        """See `Turns`; the host goes on."""
        self._engine.tell(_at(self._going[way], number), self._turn)
        return []

    def meet(self) -> None:
        """See `Turns`: once all ranks have come here, no GPU waits for what nobody will send.

        Raises:
            CommunicationError: if ranks are in different batches, as after an interrupt of one.
        """
        most, least = self._comm.all_reduce(np.array([self._turn, -self._turn]), op="max")
        if most != -least:
            raise CommunicationError(
                f"Pipeline: rank {self._comm.rank} is in batch {self._turn} since the stages met, others in "
                f"batches from {-least} to {most}: make the model anew on all ranks"
            )

    def let_go(self) -> None:
        """See `Turns`: beside the stream that waits."""
        words = np.full(self._own[1] // BYTES, self._turn, np.uint32)
        self._memory.copy_beside(self._own[0], words.view(np.uint8))
        self._memory.wait_beside()


def flag_bytes(ranks: int, pieces: int) -> int:
    """Bytes of the numbers of one rank."""
    return BYTES * 2 * ranks * pieces


def _at(starts: Sequence[int], number: int) -> list[int]:
    return [start + BYTES * number for start in starts]


class BothTurns:
    """How a stage and the others tell each other: `turns` is that of the present batch. Collective to make.

    Args:
        comm, buffers, coming, going, device, pieces: as for `DeviceTurns`; flags are in the last buffer.
    """

    def __init__(
        self, comm: Communicator, buffers: PeerBuffers, coming: Ranks, going: Ranks, device: int,
        pieces: int,
    ) -> None:  # fmt: skip
        last = len(buffers.own) - 1
        self.by_flags = DeviceTurns.among(comm, buffers, last, coming, going, device, pieces)
        self._by_hosts = HostTurns(comm, buffers, coming, going)
        self.turns: Turns = self._by_hosts
        self._known = set[Hashable]()

    def begin(self, sizes: Hashable) -> None:
        """A batch with micro-batches of these sizes begins, as on all ranks."""
        self.turns = self._by_hosts
        if self.by_flags is not None and sizes in self._known:
            self.turns = self.by_flags
        self._known.add(sizes)
        self.turns.begin()
