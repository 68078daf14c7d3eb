"""Asynchronous gradient descent: rank 0 holds the parameters, the others send it gradients when they have
them.

A worker gets parameters and the number of a batch, computes its gradient, and sends it; the server updates
at once and sends the newest parameters with the next number. Meanwhile others have updated, so a gradient is
stale by so many updates. The server divides the learning rate by that number, and lets no gradient become
more stale than it
is told: it keeps those of fast workers back until the slowest has sent its own.

Messages are arrays: to a worker what to do, then parameters; to the server the sums of a shard (`step.py`).
Where all GPUs reach each other, parameters and gradients are no messages: the server's GPU copies them
(`peers/parameters.py`), and the update runs where the gradient has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from magmadnn.comm import Communicator, Request
from magmadnn.errors import ArgumentError, MagmaDNNError, NumericError
from magmadnn.graph.op import Array
from magmadnn.runtime.agreement import ALONE, agreeing
from magmadnn.runtime.step_memory import StepMemory
from magmadnn.tensor.operation import Feeds

from .buckets import size_of
from .data_parallel import DataParallel
from .peers.served import PeerServed, nothing
from .step import ParallelStep
from .tree import TreeSum

COMPUTE, PAUSE, STOP, FAIL = range(4)  # what a worker is told
_ORDER, _VALUES, _SUMS = 1, 2, 16  # tags
_RATE = "learning_rate"


class AsyncSGD(DataParallel):
    """Asynchronous stochastic gradient descent with a parameter server, bounded staleness and a rate that
    heeds it.

    Rank 0 updates and computes no gradients; each other rank computes gradients of whole batches. An update
    from a gradient that is stale by s > 1 updates has the learning rate divided by s (Zhang, Gupta, Lian,
    Liu: "Staleness-aware Async-SGD", 2016). Results depend on which worker was faster: they do not repeat,
    except on simulated ranks. Running statistics of layers are those of the batch that came last.

    Args:
        communicator: the ranks, at least 2; None for all of `magmadnn launch`.
        staleness: updates that may come between the parameters of a gradient and its own update; None for any
            number. At least workers - 1; workers that are much faster than others wait then.
        computed: as for `DataParallel`, on workers.

    Raises:
        ArgumentError: if staleness is negative.
    """

    travelling: ClassVar[tuple[str, ...] | None] = None

    def __init__(
        self,
        communicator: Communicator | None = None,
        *,
        staleness: int | None = None,
        computed: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__(communicator, shards=1, computed=computed)
        if staleness is not None and (isinstance(staleness, bool) or not staleness >= 0):
            raise ArgumentError(f"AsyncSGD: staleness must be at least 0, got {staleness!r}")
        self.staleness = staleness

    def __repr__(self) -> str:
        return f"AsyncSGD(staleness={self.staleness})"

    @property
    def settings(self) -> dict[str, Any]:
        """What results depend on: a batch is whole, and nobody adds gradients up."""
        return {"asynchronous": True}

    def step_class(self) -> type[ParallelStep]:
        """What computes and shares gradients."""
        return AsyncStep

    def settle(self, device: str) -> None:
        """Be told where the model is: a batch is one worker's on GPUs too."""

    def own_rows(self, count: int) -> slice:
        """None of the rows for the server, all of them for a worker."""
        return slice(0, 0 if self.workers().rank == 0 else count)


@dataclass
class _Way:
    """A worker as the server sees it.

    Attributes:
        batch: the number of the batch that it computes.
        version: updates that its parameters had.
        sums: what is received from it.
        requests: of these.
    """

    batch: int
    version: int
    sums: list[Array]
    requests: list[Request]


