"""Data parallel training of which each rank keeps pieces only: of parameters, gradients and moments.

The graph of a step is cut into groups of layers (`graph.py`). Forward, group by group, its parameters are
gathered, all shards of this rank pass through it, and the parameters are let go; backward they are gathered
again, and the gradients of the group are added up over shards and ranks by the tree of `tree.py`, of which
each rank gets its piece. The next group is gathered while one is computed. Then each rank updates its pieces.
Rajbhandari and others: "ZeRO", SC 2020, stage 3; Zhao and others: "PyTorch FSDP", VLDB 2023.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.compiler.plan.memory import nbytes_of
from magmadnn.errors import ArgumentError, CheckpointError, NumericError
from magmadnn.graph import Node
from magmadnn.graph.node import VARIABLE, rebuild, resolve_phase, topological
from magmadnn.graph.op import Array
from magmadnn.graph.spec import is_floating
from magmadnn.layers.layer import Layer
from magmadnn.memory.usage import in_units
from magmadnn.optim import Transform
from magmadnn.optim.building.accumulation import Accumulation
from magmadnn.optim.building.loss_scaling import LossScale
from magmadnn.optim.building.update import Update, keys_of
from magmadnn.optim.memory_check import BATCH
from magmadnn.parallel.buckets import size_of
from magmadnn.parallel.in_graph.beside import beside
from magmadnn.parallel.parted_moments import PartedMomentsStep
from magmadnn.parallel.pipelined.programs import Stage, as_node
from magmadnn.parallel.pipelined.step import only_those
from magmadnn.parallel.step import advance
from magmadnn.parallel.tree import cuts
from magmadnn.runtime import Executable
from magmadnn.runtime.agreement import ALONE, agreeing
from magmadnn.runtime.step_memory import StepMemory
from magmadnn.tensor import Operation
from magmadnn.tensor.operation import Feeds, as_feeds

from .graph import LayerCut, grouped
from .pieces import Group, Piece
from .shards import Shard, passed, passed_back

_HEAD = 4  # failures, weight, rows, weight * loss: what the small vector begins with


class LayersStep(PartedMomentsStep):
    """One step, in which each rank keeps pieces of parameters; see `ParallelStep`.

    Attributes:
        groups: of layers whose parameters are gathered together.
        most_gathered: bytes of whole parameters that this rank had at a time in the last step, at most.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._is_newer, self.most_gathered = True, 0  # whole values are newer than pieces
        super().__init__(*arguments, **named)
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
        """The update of this rank's pieces; `self.cut` is the graph in groups of layers."""
        for part in parts:
            if not vars(type(part)).get("by_element", False):
                raise ArgumentError(
                    f"DataParallel: {type(part).__name__} looks at whole gradients, of which each rank has "
                    "pieces with shard='parameters': use shard='optimiser', or a part with by_element = True"
                )
        shared = self._shared
        found, own = resolve_phase(
            [*roots, as_node(shared.mass), as_node(self._rows)], training=True
        )
        own = [(target, value) for target, value in own if target not in kept]
        loss, mass, rows = Operation(found[0]), *map(Operation, found[-2:])
        self._statistics = [(t, v) for t, v in own if is_floating(t.dtype)]
        self._counters = [(t, advance(t, v)) for t, v in own if not is_floating(t.dtype)]
        self.states = [t for t, _ in own]
        above = ops.where(ops.greater(mass, 0.0), ops.cast(loss, "float64") * mass, 0.0)
        small = [mass, rows, above, *map(Operation, found[1:-2])]
        self._small_lengths = [size_of(one.node.spec) for one in small]
        reports = [ops.cast(one, "float64").node for one in small]
        reports += [(Operation(v) * ops.cast(rows, v.dtype)).node for _, v in self._statistics]
        self.cut = LayerCut(
            found[0], mass.node, reports, nodes, [t for t, _ in own], "DataParallel"
        )
        layers = grouped(self.cut)
        self.layers_of_groups = [[layer.label for layer in group] for group in layers]
        numbers: dict[Layer, int] = {one: k for k, group in enumerate(layers) for one in group}
        self.cut.into(len(layers), numbers)
        self.groups = [
            Group(k, stage.parameters, self._comm) for k, stage in enumerate(self.cut.stages)
        ]
        count = len(self.groups)
        # In the order in which they are gathered: forward, and back from the one before the last.
        self._visits = [*range(count), *reversed(range(count - 1))]
        self._check(nodes)
        self._keys = dict(zip(nodes, keys_of(nodes), strict=True))
        pieces = [p for group in self.groups for p in group.pieces if p.own is not None]

        def means(values: Sequence[Operation], names: Sequence[str]) -> list[Operation]:
            inverse = shared.inverse()
            gradients = [Operation(p.gradient) for p in pieces if p.gradient is not None]
            return [g * ops.cast(inverse, g.dtype) for g in gradients]

        variables = [p.own for p in pieces if p.own is not None]
        keys = [self._keys[p.whole] for p in pieces]
        made = Update(
            name, parts, self._settings.scalars, found[:1], variables, scaling, kept, shared.groups,
            None, keys, means,
        ).make()  # fmt: skip
        slots = {**made.slots, **shared.slots}
        self._names = sorted({slot.rsplit("/", 1)[1] for slot in slots if "/" in slot})
        self._updated_elsewhere = set(variables)
        made.parameters = [p.whole for group in self.groups for p in group.pieces]
        return made

    def _check(self, nodes: Sequence[Node]) -> None:
        """Raises ArgumentError where ranks cannot have pieces of all parameters."""
        reached = {n for n in topological(list(self.cut.nodes)) if n.op is VARIABLE}
        held = {p for group in self.groups for p in group.fed}
        for node in nodes:
            if node in reached and node not in held:
                raise ArgumentError(
                    f"DataParallel: no gradient reaches {node.name}, so shard='parameters' has no sum for "
                    "it: freeze its layer, or use shard='optimiser'"
                )
            if node in held and node.dtype not in (np.float32, np.float64):
                raise ArgumentError(
                    f"DataParallel: {node.name} is {node.dtype.name}, shard='parameters' takes parameters of "
                    "float32 and float64: use precision='mixed_bf16', or shard='optimiser'"
                )
        if not any(p.own is not None for group in self.groups for p in group.pieces):
            count = sum(size_of(p.spec) for p in held)
            raise ArgumentError(
                f"DataParallel: shard='parameters' leaves rank {self._comm.rank} of {self._comm.size} no "
                f"element of {count}: use fewer ranks"
            )

    def _compiled(self, update: Update, way: dict[str, Any]) -> Executable:
        """The update; programs of the groups take gathered parameters as data."""
        known = self._updated_elsewhere | {s.node for s in update.slots.values()}
        known |= {update.count.node} | {s.node for s in self._shared.slots.values()}
        updates = [pair for pair in update.updates if pair[0] in known]
        weighed = [v for _, v in self._statistics]
        sums = self._shared.buckets.exchanged([Operation(v) for v in weighed], "statistic")
        rows = Operation(self._shared.rows)
        for (target, _), total in zip(self._statistics, sums, strict=True):
            updates.append((target, (total / ops.cast(rows, target.dtype)).node))
        self._forward: list[Executable] = []
        self._backward: list[Executable | None] = []
        everywhere = {node: fed for group in self.groups for node, fed in group.fed.items()}
        for stage in self.cut.stages:
            there = {n: everywhere[n] for n in stage.parameters}
            forward = rebuild(stage.forward, there) if stage.forward else []
            backward = rebuild(stage.backward, there) if stage.backward else []
            self._forward.append(Executable(forward, training=True, **way))
            self._backward.append(Executable(backward, training=True, **way) if backward else None)
        self._update = Executable([(update.count + 0).node], updates, training=True, **way)
        self._device = self._update.device
        return self._update

    # --- a run ------------------------------------------------------------------------------------

    def run(
        self, feeds: Feeds | None = None, watch: Any = None, guard: bool = False
    ) -> list[Array]:
        """Do one step; see `ParallelStep.run`."""
        if self._is_newer:
            for group in self.groups:
                group.take()
            self._is_newer, self._collected = False, {}
        own = as_feeds(feeds)
        bounds = cuts(self.whole_rows, self._way.parts)
        there = [s for s in range(self._way.parts) if bounds[s + 1] > bounds[s]]
        mine = [s for s in there if self._tree.first <= s < self._tree.last]
        shards = {s: Shard(self._rows_of(s, own, bounds)) for s in mine}
        before = [int(node.value.read()) for node, _ in self._counters]
        failed: list[Exception] = []
        try:
            last = [self._go_forward(shards, before, failed, guard)]
            if self._way.computed is not None:
                self._way.computed(self._comm)
            small, statistics = self._added_up(shards, there, failed)
            if small[0] or (guard and not np.isfinite(small).all()):
                raise self._whole_again(self._told(failed[0] if failed else None))
            sums = self._go_back(shards, there, failed, last)
            if self._comm.all_reduce(np.array([float(len(failed))]))[0]:
                raise self._whole_again(self._told(failed[0] if failed else None))
            self._apply_pieces(small, statistics, sums, guard)
        finally:
            self._count_on(before, 0)
        self._count_on(before, self._way.parts)
        return self.outputs_of(small)

    def _whole_again(self, error: Exception) -> Exception:
        """The error, once all ranks have whole parameters again: those of before."""
        self.collect()
        return error

    def _begin(self, visit: int) -> None:
        """Begin to gather for a visit, if there is one."""
        if visit < len(self._visits):
            group = self.groups[self._visits[visit]]
            sources = group.sources()
            beside(self._comm).begin(2 * visit, group.nbytes, lambda: group.gathered(sources))

    def _gathered(self, visit: int, ahead: bool = True) -> dict[Node, Array]:
        """The parameters of a visit; the next one's are on their way then."""
        found: Any = beside(self._comm).result(2 * visit)
        held = self.groups[self._visits[visit]].nbytes
        if ahead and visit + 1 < len(self._visits):
            self._begin(visit + 1)
            held += self.groups[self._visits[visit + 1]].nbytes
        self.most_gathered = max(self.most_gathered, held)
        return dict(found)

    def _go_forward(
        self, shards: Mapping[int, Shard], before: Sequence[int], failed: list[Exception], guard: bool
    ) -> dict[Node, Array]:  # fmt: skip
        """All shards through all groups; the parameters of the last."""
        self.most_gathered = 0
        self._begin(0)
        parameters: dict[Node, Array] = {}
        for stage, program in zip(self.cut.stages, self._forward, strict=True):
            parameters = {}  # let go before the next are there
            parameters = self._gathered(stage.number, stage.number + 1 < len(self.groups))
            for number, shard in shards.items():
                if failed or not stage.forward:
                    continue
                try:
                    self._count_on(before, number)
                    with agreeing(ALONE):
                        fed = only_those(program, {**shard.fed, **parameters})
                        found = program.run(fed, guard=guard)
                except Exception as error:
                    failed.append(error)
                    continue
                passed(stage, shard, found)
        return parameters

    def _added_up(
        self, shards: Mapping[int, Shard], there: Sequence[int], failed: Sequence[Exception]
    ) -> tuple[Array, dict[np.dtype[Any], Array]]:
        """[failures, mass, rows, mass * loss, outputs] of all shards, and statistics by dtype."""
        lengths, count = self._shared.buckets.lengths, len(self._small_lengths)

        def leaf(number: int) -> list[Array]:
            if failed:
                return [
                    np.concatenate([[1.0], np.zeros(sum(self._small_lengths))]),
                    *(np.zeros(n, d) for d, n in lengths.items()),
                ]
            reports = shards[number].reports
            small = [np.ravel(reports[k]) for k in range(count)]
            by: dict[np.dtype[Any], list[Array]] = {dtype: [] for dtype in lengths}
            for k in range(count, len(reports)):
                by[reports[k].dtype].append(np.ravel(reports[k]))
            return [np.concatenate([[0.0], *small]), *(np.concatenate(v) for v in by.values())]

        own = self._tree.own(leaf, there)
        likes = [np.zeros(1 + sum(self._small_lengths))]
        likes += [np.zeros(n, d) for d, n in lengths.items()]
        found = [
            self._tree.all_sum([one[k] for one in own], like, there) for k, like in enumerate(likes)
        ]
        return found[0], dict(zip(lengths, found[1:], strict=True))

    def _go_back(
        self, shards: Mapping[int, Shard], there: Sequence[int], failed: list[Exception],
        last: list[dict[Node, Array]],
    ) -> list[dict[np.dtype[Any], Array]]:  # fmt: skip
        """Gradients of all groups: this rank's pieces of the sums over all shards."""
        count, sums = len(self.groups), list[Any]([{}] * len(self.groups))
        parameters, waiting = last.pop(), None  # so that nobody else keeps them
        for number in reversed(range(count)):
            stage, program = self.cut.stages[number], self._backward[number]
            visit = 2 * count - 2 - number
            if number < count - 1:
                parameters = {}
                parameters = self._gathered(visit)
            elif count > 1:
                self._begin(visit + 1)
            blocks = self._tree.own(
                lambda s, k=stage, p=program, w=parameters: passed_back(
                    self.cut.stages, k, p, w, shards[s], failed
                ),  # type: ignore[misc]
                there,
            )
            if waiting is not None:
                sums[waiting] = beside(self._comm).result(2 * waiting + 1)
            waiting = number
            self._begin_sum(number, blocks, there)
        if waiting is not None:
            sums[waiting] = beside(self._comm).result(2 * waiting + 1)
        return sums

    def _begin_sum(self, number: int, blocks: Sequence[list[Array]], there: Sequence[int]) -> None:
        stage, group = self.cut.stages[number], self.groups[number]

        def call() -> Any:
            found = {}
            for k, (dtype, length) in enumerate(stage.buckets.lengths.items()):
                own, like = [one[k] for one in blocks], np.empty(length, dtype)
                found[dtype] = self._tree.reduced_share(own, like, there, group.bounds[dtype])
            return found

        beside(self._comm).begin(2 * number + 1, group.nbytes, call)

    def _apply_pieces(
        self, small: Array, statistics: Mapping[np.dtype[Any], Array],
        sums: Sequence[Mapping[np.dtype[Any], Array]], guard: bool,
    ) -> None:  # fmt: skip
        """Update this rank's pieces; no rank does unless all can."""
        fed: dict[Node, Any] = dict(self._shared.buckets.feeds(statistics))
        fed |= {self._shared.total: small[1], self._shared.rows: small[2], **self.scalars()}
        for group, found in zip(self.groups, sums, strict=True):
            for piece in group.pieces:
                if piece.gradient is not None:
                    vector = found[piece.whole.dtype]
                    fed[piece.gradient] = vector[
                        piece.at : piece.at + piece.counts[self._comm.rank]
                    ]
        try:
            self._update.run(only_those(self._update, fed), guard=guard)
        except NumericError as error:
            raise self._whole_again(self._told(error)) from error

    # --- the state --------------------------------------------------------------------------------

    def collect(self) -> None:
        """Give all ranks whole parameters and moments; all of them call it."""
        if not self._is_newer:
            for group in self.groups:
                group.give()
            self._is_newer = True
            self._collect_moments()

    def begin_epoch(self) -> None:
        """Go on from the model's parameters, which callbacks may have set."""

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
        """What a step takes.

        Parameters are this rank's pieces and the two groups that are whole at a time, gradients its pieces
        and two groups' sums. What all shards of the rank keep for their way back counts as activations.
        """
        parts, blocks = self._tree.last - self._tree.first, len(self._blocks())
        shard = {**sizes, BATCH: -(-sizes.get(BATCH, 1) // self._way.parts)}
        programs = [*self._forward, *(p for p in self._backward if p is not None)]
        found = [program.memory(shard, workspace) for program in programs]
        update = self._update.memory(shard, workspace)
        if update is None or any(one is None for one in found):
            return None
        known = [one for one in found if one is not None]
        group_bytes = [group.nbytes for group in self.groups]
        twos = max(a + b for a, b in zip(group_bytes, [*group_bytes[1:], 0], strict=True))
        own = sum(group.own_bytes for group in self.groups)
        slots = sum(slot.value.nbytes for slot in self._slots.values())
        kept = parts * sum(self._kept_bytes(stage, shard) for stage in self.cut.stages)
        return StepMemory(
            parameters=own + twos,
            optimizer=slots + self._count.value.nbytes,
            activations=kept + max(one.activations + one.gradients for one in known),
            gradients=own + (blocks + 1) * twos,
            batch=parts * max(one.batch for one in known[:1]),
            copies=update.copies,
            workspace=max(one.workspace for one in [*known, update]),
        )

    def _blocks(self) -> list[Any]:
        return self._tree.blocks(self._comm.rank, range(self._way.parts))

    @staticmethod
    def _kept_bytes(stage: Stage, sizes: Mapping[str, int]) -> int:
        return sum(nbytes_of(node, sizes) for node in stage.forward)

    def text(self, sizes: Mapping[str, int]) -> str:
        """What each group runs, and what this rank keeps and gathers."""
        whole = sum(group.nbytes for group in self.groups)
        own = sum(group.own_bytes for group in self.groups)
        lines = [
            (
                f"# rank {self._comm.rank} of {self._comm.size} keeps {in_units(own)} of "
                f"{in_units(whole)} of parameters; {len(self.groups)} groups of layers are "
                "gathered forward and back"
            ),
        ]
        for group, names, forward, backward in zip(
            self.groups, self.layers_of_groups, self._forward, self._backward, strict=True
        ):
            lines.append(f"# group {group.number}: {', '.join(names)}: {in_units(group.nbytes)}")
            lines.append(forward.text(sizes))
            lines += [] if backward is None else [backward.text(sizes)]
        lines += ["# the update of this rank's pieces", self._update.text(sizes)]
        if (memory := self.memory(sizes)) is not None:
            lines.append(str(memory))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<LayersStep {self.count}, rank {self._comm.rank} of {self._comm.size}>"
