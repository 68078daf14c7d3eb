"""Micro-batches of a stage whose values cross, are kept and are added up on GPUs, not on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from magmadnn.backends.cuda import device_memory
from magmadnn.comm import Communicator
from magmadnn.errors import MagmaDNNError
from magmadnn.graph import Node
from magmadnn.graph.node import Updated
from magmadnn.graph.op import Array
from magmadnn.parallel.peers.vectors import reading, vectors_on
from magmadnn.runtime import Executable
from magmadnn.runtime.agreement import ALONE, agreeing
from magmadnn.runtime.binding import converted
from magmadnn.runtime.variables import tensor_of
from magmadnn.tensor import Operation

from .peer_stages import PeerStages, can_cross
from .programs import Stage


class PeerPieces:
    """What a stage does with a micro-batch, where all GPUs of a pipeline reach each other.

    Args:
        comm: the ranks.
        stages: of all of them.
        forward: the program of this rank's stage.
        counting: what its update gives,
        updates: and writes.
        way: executor, precision and device of programs.
        computed: called after each run.

    Attributes:
        peers: what is copied from GPU to GPU, after `meet`.
        why_not: what `meet` found wrong.
    """

    def __init__(
        self, comm: Communicator, stages: Sequence[Stage], forward: Executable, counting: Node,
        updates: Sequence[Updated], way: Mapping[str, Any], computed: Callable[[], None],
    ) -> None:  # fmt: skip
        assert forward.device is not None
        self._comm, self._stages, self._computed = comm, stages, computed
        self._stage, self._device = stages[comm.rank], forward.device
        self._vectors = vectors_on(self._device, self._stage.buckets.lengths)
        count = len(self._stage.returned)
        pairs = zip(self._vectors.values(), self._stage.backward[count:], strict=False)
        sums = [(v.node, (v + Operation(added)).node) for v, added in pairs]
        self._forward = forward
        self._backward = Executable(self._stage.backward[:count], sums, training=True, **way)
        graph = reading(self._vectors, [counting], updates, self._stage.buckets)
        self._update = Executable(*graph, training=True, **way)
        self._at_once = False  # whether all ranks ask once whether an update is finite
        self.peers: PeerStages | None = None
        self.why_not = ""

    def can(self) -> bool:
        """Whether all of this stage can stay on its GPU."""
        programs = [self._forward, *([self._backward] if self._stage.backward else [])]
        return can_cross(self._stage, programs, self._device)

    def meet(self, sizes: Mapping[str, int], pieces: int) -> bool:
        """Have buffers for micro-batches of these sizes, as all ranks ask for; whether there are."""
        if self.peers is None or not self.peers.fits(sizes, pieces):
            self.peers = None  # its buffers are given back before there are others
            found = PeerStages.among(self._comm, self._stages, self._device, sizes, pieces)
            if isinstance(found, str):
                self.why_not = found
            else:
                self.peers = found
                self._at_once = all(self._comm.exchange(self._update.can_update))
        return self.peers is not None

    def fed(self, feeds: Mapping[Node, Any]) -> dict[Node, Any]:
        """Rows of a micro-batch in the dtypes that this stage takes: what is converted before a batch begins
        is not waited for between micro-batches.
        """
        programs = [one.program for one in (self._forward, self._backward)]
        own = {node for program in programs for node in program.placeholders}
        found = dict(feeds)
        for node in own & feeds.keys():
            with suppress(MagmaDNNError):  # it comes again where others are told of it
                found[node] = converted(node, feeds[node], self._device)
        return found

    def begin(self, pieces: Sequence[Any]) -> None:
        """A batch of these micro-batches begins: sums of gradients are zeros."""
        assert self.peers is not None
        self.peers.begin([piece.sizes for piece in pieces])
        for vector in self._vectors.values():
            memory = tensor_of(vector.node).memory
            address = memory.device_pointer(write=True)
            device_memory(self._device).fill(address, b"\0", memory.nbytes)

    def forward(self, run: Any, piece: Any, number: int) -> None:
        """A micro-batch forward, from what comes to what goes on."""
        peers = self.peers
        assert peers is not None
        fed, kept = {**piece.feeds, **peers.coming(0, number, piece.sizes)}, peers.take()
        if self._has_run(run, self._forward, fed, peers.forward_goals(number, kept), 0, number):
            piece.saved, piece.feeds = [kept], {**fed, **peers.saved(kept, piece.sizes)}
        else:
            peers.let_go(kept)
            for crossing in self._stage.departures:
                peers.nothing(crossing, 0, number)
        self._tell(run, piece, 0, number)

    def back(self, run: Any, piece: Any, number: int) -> None:
        """A micro-batch backward."""
        peers, stage = self.peers, self._stage
        assert peers is not None
        fed = {**piece.feeds, **peers.coming(1, number, piece.sizes)}
        program = self._backward if piece.saved is not None and stage.backward else None
        if not self._has_run(run, program, fed, peers.back_goals(number), 1, number):
            for crossing, _ in stage.returned:
                peers.nothing(crossing, 1, number)
        if piece.saved is not None:
            peers.let_go(*piece.saved)
        self._tell(run, piece, 1, number)

    def _has_run(
        self, run: Any, executable: Executable | None, fed: Mapping[Node, Any],
        goals: Sequence[int], way: int, number: int,
    ) -> bool:  # fmt: skip
        """Prepare a run, wait for what comes, and begin; whether that went well."""
        peers, start = self.peers, None
        assert peers is not None
        try:
            if executable is not None:
                own = _for(executable, fed)
                with agreeing(ALONE):
                    start = executable.into(own, goals)
        except Exception as error:
            run.failed = run.failed or error
        peers.wait(way, number)
        if executable is None or start is None:
            return False
        try:
            with agreeing(ALONE):
                peers.run(start, executable, own, goals)
        except Exception as error:
            run.failed = run.failed or error
            return False
        return True

    def _tell(self, run: Any, piece: Any, way: int, number: int) -> None:
        """Let others know of what goes to them, which may be zeros."""
        assert self.peers is not None
        try:
            self.peers.done(way, piece.sizes)
        except Exception as error:
            run.failed = run.failed or error
        self._computed()
        run.sending += self.peers.tell(way, number)

    def let_go_on(self) -> None:
        """Let the GPU go on: the batch is given up."""
        if self.peers is not None:
            self.peers.let_go_on()

    def ends(self, run: Any) -> None:
        """When all micro-batches are on their way: wait for the GPU, and add up what it reports."""
        assert self.peers is not None
        self.peers.meet()
        try:
            found = self.peers.ends(len(run.pieces))
        except Exception as error:
            run.failed = run.failed or error
            return
        for values in found:
            for (place, _), value in zip(self._stage.reported, values, strict=True):
                run.reports[place] += value

    def apply(self, fed: Mapping[Node, Array], guard: bool) -> None:
        """Update from the sums of gradients."""
        program = self._update.program
        own = {node: np.asarray(fed[node], node.dtype) for node in program.placeholders}
        if guard and self._at_once:
            self._update.update(own)
        else:
            self._update.run(own, guard=guard)


def _for(executable: Executable, feeds: Mapping[Node, Any]) -> dict[Node, Any]:
    """Feeds for what a program takes, where they lie."""
    return {node: feeds[node] for node in executable.program.placeholders}
