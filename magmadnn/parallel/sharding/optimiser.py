"""Data parallel training whose update is shared out: each rank has the moments of its parameters only.

Gradients are added up where they are needed (a reduce-scatter by the tree of `tree.py`), each rank updates
its parameters, and all get all of them (an all-gather). Numbers are those of `DataParallel`, so are all bits.
Rajbhandari and others: "ZeRO", SC 2020, stage 2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.errors import ArgumentError
from magmadnn.graph import Node
from magmadnn.graph.node import VARIABLE, resolve_phase, topological
from magmadnn.graph.op import Array
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.optim import Transform
from magmadnn.optim.building.accumulation import Accumulation
from magmadnn.optim.building.loss_scaling import LossScale
from magmadnn.optim.building.update import Update, keys_of
from magmadnn.optim.parts import adding_up
from magmadnn.parallel.buckets import size_of
from magmadnn.parallel.pipelined.stages import evened
from magmadnn.parallel.scattered import Scattered, ScatteredStep
from magmadnn.parallel.shared_sums import SharedSums
from magmadnn.parallel.step import ParallelStep
from magmadnn.runtime import Executable
from magmadnn.runtime.step_memory import StepMemory
from magmadnn.tensor import Operation


class ShardedStep(ScatteredStep, ParallelStep):
    """One step, in which each rank updates some of the parameters; see `ParallelStep`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._scattered = Scattered(self._comm, [], self._slots)

    def run(self, feeds: Any = None, watch: Any = None, guard: bool = False) -> list[Array]:
        """Do one step; see `ParallelStep.run`."""
        self._scattered.let_go()
        return super().run(feeds, watch, guard)

    def _memory_for(self, sizes: Mapping[str, int], workspace: bool) -> StepMemory | None:
        """As `ParallelStep`; parameters travel as vectors."""
        found = super()._memory_for(sizes, workspace)
        return None if found is None else replace(found, copies=found.copies + found.parameters)

    def _updating(
        self, name: str, parts: Sequence[Transform], roots: Sequence[Node], nodes: Sequence[Node],
        scaling: LossScale | None, kept: Collection[Node], accumulation: Accumulation | None,
        known: Any = None,
    ) -> Update:  # fmt: skip
        """The update of this rank's parameters."""
        outputs, _ = resolve_phase(roots, training=True)
        reached = {n for n in topological(outputs[:1]) if n.op is VARIABLE}
        trained = [node for node in nodes if node in reached]
        self._bounds = self._shared_out(trained, parts)
        first, last = self._bounds[self._comm.rank : self._comm.rank + 2]
        self._trained = trained

        def means(values: Sequence[Operation], names: Sequence[str]) -> list[Operation]:
            found = gradient(outputs[0], trained, training=True)
            double, single = np.dtype(np.float64), np.dtype(np.float32)
            gradients = [
                ops.cast(Operation(g), double if p.dtype == double else single)
                for g, p in zip(found, trained, strict=True)
            ]
            return self._shared.means(gradients)[first:last]

        keys = dict(zip(nodes, keys_of(nodes), strict=True))
        numbers = [range(a, b) for a, b in zip(self._bounds[:-1], self._bounds[1:], strict=True)]
        self._sums = SharedSums(self._comm, numbers)
        own = trained[first:last]
        with adding_up(self._sums.adding):
            return Update(
                name, parts, self._settings.scalars, roots, own, scaling, kept, self._shared.groups, None,
                [keys[node] for node in own], means,
            ).make()  # fmt: skip

    def _shared_out(self, trained: Sequence[Node], parts: Sequence[Transform]) -> list[int]:
        """The first parameter of each rank, and their number.

        Raises:
            ArgumentError: if there are more ranks than parameters, or a part needs all gradients.
        """
        size = self._comm.size
        if alone := [part for part in parts if not part.spreads]:
            raise ArgumentError(
                f"DataParallel: {type(alone[0]).__name__} looks at the gradients of all parameters, which "
                "shard='optimiser' has on several ranks: leave shard out, or give it spreads = True"
            )
        if size > len(trained):
            raise ArgumentError(
                f"DataParallel: shard='optimiser' gives each rank whole parameters, {size} ranks cannot "
                f"share {len(trained)}: use {max(len(trained), 1)} ranks, or leave shard out"
            )
        sizes = [float(size_of(node.spec)) for node in trained]
        return [0, *evened(sizes, [True] * len(trained), size), len(trained)]

    def _compiled(self, update: Update, way: dict[str, Any]) -> Executable:
        """As `ParallelStep`; statistics are the last rank's to update."""
        found = super()._compiled(update, way)
        owner: dict[Node, int] = {}
        for rank in range(self._comm.size):
            owner |= dict.fromkeys(self._trained[self._bounds[rank] : self._bounds[rank + 1]], rank)
        statistics = [t for t in self.states if t not in [c for c, _ in self._counters]]
        owner |= dict.fromkeys(statistics, self._comm.size - 1)
        self._owned: list[list[Node]] = [
            [node for node, one in owner.items() if one == rank] for rank in range(self._comm.size)
        ]
        others = {node for node in owner if owner[node] != self._comm.rank}
        program = self._update.program
        updates = [pair for pair in program.updates if pair[0] not in others]
        self._update = Executable(program.outputs, updates, training=True, **way)
        self._sums.compile(way)
        self._share_bounds = self._cut_vectors()
        return found

    def _cut_vectors(self) -> dict[np.dtype[Any], list[int]]:
        """Where each rank's part of the vectors of gradients begins, and their lengths."""
        buckets, found = self._shared.buckets, {}
        ends = {dtype: [0] * (self._comm.size + 1) for dtype in buckets.lengths}
        for number, (node, start) in enumerate(buckets.places[: len(self._trained)]):
            rank = int(np.searchsorted(self._bounds, number, side="right")) - 1
            ends[node.dtype][rank + 1] = start + size_of(node.spec)
        for dtype, bounds in ends.items():
            bounds[-1] = buckets.lengths[dtype]
            found[dtype] = np.maximum.accumulate(bounds).tolist()
        return found

    def _share(
        self, small: Array, parts: Sequence[list[Array]], likes: Sequence[Array], there: Sequence[int],
        guard: bool,
    ) -> None:  # fmt: skip
        rank, mine = self._comm.rank, {}
        for own, like in zip(parts, likes, strict=True):
            bounds = self._share_bounds[like.dtype]
            mine[like.dtype] = self._tree.reduced_share(own, like, there, bounds), bounds[rank]
        fed: dict[Node, Any] = {self._shared.total: small[1], self._shared.rows: small[2]}
        for node, start in self._shared.buckets.places:
            vector, first = mine[node.dtype]
            size = size_of(Spec(node.shape, node.dtype))
            if first <= start and start + size <= first + len(vector):
                fed[node] = vector[start - first : start - first + size].reshape(node.shape)
        fed |= self.scalars()
        fed |= self._sums.feeds(fed)
        used = self._update.program.placeholders
        self._update.run({n: np.asarray(fed[n]) for n in used}, guard=guard)
        self._give_out()

    def _give_out(self) -> None:
        """All ranks get the parameters and statistics that others have updated."""
        every = [node for owned in self._owned for node in owned]
        for dtype in dict.fromkeys(node.dtype for node in every):
            lots = [[node for node in owned if node.dtype == dtype] for owned in self._owned]
            counts = [sum(size_of(node.spec) for node in lot) for lot in lots]
            own = [np.ravel(node.value.read()) for node in lots[self._comm.rank]]
            source = np.concatenate(own) if own else np.empty(0, dtype)
            values, at = self._comm.all_gather(source, counts=counts), 0
            for rank, lot in enumerate(lots):
                for node in lot:
                    size = size_of(node.spec)
                    if rank != self._comm.rank:
                        node.value.write(values[at : at + size].reshape(node.shape))
                    at += size
