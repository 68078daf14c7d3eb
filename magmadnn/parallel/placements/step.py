"""One step of a training of which each rank has parts of the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.comm import Communicator, bound
from magmadnn.comm.communicator import Wire
from magmadnn.comm.gpu.meeting import gpus_of, meet
from magmadnn.compiler.program.precision import precision as rounded
from magmadnn.errors import ArgumentError
from magmadnn.graph import Node
from magmadnn.graph.op import Array
from magmadnn.graph.placing import Placement, ranks_on
from magmadnn.graph.program import Program
from magmadnn.memory.usage import in_units
from magmadnn.ops.ranks.leading_axis import with_leading_axis
from magmadnn.optim import StepSlices
from magmadnn.optim.building.accumulation import Accumulation
from magmadnn.optim.building.update import Update
from magmadnn.optim.courses import StepCourse
from magmadnn.optim.memory_check import BATCH
from magmadnn.parallel.ranks_step import RanksStep, refuse
from magmadnn.runtime import Executable
from magmadnn.runtime.places import device_of
from magmadnn.runtime.step_memory import StepMemory
from magmadnn.tensor import Operation, Tensor
from magmadnn.tensor.operation import Feeds, as_feeds

from .distribute import Distribution, sharing_rows
from .fewer_calls import in_buckets
from .layouts import Way, splits_of
from .one_rank import of_rank
from .part import Part
from .slices import PlacedSlices
from .splits import placements_of, splittable, with_slots, within

if TYPE_CHECKING:
    from magmadnn.dmath.layouts.layout import Layout


class PlacedStep(RanksStep):
    """One step of one rank; see `Step`.

    The graph of a step of one worker is placed: parameters as the way says, their moments like them, all else
    as it follows (`distribute.py`).

    Args:
        way: how ranks share the work.
        optimizer, loss, parameters, outputs, executor, precision, device, kept, more: as for `Step`.
        mass: what the mean loss of a batch is divided by: a scalar of float64.
        rows: samples of a batch: a scalar of float64.
        every: batches whose gradients are averaged for one update.

    Attributes:
        splits: what each layer that can be split is split by.
        some: the ranks of layers that only some compute, by path.
        parts: of variables that are split.
    """

    is_scattered = stays_scattered = True

    def __init__(
        self,
        way: Way,
        optimizer: Any,
        loss: Operation,
        parameters: Any,
        outputs: Sequence[Operation],
        mass: Operation,
        rows: Operation,
        *,
        every: int = 1,
        executor: str = "native",
        precision: str = "float32",
        device: str = "cpu",
        kept: Sequence[Any] = (),
        more: Sequence[Any] = (),
    ) -> None:
        refuse(type(way).__name__, precision)
        self._way, self._comm = way, way.workers()
        self._rows, self._is_newer = 0, True  # whole values are newer than parts
        groups = None if every == 1 else Accumulation(every, mass)
        self._roots = [loss.node]
        super().__init__(
            optimizer, loss, parameters, outputs, executor, precision, device, kept, more, groups
        )

    # --- the graph --------------------------------------------------------------------------------

    def _compiled(self, update: Update, way: dict[str, Any]) -> Executable:
        self._compiling = way
        program = Program.of(update.outputs, update.updates, training=True)
        program = rounded(program, way["precision"])
        self._leaves = self._placed(update)
        found = self._executable_of(program, self._leaves, way)
        self._by_rows: Executable | None = None
        if self._way.splits_batches and self._comm.size > 1:
            self._by_rows = self._sharing_rows(program, way)
        return found

    def _placed(self, update: Update) -> dict[Node, tuple[Placement, Node]]:
        """Parameters and moments that are split, and this rank's parts of them."""
        size = self._comm.size
        layers = splittable(self._roots, update.parameters)
        known = splits_of(self._way, layers, size)
        assert known is not None  # else there is another step
        self.splits, self.some = known
        self._within = within(layers, self.some)
        keys = dict(zip(update.keys, update.parameters, strict=True))
        slots = dict(update.slots) | ({} if self.accumulation is None else self.accumulation.slots)
        placements = with_slots(placements_of(layers, self.splits, self.some), keys, slots)
        self.parts = [Part(node, one, self._comm) for node, one in placements.items()]
        return {part.whole: (part.placement, part.own) for part in self.parts}

    @property
    def layouts(self) -> dict[Node, Layout]:
        """Of parameters that are split."""
        split = {p.node for p in self.parameters}
        return {part.whole: part.layout for part in self.parts if part.whole in split}

    def _executable_of(
        self, program: Program, leaves: Mapping[Node, tuple[Placement, Node]], way: dict[str, Any]
    ) -> Executable:
        """On GPUs collectives are nodes of a step's graph."""
        size, stays = self._comm.size, list(self._leaves)
        wire = self._meeting(way["device"])
        given: dict[str, Any] = {"stays": stays, "within": self._within, "wire": wire}
        found = Distribution(program, leaves, size, **given).program
        held = {p.own: p.on for p in self.parts if p.placement.on is not None}
        if held:
            found = of_rank(found, held, self._comm.rank, size)
        elif way["device"] != "cpu":
            found = in_buckets(with_leading_axis(found, self._comm.rank))
        return Executable(found, **way)

    def _meeting(self, device: str) -> Wire | None:
        """Let the GPUs of all ranks meet; what sums of products of halves travel in among them."""
        number = device_of(device, self._compiling["executor"])
        if number is None or self._comm.size == 1:
            return None
        meet(self._comm, number)
        adds = gpus_of(self._comm).can_add("bfloat16", "float32")
        return "bfloat16" if adds else None

    def _sharing_rows(self, program: Program, way: dict[str, Any]) -> Executable:
        """The step of a batch of which each rank has as many rows."""
        larger, whole = sharing_rows(program, self._comm.size)
        leaves = {**self._leaves, **whole}
        return self._executable_of(larger, leaves, way)

    # --- a run ------------------------------------------------------------------------------------

    def next_batch(self, rows: int, epoch: int, batch: int, batches: int | None, size: int) -> None:
        """Be told of the batch that is run next."""
        self._rows = rows

    def run(
        self, feeds: Feeds | None = None, watch: Any = None, guard: bool = False
    ) -> list[Array]:
        """Do one step and give the loss and the outputs, of the whole batch; see `Step.run`."""
        self.take_parts()
        fed = as_feeds(feeds)
        for node, value in self.scalars().items():
            fed[node] = np.array(value)
        executable, _ = self._for_rows(self._rows)
        with bound(self._comm):
            found = executable.run(fed, watch=watch, guard=guard)
        if self._way.computed is not None:
            self._way.computed(self._comm)
        return found

    def take_parts(self) -> None:
        """Go on from this rank's parts of whole values, where those are newer."""
        if self._is_newer:
            for part in self.parts:
                part.take()
            self._is_newer = False

    def _for_rows(self, rows: int) -> tuple[Executable, int]:
        """The program for a batch of so many rows, and how many of them this rank is fed with."""
        if self._by_rows is not None and rows and rows % self._comm.size == 0:
            return self._by_rows, rows // self._comm.size
        return self._executable, rows

    def collect(self) -> None:
        """Give all ranks whole parameters, and whole moments; all of them call it."""
        if not self._is_newer:
            for part in self.parts:
                part.give()
            self._is_newer = True

    def state(self) -> dict[str, Tensor]:
        """All that all ranks keep.

        Raises:
            ArgumentError: while it lies in parts.
        """
        self._need_whole()
        return super().state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, on any number of ranks."""
        self._need_whole()
        super().load_state(state)

    def _need_whole(self) -> None:
        if not self._is_newer:
            raise ArgumentError(
                f"{type(self._way).__name__}: parameters and moments lie in parts on all ranks: collect() on "
                "all of them first"
            )

    # --- what a step of one batch has beside that -------------------------------------------------

    def _state_nodes(self) -> list[Node]:
        own = {part.whole: part.own if part.is_here else None for part in self.parts}
        found = (own.get(node, node) for node in super()._state_nodes())
        return [node for node in found if node is not None]

    def _memory_for(self, sizes: Mapping[str, int], workspace: bool) -> StepMemory | None:
        """That of the program with this rank's parts, for its rows of a batch."""
        executable, rows = self._for_rows(sizes.get(BATCH, 1))
        found = executable.memory({**sizes, BATCH: rows}, workspace)
        return None if found is None else found.with_state(self._state_nodes())

    def slices(
        self, data: Mapping[Any, Array], batch_size: int, streams: bool = False,
        ring_bytes: int | None = None,
    ) -> StepSlices | None:  # fmt: skip
        """Many batches in one call, collectives included; see `ParallelStep.slices`."""
        if self._compiling["executor"] != "native" or self._way.computed is not None:
            return None
        executable, rows = self._for_rows(batch_size)
        return PlacedSlices.of(self, executable, self._settings, data, rows)

    def course(self, *arguments: Any, **named: Any) -> StepCourse | None:
        """None: other ranks wait for this one."""
        return None

    def text(self, sizes: Mapping[str, int]) -> str:
        """Which ranks compute which layers, and the plan of this rank's step."""
        size, lines = self._comm.size, list[str]()
        for path, split in self.splits.items():
            on = self.some.get(path)
            if split != "data" or on is not None:
                ranks = ranks_on(on, size)
                how = "whole" if split == "data" or len(ranks) == 1 else f"by {split}"
                which = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
                lines.append(f"# {path}: {how} on {which} of {size}")
        executable, rows = self._for_rows(sizes.get(BATCH, 1))
        if self.parts:
            lines.append(
                f"# rank {self._comm.rank} keeps {in_units(self.own_bytes)} of these layers"
            )
        with bound(self._comm):
            return "\n".join([*lines, executable.text({**sizes, BATCH: rows})])

    @property
    def communicator(self) -> Communicator:
        """The ranks."""
        return self._comm

    @property
    def own_bytes(self) -> int:
        """Bytes of the parts of parameters and moments that this rank has, of those that are split."""
        return sum(int(part.own.value.read().nbytes) for part in self.parts if part.is_here)

    def __repr__(self) -> str:
        return f"<PlacedStep {self.count}, rank {self._comm.rank} of {self._comm.size}>"
