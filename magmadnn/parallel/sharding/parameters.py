"""Data parallel training of which each rank keeps pieces only: of parameters, gradients and moments.

A step is one program (`program.py`): parameters of some layers are gathered, used and let go, forward and
back; gradients are added up over shards and ranks in the order of `tree.py`, of which each rank gets its
piece; each rank updates its pieces. So bits are those of `DataParallel`, and many steps run in one call.
Rajbhandari and others: "ZeRO", SC 2020, stage 3; Zhao and others: "PyTorch FSDP", VLDB 2023.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from magmadnn import ops
from magmadnn.comm.gpu.meeting import meet
from magmadnn.comm.groups import bound
from magmadnn.errors import ArgumentError, CheckpointError, CommunicationError, MagmaDNNError
from magmadnn.graph import Node
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import constant, resolve_phase, topological
from magmadnn.graph.op import Array
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import adjoints, stabilised
from magmadnn.memory.usage import in_units
from magmadnn.optim import StepSlices, Transform
from magmadnn.optim.building.accumulation import Accumulation
from magmadnn.optim.building.loss_scaling import LossScale
from magmadnn.optim.building.update import Update, keys_of
from magmadnn.optim.memory_check import BATCH
from magmadnn.parallel.buckets import size_of
from magmadnn.parallel.in_graph.slices import RanksSlices
from magmadnn.parallel.in_graph.tree_ops import GROUP
from magmadnn.parallel.in_graph.whole_step import WholeStep
from magmadnn.parallel.parted_moments import PartedMomentsStep
from magmadnn.parallel.pipelined.stages import layer_of
from magmadnn.parallel.ranks_step import RanksStep
from magmadnn.parallel.tree import cuts
from magmadnn.runtime import Executable
from magmadnn.runtime.step_memory import StepMemory
from magmadnn.tensor import Operation
from magmadnn.tensor.operation import Feeds, as_feeds

from .graph import grouped
from .pieces import Group, Piece
from .program import PiecesProgram

_KEPT: Final = 4  # programs, for batches of different sizes
_GPU_ALIGN: Final = 64  # elements: kernels of libraries read matrices that begin at such places


class PiecesSlices(RanksSlices):
    """Runs slices of batches; parameters lie in pieces then."""

    def run(self, order: Array, count: int, follows: bool = False) -> list[Array] | None:
        """See `RanksSlices.run`."""
        step: Any = self._step
        step.take_pieces()
        return super().run(order, count, follows)

    @property
    def launches_ahead(self) -> bool:
        """False: pieces may be brought together before the next batches."""
        return False

    def text(self, sizes: Mapping[str, int]) -> str:
        """The plan of a step."""
        with bound({GROUP: self._comm}):
            return self.executable.text(sizes)


class PiecesStep(PartedMomentsStep):
    """One step, in which each rank keeps pieces of parameters; see `ParallelStep`.

    Attributes:
        groups: of layers whose parameters are gathered together.
    """

    stays_scattered = True

    def __init__(self, *arguments: Any, device: str = "cpu", **named: Any) -> None:
        self._is_newer = True  # whole values are newer than pieces
        self._align = 1 if device == "cpu" else _GPU_ALIGN
        self._programs: dict[int, tuple[WholeStep, Executable]] = {}  # by rows of a batch
        super().__init__(*arguments, device=device, **named)
        self._moments = {
            f"{self._keys[piece.whole]}/{name}": piece
            for group in self.groups
            for piece in group.pieces
            for name in self._names
        }
        self._collect_moments()

    # --- the graph --------------------------------------------------------------------------------

    def _updating(
        self, name: str, parts: Sequence[Transform], roots: Sequence[Node], nodes: Sequence[Node],
        scaling: LossScale | None, kept: Collection[Node], accumulation: Accumulation | None,
        known: Any = None,
    ) -> Update:  # fmt: skip
        """The update of this rank's pieces; `self._gradients` are those of a shard."""
        for part in parts:
            if not vars(type(part)).get("by_element", False):
                raise ArgumentError(
                    f"DataParallel: {type(part).__name__} looks at whole gradients, of which each rank has "
                    "pieces with shard='parameters': use shard='optimiser', or a part with by_element = True"
                )
        resolved, own = resolve_phase(roots, training=True)
        stable = stabilised([*resolved, *(value for _, value in own)])
        outputs = [stable[node] for node in resolved]
        states = [(target, stable[value]) for target, value in own if target not in kept]
        order = topological(outputs[:1])
        trained = [node for node in nodes if node in set(order)]
        layers = grouped(order, trained)
        self.layers_of_groups = [[layer.label for layer in group] for group in layers]
        self._gradients = self._weighed(outputs[0], trained)
        self.groups = []
        for number, members in enumerate(layers):
            of_group = [node for node in trained if layer_of(node) in members]
            self.groups.append(Group(number, of_group, self._comm, self._align))
        self._keys = dict(zip(nodes, keys_of(nodes), strict=True))
        pieces = [p for group in self.groups for p in group.pieces if p.own is not None]
        if not pieces:
            count = sum(size_of(node.spec) for node in trained)
            raise ArgumentError(
                f"DataParallel: shard='parameters' leaves rank {self._comm.rank} of {self._comm.size} no "
                f"element of {count}: use fewer ranks"
            )
        shared = self._shared

        def means(values: Sequence[Operation], names: Sequence[str]) -> list[Operation]:
            inverse = shared.inverse()
            gradients = [Operation(p.gradient) for p in pieces if p.gradient is not None]
            return [g * ops.cast(inverse, g.dtype) for g in gradients]

        variables = [p.own for p in pieces if p.own is not None]
        keys = [self._keys[p.whole] for p in pieces]
        made = Update(
            name, parts, self._settings.scalars, outputs, variables, scaling, kept, shared.groups,
            None, keys, means,
        ).make()  # fmt: skip
        made.updates = [*made.updates, *states]
        slots = {**made.slots, **shared.slots}
        self._names = sorted({slot.rsplit("/", 1)[1] for slot in slots if "/" in slot})
        self._updated_elsewhere = set(variables)
        made.parameters = [p.whole for group in self.groups for p in group.pieces]
        return made

    def _weighed(self, loss: Node, trained: Sequence[Node]) -> dict[Node, Node]:
        """Gradients of a shard, times its weight.

        Raises:
            ArgumentError: where there is none, or of another dtype.
        """
        mass = self._shared.mass
        is_heavy, found = ops.greater(mass, 0.0), {}
        gradients = adjoints({loss: constant(np.ones((), loss.dtype))}, trained)
        for node, gradient in zip(trained, gradients, strict=True):
            if gradient is None:
                raise ArgumentError(
                    f"DataParallel: no gradient reaches {node.name}, so shard='parameters' has no sum for "
                    "it: freeze its layer, or use shard='optimiser'"
                )
            if node.dtype not in (np.float32, np.float64):
                raise ArgumentError(
                    f"DataParallel: {node.name} is {node.dtype.name}, shard='parameters' takes parameters of "
                    "float32 and float64: use precision='mixed_bf16', or shard='optimiser'"
                )
            g = ops.cast(Operation(gradient), node.dtype)
            found[node] = ops.where(is_heavy, g * ops.cast(mass, g.dtype), 0).node
        return found

    def _compiled(self, update: Update, way: dict[str, Any]) -> Executable:
        """The graph of a shard; programs are made of it for each size of batches."""
        found = super()._compiled(update, way)
        self._maker = PiecesProgram(
            self._graph, self._gradients, self.groups, self._tree, self._comm, way["precision"]
        )
        return found

    def _program(self, rows: int) -> tuple[WholeStep, Executable]:
        """The step of a batch of so many rows, of all ranks."""
        found = self._programs.pop(rows, None)
        if found is None:
            whole = self._maker.step(cuts(rows, self._way.parts), self._device is not None)
            program = Program.of(whole.outputs, whole.updates, training=True)
            made = Executable(program, **self._compiling)
            if made.device is not None and self._comm.size > 1:
                meet(self._comm, made.device)
            found = whole, made
            if len(self._programs) == _KEPT:
                del self._programs[next(iter(self._programs))]
        self._programs[rows] = found
        return found

    # --- a run ------------------------------------------------------------------------------------

    def run(
        self, feeds: Feeds | None = None, watch: Any = None, guard: bool = False
    ) -> list[Array]:
        """Do one step; see `ParallelStep.run`."""
        self.take_pieces()
        whole, executable = self._program(self.whole_rows)
        own = as_feeds(feeds)
        fed: dict[Node, Any] = {new: np.asarray(own[node]) for node, new in whole.data.items()}
        scalars = {node: np.asarray(value) for node, value in self.scalars().items()}
        fed |= {n: scalars[n] for n in executable.program.placeholders if n in scalars}
        try:
            with bound({GROUP: self._comm}):
                (small,) = executable.run(fed, watch=watch, guard=guard)
        except CommunicationError:
            raise
        except MagmaDNNError:
            if guard:  # all ranks stop
                self.collect()
            raise
        if self._way.computed is not None:
            self._way.computed(self._comm)
        bounds = cuts(self.whole_rows, self._way.parts)
        there = [s for s in range(self._way.parts) if bounds[s + 1] > bounds[s]]
        blocks = list(small) if self._tree.blocks(self._comm.rank, there) else []
        return self.outputs_of(self._tree.all_sum(blocks, np.empty(small.shape[1]), there))

    def take_pieces(self) -> None:
        """Go on from this rank's pieces of whole values, where those are newer."""
        if self._is_newer:
            for group in self.groups:
                group.take()
            self._is_newer, self._collected = False, {}

    def slices(
        self, data: Mapping[Any, Array], batch_size: int, streams: bool = False,
        ring_bytes: int | None = None,
    ) -> StepSlices | None:  # fmt: skip
        """Many batches in one call; see `ParallelStep.slices`."""
        parts, rows = self._way.parts, as_feeds(data)
        if self._compiling["executor"] != "native" or self._way.computed is not None:
            return None
        others = any(isinstance(size, Dim) for node in rows for size in node.shape[1:])
        if batch_size < parts or others or set(self._maker.data) - rows.keys():
            return None
        whole, executable = self._program(batch_size)
        used = {node: array for node, array in rows.items() if node in whole.data}
        bounds, way = cuts(batch_size, parts), self._compiling
        found = PiecesSlices.of(self, self._settings, whole, used, bounds, way, executable)
        self._slices = found or self._slices
        return found

    # --- the state --------------------------------------------------------------------------------

    def collect(self) -> None:
        """Give all ranks whole parameters and moments; all of them call it."""
        if not self._is_newer:
            for group in self.groups:
                group.give()
            self._is_newer = True
            self._collect_moments()

    def _whole_moment(self, name: str, part: Piece) -> Array:
        own = None if part.own is None else self._slots[name].value.read()
        return part.together(self._comm, own)

    def _of_this_rank(self, state: Mapping[str, Any]) -> dict[str, Any]:
        if missing := [name for name in self._moments if name not in state]:
            raise CheckpointError(
                f"state: {missing[0]} is missing; is it of another optimiser or model?"
            )
        return super()._of_this_rank(state)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, on any number of ranks; parameters are the model's own."""
        if not self._is_newer:
            raise ArgumentError(
                "DataParallel: parameters lie in pieces on all ranks: collect() on all of them first"
            )
        super().load_state(state)

    # --- what a step of one batch has beside that -------------------------------------------------

    @property
    def own_bytes(self) -> int:
        """Bytes of the pieces of parameters and moments that this rank keeps."""
        held = sum(group.own_bytes for group in self.groups)
        return held + sum(slot.value.nbytes for slot in self._slots.values())

    def _memory_for(self, sizes: Mapping[str, int], workspace: bool) -> StepMemory | None:
        """That of the program of a batch, with this rank's pieces; gathered parameters are activations."""
        _, executable = self._program(sizes.get(BATCH, 1))
        with bound({GROUP: self._comm}):
            found = executable.memory(sizes, workspace)
        return None if found is None else found.with_state(self._state_nodes())

    def _missing(self, sizes: Mapping[str, int]) -> int:
        """As `RanksStep`."""
        return RanksStep._missing(self, sizes)

    def prepare(self, feeds: Mapping[Node, Array], batch_size: int) -> None:
        """Nothing: the first step of a size plans it, on all ranks at once."""

    def text(self, sizes: Mapping[str, int]) -> str:
        """What this rank keeps and gathers, and the plan of a step."""
        whole = sum(group.nbytes for group in self.groups)
        own = sum(group.own_bytes for group in self.groups)
        visited = self._maker.visited
        lines = [
            (
                f"# rank {self._comm.rank} of {self._comm.size} keeps {in_units(own)} of "
                f"{in_units(whole)} of parameters"
            ),
            (
                f"# {len(self.groups)} groups of layers; {len(visited)} gathers of "
                f"{in_units(sum(group.nbytes for group in visited))} a step, forward and back"
            ),
        ]
        for group, names in zip(self.groups, self.layers_of_groups, strict=True):
            lines.append(f"# group {group.number}: {', '.join(names)}: {in_units(group.nbytes)}")
        _, executable = self._program(sizes.get(BATCH, 1))
        with bound({GROUP: self._comm}):
            lines.append(executable.text(sizes))
        if (memory := self.memory(sizes)) is not None:
            lines.append(str(memory))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<PiecesStep {self.count}, rank {self._comm.rank} of {self._comm.size}>"