class AsyncStep(PeerServed):
    """One update of the server, or one gradient of a worker."""

    _way: AsyncSGD

    def _joined(self) -> TreeSum:
        if self._comm.size < 2:
            raise ArgumentError("AsyncSGD: needs a server and a worker, so 2 ranks or more; got 1")
        if self._shared.groups is not None:
            raise ArgumentError(
                "AsyncSGD: each gradient has an update of its own: give accumulate=1"
            )
        bound, least = self._way.staleness, self._comm.size - 2
        if bound is not None and bound < least:
            raise ArgumentError(
                f"AsyncSGD: staleness={bound} is too little for {least + 1} workers, which begin "
                f"together: give at "
                f"least {least}"
            )
        self._busy: dict[int, _Way] = {}
        self._place = (-1, 0, 0)  # epoch, batch, batches
        self._given = 0  # batches of the epoch that workers have got
        self._first_counts: list[int] = []
        self._version = 0
        self.stale: list[int] = []  # of each update
        self._done: tuple[int, float] = (0, 0.0)
        return TreeSum(_one_of(self._comm), 1)

    # --- the server -------------------------------------------------------------------------------

    def next_batch(self, rows: int, epoch: int, batch: int, batches: int | None, size: int) -> None:
        """Be told where training is."""
        if not self._busy and (epoch, batch) != self._place[:2]:
            self._given = batch
            self._first_counts = self._counts()
        if batches is None:
            raise ArgumentError("AsyncSGD: must know how many batches an epoch has: give arrays")
        self._place = epoch, batch, batches

    def last_batch(self) -> tuple[int, float] | None:
        """Samples and weight of the batch whose gradient has come."""
        return self._done

    def run(
        self, feeds: Feeds | None = None, watch: Any = None, guard: bool = False
    ) -> list[Array]:
        """One update from the gradient that comes first; the loss and the outputs of its batch.

        Raises:
            NumericError: if it has NaN or infinity.
            MagmaDNNError: if a worker has failed.
        """
        epoch, _, batches = self._place
        for rank in range(1, self._comm.size):
            if rank not in self._busy and self._given < batches:
                self._send(rank, COMPUTE)
        scalars, rate = dict(self.scalars()), self._settings.node(_RATE)
        rank = self._arrived()
        found = self._busy.pop(rank)
        for request in found.requests:
            request.wait()
        small, *vectors = found.sums
        stale, goes_on = self._version - found.version, self._given < batches
        if rate in scalars:
            scalars[rate] = scalars[rate] / max(stale, 1)
        if small[0]:
            raise MagmaDNNError(
                f"rank {rank} of {self._comm.size} could not compute batch {found.batch + 1}, and says why"
            )
        if guard and not np.isfinite(small).all():
            raise NumericError(
                f"the loss of batch {found.batch + 1} of epoch {epoch + 1} has NaN or infinity"
            )
        if self._peers is None:
            self._apply(small, vectors, scalars, guard)
        else:
            self._peers.fetch(rank)
            self._apply_there(
                small, scalars, guard, partial(self._peers.give, rank) if goes_on else nothing
            )
        self._version += 1
        self.stale.append(stale)
        self._done = int(small[2]), float(small[-1])
        if goes_on:
            self._send(rank, COMPUTE, True)
        return self.outputs_of(small)

    def _send(self, rank: int, what: int, is_given: bool = False) -> None:
        """Tell a worker what to do, and give it parameters, which may be on their way already."""
        epoch, _, _ = self._place
        order = np.array([what, epoch, self._given, *self._first_counts], np.int64)
        if self._peers is not None:
            if not is_given:
                self._peers.give(rank)
            self._peers.done()
        self._comm.send(order, rank, tag=_ORDER)
        if self._peers is None:
            for array in self._values():
                self._comm.send(array, rank, tag=_VALUES)
        if what == COMPUTE:
            sums = self._received_sums()
            requests = [
                self._comm.start_recv(one, rank, tag=_SUMS + k) for k, one in enumerate(sums)
            ]
            self._busy[rank] = _Way(self._given, self._version, sums, requests)
            self._given += 1

    def _arrived(self) -> int:
        """The worker whose gradient is used next: of those that may, the one that has come first."""
        ranks = [rank for rank in self._busy if self._may(rank)]
        last = [self._busy[rank].requests[-1] for rank in ranks]
        wait_any = getattr(self._comm, "wait_any", None)  # by the clocks of simulated ranks
        if wait_any is not None:
            first: int = wait_any(last)
            return ranks[first]
        while True:
            for rank, request in zip(ranks, last, strict=True):
                if request.done():
                    return rank
            time.sleep(0)

    def _may(self, rank: int) -> bool:
        """Whether all others, the oldest first, can come next and be no more stale than they may."""
        bound, first = self._way.staleness, self._version + 1
        others = sorted(w.version for r, w in self._busy.items() if r != rank)
        return bound is None or all(first + k - v <= bound for k, v in enumerate(others))

    def pause(self, what: int = PAUSE) -> None:
        """Wait for gradients that are under way, which do not count, and tell workers what comes."""
        if self._comm.rank:
            return
        for found in self._busy.values():
            for request in found.requests:
                request.wait()
        self._busy.clear()
        for rank in range(1, self._comm.size):
            self._send(rank, what)

    # --- a worker ---------------------------------------------------------------------------------

    def serve(self, batch_of: Callable[[int, int], tuple[Mapping[Any, Array], float]]) -> int:
        """Compute gradients until told otherwise; what was told then.

        Args:
            batch_of: the feeds, and the weight, of a batch of an epoch.
        """
        order = np.zeros(3 + len(self._counters), np.int64)
        ahead: tuple[tuple[int, int], Any] | None = None
        while True:
            self._comm.recv(order, 0, tag=_ORDER)
            if self._peers is None:
                values = self._empty_values()
                for one in values:
                    self._comm.recv(one, 0, tag=_VALUES)
                self._take(values)
            else:
                self._peers.take()
            what, epoch, number, *counts = order.tolist()
            if what != COMPUTE:
                return int(what)
            failed: Exception | None = None
            try:
                known, ahead = ahead, None
                is_known = known is not None and known[0] == (epoch, number)
                found_ahead = known[1] if known and is_known else None
                if isinstance(found_ahead, Exception):
                    raise found_ahead
                feeds, weight = found_ahead or batch_of(epoch, number)
                nodes = {getattr(k, "node", k): v for k, v in feeds.items()}
                self._count_on(counts, number)
                with agreeing(ALONE):
                    found = self._sums_of(nodes)
                found[0] = np.append(found[0], weight)
            except Exception as error:
                failed = error
                found = self._received_sums()
                found[0][0] = 1.0
            if self._way.computed is not None:
                self._way.computed(self._comm)
            for k, one in enumerate(found):
                self._comm.send(np.ascontiguousarray(one), 0, tag=_SUMS + k)
            if failed is not None:
                raise failed
            if self._peers is not None:
                # while the server updates: the batch that mostly comes next
                following = epoch, number + self._comm.size - 1
                ahead = following, _tried(batch_of, following)

    def _empty_values(self) -> list[Array]:
        """Arrays for what `_values` gives."""
        lengths: dict[Any, int] = {}
        for node in self._held():
            lengths[node.dtype] = lengths.get(node.dtype, 0) + size_of(node.spec)
        return [np.empty(n, dtype) for dtype, n in lengths.items()]

    # --- both -------------------------------------------------------------------------------------

    def _most_vectors(self) -> float:
        """The server has a gradient of each worker, a worker its own."""
        return 1 if self._comm.rank else self._comm.size - 1

    def _memory_for(self, sizes: Mapping[str, int], workspace: bool) -> StepMemory | None:
        """As `ParallelStep`; parameters travel as vectors."""
        found = super()._memory_for(sizes, workspace)
        more = 0 if self._peers is None else self._peers.nbytes
        return (
            None if found is None else replace(found, copies=found.copies + found.parameters + more)
        )

    def _received_sums(self) -> list[Array]:
        if self._peers is not None:
            return [np.zeros(self._small_length + 1)]
        small, *vectors = self._likes()
        return [np.append(small, 0.0), *vectors]

    def _counts(self) -> list[int]:
        return [int(node.value.read()) for node, _ in self._counters]

    def end_epoch(self) -> None:
        """Counters of random numbers go on by the batches of the epoch."""
        if self._first_counts and not self._comm.rank:
            self._count_on(self._first_counts, self._given)


def _tried(batch_of: Callable[[int, int], Any], place: tuple[int, int]) -> Any:
    """A batch, or the error for who wants it."""
    try:
        return batch_of(*place)
    except Exception as error:
        return error


def _one_of(comm: Communicator) -> Any:
    """A group of this rank alone, for sums of one shard."""
    from magmadnn.comm import SerialCommunicator

    return SerialCommunicator()
