"""Activations and their gradients between the stages of a pipeline, from GPU to GPU.

A stage has a buffer with a place for each value that comes to it, of each micro-batch of a batch. The stage
that computes the value writes it there, and says so (`turns.py`), once for all values that cross between two
stages. A place is written once in a batch, and a batch ends with a sum over all
ranks, before which each has waited for its GPU: so nobody writes what is still being read. What micro-batches
report stays on the GPU until then, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.backends.cuda import device_memory
from magmadnn.comm import Communicator
from magmadnn.comm.gpu.peer_buffers import PeerBuffers, placed
from magmadnn.compiler.plan.memory import nbytes_of
from magmadnn.graph import Node
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import VARIABLE
from magmadnn.graph.op import Array
from magmadnn.memory import Kind, MemoryManager
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime import Executable
from magmadnn.runtime.variables import tensor_of

from .programs import Crossing, Stage
from .turns import BothTurns, flag_bytes

_FORWARD, _BACK = 0, 1


class PeerStages:
    """What a stage copies to others, and keeps on its GPU between the ways of a micro-batch. Made by `among`.

    Args:
        buffers: of all ranks.
        comm: of the host.
        stages: of all ranks.
        device: number of this rank's GPU.
        sizes: of symbolic dimensions in the largest micro-batch.
        pieces: micro-batches of a batch at most.
    """

    def __init__(
        self, buffers: PeerBuffers, comm: Communicator, stages: Sequence[Stage], device: int,
        sizes: Mapping[str, int], pieces: int,
    ) -> None:  # fmt: skip
        self._buffers, self._comm, self._device = buffers, comm, device
        self._stage = stages[comm.rank]
        self._sizes, self._pieces = dict(sizes), pieces
        self._memory = device_memory(device)
        self._places = [_layout(stage, sizes, pieces)[0] for stage in stages]
        saved = [nbytes_of(node, sizes) for _, node in self._stage.saved]
        self._saved_starts, self._saved_bytes = placed(saved)
        reported = [nbytes_of(node, {}) for _, node in self._stage.reported]
        self._report_starts, self._report_bytes = placed(reported)
        nbytes = max(self._report_bytes * pieces, 1)
        self._reports = MemoryManager(nbytes, np.uint8, Kind.DEVICE, device)
        self._free: list[MemoryManager] = []
        returning = [c for c in self._stage.departures if c.returns]
        coming = self._pairs(self._stage.arrivals), self._pairs(returning)
        going = self._pairs(self._stage.departures), self._pairs(c for c, _ in self._stage.returned)
        self._both = BothTurns(comm, buffers, coming, going, device, pieces)
        self._known: dict[
            tuple[Node, int], OnDevice
        ] = {}  # by value and address, of the sizes seen last
        self._known_sizes: Mapping[str, int] = {}

    @classmethod
    def among(
        cls, comm: Communicator, stages: Sequence[Stage], device: int, sizes: Mapping[str, int],
        pieces: int,
    ) -> PeerStages | str:  # fmt: skip
        """Buffers of all stages; why not, on all ranks, where GPUs do not reach each other. Collective."""
        own = stages[comm.rank]
        others = {c.goal for c in own.departures} | {c.source for c, _ in own.returned}
        nbytes = _layout(own, sizes, pieces)[1]
        room = [nbytes, flag_bytes(comm.size, pieces)]
        buffers = PeerBuffers.among(comm, device, room, sorted(others))
        return (
            buffers
            if isinstance(buffers, str)
            else cls(buffers, comm, stages, device, sizes, pieces)
        )

    def fits(self, sizes: Mapping[str, int], pieces: int) -> bool:
        """Whether micro-batches of these sizes have room."""
        return pieces <= self._pieces and all(n <= self._sizes[name] for name, n in sizes.items())

    @property
    def copied(self) -> int:
        """Bytes that this rank has written to other GPUs' memory."""
        return self._buffers.copied

    # --- a micro-batch ----------------------------------------------------------------------------

    def take(self) -> MemoryManager:
        """Memory for what the way back of a micro-batch needs, to be given to `let_go`."""
        if self._free:
            return self._free.pop()
        return MemoryManager(max(self._saved_bytes, 1), np.uint8, Kind.DEVICE, self._device)

    def let_go(self, kept: MemoryManager) -> None:
        """Take memory for another micro-batch."""
        self._free.append(kept)

    def forward_goals(self, number: int, kept: MemoryManager) -> list[int]:
        """Where results of the forward program belong: values that depart, reports, and what is kept."""
        start, reports = (m.device_pointer(write=True) for m in (kept, self._reports))
        reports += number * self._report_bytes
        goals = [self._goal(c, _FORWARD, number) for c in self._stage.departures]
        goals += [reports + at for at in self._report_starts]
        return goals + [start + at for at in self._saved_starts]

    def back_goals(self, number: int) -> list[int]:
        """Where results of the backward program belong: gradients of what came."""
        return [self._goal(c, _BACK, number) for c, _ in self._stage.returned]

    def saved(self, kept: MemoryManager, sizes: Mapping[str, int]) -> dict[Node, OnDevice]:
        """What the backward program is fed of the forward one."""
        start = kept.device_pointer(write=True)
        pairs = zip(self._stage.saved, self._saved_starts, strict=True)
        return {stands: self._seen(node, start + at, sizes, kept) for (node, stands), at in pairs}

    def coming(self, way: int, number: int, sizes: Mapping[str, int]) -> dict[Node, OnDevice]:
        """What a program is fed of other stages, on its way forward (0) or back (1): there after `wait`."""
        own, buffer, stage = self._comm.rank, self._buffers.own[0], self._stage
        pairs = [(c, c.arrived) for c in stage.arrivals]
        if way == _BACK:
            pairs = [(c, stage.seeds[c.value]) for c in stage.departures if c.returns]
        return {
            node: self._seen(
                c.value, buffer + self._place(own, c, way, number), sizes, self._buffers
            )
            for c, node in pairs
        }

    def begin(self, sizes: Sequence[Mapping[str, int]]) -> None:
        """A batch with micro-batches of these sizes begins."""
        self._both.begin(tuple(tuple(one.items()) for one in sizes))

    def wait(self, way: int, number: int) -> None:
        """What is run from now on finds all that comes of a micro-batch."""
        self._both.turns.wait(way, number)

    def run(
        self, start: Callable[[], bool], executable: Executable, feeds: Mapping[Node, Any],
        goals: Sequence[int],
    ) -> None:  # fmt: skip
        """Start what `Executable.into` has made of these feeds.

        Raises:
            what `Executable.run` raises.
        """
        if start():
            return
        found = executable.run(feeds)  # says what is wrong
        for goal, value in zip(goals, found, strict=True):
            self._memory.copy_to_device(
                goal, np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            )

    def done(self, way: int, sizes: Mapping[str, int]) -> None:
        """What goes to others has been computed.

        Raises:
            DeviceError: if this rank's GPU has failed.
        """
        crossings = self._stage.departures
        if way == _BACK:
            crossings = [c for c, _ in self._stage.returned]
        self._buffers.copied += sum(nbytes_of(c.value, sizes) for c in crossings)
        self._both.turns.written(way)

    def tell(self, way: int, number: int) -> list[tuple[Any, Array]]:
        """Say that the values of a micro-batch are where they go; messages under way, and what they send."""
        return self._both.turns.tell(way, number)

    def meet(self) -> None:
        """All micro-batches have been handed over. Collective."""
        self._both.turns.meet()

    def let_go_on(self) -> None:
        """Let this GPU go on without what others have not sent: the batch is given up."""
        self._both.turns.let_go()

    def nothing(self, crossing: Crossing, way: int, number: int) -> None:
        """Write zeros in the place of a value that could not be computed."""
        zeros = np.zeros(nbytes_of(crossing.value, self._sizes), np.uint8)
        self._memory.copy_to_device(self._goal(crossing, way, number), zeros)

    def ends(self, pieces: int) -> list[list[Array]]:
        """Wait until this GPU has read all that came; what each of so many micro-batches has reported."""
        self._buffers.done()
        if not self._report_starts:
            return [[] for _ in range(pieces)]
        found = np.empty(pieces * self._report_bytes, np.uint8)
        self._memory.copy_to_host(found, self._reports.device_pointer())
        nodes = [node for _, node in self._stage.reported]
        return [
            [
                np.ndarray(bind_shape(node.shape, {}), node.dtype, found, base + at)
                for node, at in zip(nodes, self._report_starts, strict=True)
            ]
            for base in range(0, found.size, self._report_bytes)
        ]

    # --- places -----------------------------------------------------------------------------------

    def _goal(self, crossing: Crossing, way: int, number: int) -> int:
        rank = crossing.goal if way == _FORWARD else crossing.source
        return self._buffers.of[rank][0] + self._place(rank, crossing, way, number)

    def _place(self, rank: int, crossing: Crossing, way: int, number: int) -> int:
        start, step = self._places[rank][crossing.number, way]
        return start + number * step

    def _seen(self, node: Node, address: int, sizes: Mapping[str, int], owner: object) -> OnDevice:
        if sizes != self._known_sizes:
            self._known, self._known_sizes = {}, dict(sizes)
        known = self._known.get((node, address))
        if known is None:
            shape = bind_shape(node.shape, sizes)
            known = OnDevice(shape, node.dtype, address, self._device, owner)
            self._known[node, address] = known
        return known

    def _pairs(self, crossings: Iterable[Crossing]) -> dict[int, int]:
        """By the rank of the other stage the tag of the message for all that crosses, which both know."""
        found: dict[int, int] = {}
        for crossing in crossings:
            is_here = crossing.source == self._comm.rank
            other = crossing.goal if is_here else crossing.source
            found[other] = min(2 * crossing.number, found.get(other, 2 * crossing.number))
        return found


def can_cross(stage: Stage, programs: Sequence[Executable], device: int) -> bool:
    """Whether a stage's programs leave all on the device, and no value crosses to two stages."""
    values = [crossing.value for crossing in stage.departures]
    if len(set(values)) < len(values):
        return False
    if not all(one.cuda.stays_on_device for one in programs):
        return False
    held = [n for one in programs for n in one.program.leaves if n.op is VARIABLE]
    return all(tensor_of(node).kind is not Kind.HOST for node in held)


def _layout(
    stage: Stage, sizes: Mapping[str, int], pieces: int
) -> tuple[dict[tuple[int, int], tuple[int, int]], int]:
    """Where values come to in a stage's buffer, by crossing and way: the first, and the bytes to the next."""
    coming = [(c, _FORWARD) for c in stage.arrivals]
    coming += [(c, _BACK) for c in stage.departures if c.returns]
    steps = [placed([nbytes_of(crossing.value, sizes)])[1] for crossing, _ in coming]
    starts, end = placed([step * pieces for step in steps])
    where = zip(coming, starts, steps, strict=True)
    return {(crossing.number, way): (start, step) for (crossing, way), start, step in where}, end
