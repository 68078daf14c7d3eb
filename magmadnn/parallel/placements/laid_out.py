"""One step of a training whose weights and moments lie in layouts between steps.

Gradients are those of `DataParallel`, added up in the same order. Each rank gets the sums of the elements
that it holds, updates these and their moments, and all weights are brought together for the next step.
Numbers do not depend on layouts, nor on how many ranks there are: elements are updated one by one. Where an
optimiser looks at whole gradients (a norm, say), every rank makes the whole update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn import ops
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import VARIABLE, placeholder, resolve_phase, topological
from magmadnn.graph.op import Array
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.optim import Transform
from magmadnn.optim.building.accumulation import Accumulation
from magmadnn.optim.building.loss_scaling import LossScale
from magmadnn.optim.building.update import Update
from magmadnn.parallel.parted_moments import PartedMomentsStep
from magmadnn.parallel.ranks_step import RanksStep
from magmadnn.runtime import Executable
from magmadnn.tensor import Operation, Tensor, Variable

from .layouts import layouts_of, splits_of
from .splits import splittable
from .step import PlacedStep

if TYPE_CHECKING:
    from magmadnn.dmath.layouts.layout import Layout


class Held:
    """A parameter of which this rank holds some elements.

    Args:
        whole: the variable, all of it.
        layout: where its elements lie, each on one rank.
        rank: this one.
        mean: what the mean of its gradient is computed in.
    """

    def __init__(self, whole: Node, layout: Layout, rank: int, mean: np.dtype[Any]) -> None:
        self.whole, self.layout, self._rank = whole, layout, rank
        self.count = layout.elements(rank)
        size = max(1, self.count)  # no program has to do with nothing
        self.own = Variable(str(whole.name), Tensor.wrap(np.zeros(size, whole.dtype))).node
        self.gradient = placeholder(f"own_gradient_of_{whole.name}", Spec((size,), mean))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole parameter."""
        return self.layout.shape

    def cut(self, whole: Array) -> Array:
        """This rank's elements of a whole array."""
        from magmadnn.dmath.arrays.making import packed

        own: Array = packed(whole, self.layout, self._rank)
        return own if self.count else np.zeros(1, whole.dtype)

    def together(self, flats: Sequence[Array]) -> Array:
        """The whole array, from the elements of each rank."""
        from magmadnn.dmath.arrays.making import assembled

        whole: Array = assembled(self.layout, flats[0].dtype, flats)
        return whole


class LaidOutStep(PartedMomentsStep):
    """One step of one rank; see `ParallelStep`.

    Args:
        way: a `ModelParallel`, which says how weights lie.
        arguments, named: as for `ParallelStep`.

    Attributes:
        layouts: of parameters that are not whole on each rank.
        held: of those of which this rank updates its elements.
    """

    def __init__(self, way: Any, *arguments: Any, **named: Any) -> None:
        self._layers = way
        self._is_newer = True  # whole values are newer than parts
        super().__init__(way, *arguments, **named)
        self._moments = {
            name: one
            for one in self.held
            for name, slot in self._slots.items()
            if name.rsplit("/", 1)[0] == self._keys[one.whole] and slot.shape == one.own.shape
        }
        self._collect_moments()

    # --- the graph --------------------------------------------------------------------------------

    def _updating(
        self, name: str, parts: Sequence[Transform], roots: Sequence[Node], nodes: Sequence[Node],
        scaling: LossScale | None, kept: Collection[Node], accumulation: Accumulation | None,
        known: Any = None,
    ) -> Update:  # fmt: skip
        """The update of this rank's elements."""
        from magmadnn.dmath.arrays.making import first_holders
        from magmadnn.optim.building.update import keys_of

        outputs, _ = resolve_phase(roots, training=True)
        reached = {n for n in topological(outputs[:1]) if n.op is VARIABLE}
        trained = [node for node in nodes if node in reached]
        layers = splittable([roots[0]], trained)
        self.layouts = layouts_of(self._layers, layers, self._comm.size)
        self._keys = dict(zip(nodes, keys_of(nodes), strict=True))
        self.held: list[Held] = []
        if not all(vars(type(part)).get("by_element", False) for part in parts):
            return super()._updating(name, parts, roots, nodes, scaling, kept, accumulation, known)
        double, single = np.dtype(np.float64), np.dtype(np.float32)
        wide = {node: double if node.dtype == double else single for node in trained}
        for node, layout in self.layouts.items():
            if any(len(holders) < self._comm.size for holders in layout.holders):
                one = Held(node, first_holders(layout), self._comm.rank, wide[node])
                self.held.append(one)
        by_node = {one.whole: one for one in self.held}
        own = [by_node[n].own if n in by_node else n for n in trained]

        def means(values: Sequence[Operation], names: Sequence[str]) -> list[Operation]:
            found = gradient(outputs[0], trained, training=True)
            gradients = [
                ops.cast(Operation(g), wide[p]) for g, p in zip(found, trained, strict=True)
            ]
            whole, inverse = self._shared.means(gradients), self._shared.inverse()
            return [
                Operation(by_node[n].gradient) * ops.cast(inverse, wide[n])
                if n in by_node
                else mean
                for n, mean in zip(trained, whole, strict=True)
            ]

        keys = [self._keys[node] for node in trained]
        made = Update(
            name, parts, self._settings.scalars, roots, own, scaling, kept, self._shared.groups, None, keys,
            means,
        ).make()  # fmt: skip
        self._updated_elsewhere = {one.own for one in self.held}
        made.parameters = trained  # what the step trains; `own` is what it writes
        return made

    def _compiled(self, update: Update, way: dict[str, Any]) -> Executable:
        """As `ParallelStep`; and which elements of the vectors of gradients are whose."""
        found = super()._compiled(update, way)
        by_node, buckets = {one.whole: one for one in self.held}, self._shared.buckets
        trained = [p.node for p in self.parameters]
        self._order: dict[np.dtype[Any], tuple[Array, list[int]]] = {}
        self._rest: dict[np.dtype[Any], Array] = {}
        for dtype, length in buckets.lengths.items():
            by_rank: list[list[Array]] = [[] for _ in range(self._comm.size)]
            rest = np.ones(length, bool)
            for number, (node, start) in enumerate(buckets.places):
                one = by_node.get(trained[number]) if number < len(trained) else None
                if one is None or node.dtype != dtype:
                    continue
                size = int(np.prod(one.layout.shape, dtype=np.int64))
                places = np.arange(start, start + size).reshape(one.layout.shape)
                for rank, lot in enumerate(by_rank):
                    lot.append(_packed(places, one.layout, rank))
                rest[start : start + size] = False
            lots = [np.concatenate(lot) if lot else np.empty(0, np.int64) for lot in by_rank]
            bounds = np.cumsum([0, *(len(lot) for lot in lots)]).tolist()
            self._order[dtype] = np.concatenate(lots).astype(np.int64), bounds
            self._rest[dtype] = np.flatnonzero(rest)
        return found

    # --- a run ------------------------------------------------------------------------------------

    def run(self, feeds: Any = None, watch: Any = None, guard: bool = False) -> list[Array]:
        """Do one step; see `ParallelStep.run`."""
        if self._is_newer:
            for one in self.held:
                one.own.value.write(one.cut(one.whole.value.read()))
            self._is_newer = False
        self._collected = {}
        return super().run(feeds, watch, guard)

    def _share(
        self, small: Array, parts: Sequence[list[Array]], likes: Sequence[Array], there: Sequence[int],
        guard: bool,
    ) -> None:  # fmt: skip
        if not self.held:
            super()._share(small, parts, likes, there, guard)
            return
        mine: dict[np.dtype[Any], Array] = {}
        vectors: list[Array] = []
        for own, like in zip(parts, likes, strict=True):
            (order, bounds), rest = self._order[like.dtype], self._rest[like.dtype]
            lots = [one[order] for one in own]
            mine[like.dtype] = self._tree.reduced_share(lots, like[order], there, bounds)
            whole = np.zeros_like(like)
            if len(rest):
                whole[rest] = self._tree.all_sum([one[rest] for one in own], like[rest], there)
            vectors.append(whole)
        at = dict.fromkeys(mine, 0)
        fed: dict[Node, Any] = dict(self.scalars())
        for one in self._in_order():
            dtype = one.gradient.dtype
            end = at[dtype] + one.count
            fed[one.gradient] = mine[dtype][at[dtype] : end] if one.count else np.zeros(1, dtype)
            at[dtype] = end
        fed |= self._shared.buckets.feeds(dict(zip(mine, vectors, strict=True)))
        fed |= {self._shared.total: small[1], self._shared.rows: small[2]}
        used = self._update.program.placeholders
        self._update.run({n: np.asarray(fed[n]) for n in used}, guard=guard)
        self._give_out()

    def _in_order(self) -> list[Held]:
        """Parts in the order in which their gradients lie in the vectors."""
        by_node = {one.whole: one for one in self.held}
        return [by_node[p.node] for p in self.parameters if p.node in by_node]

    def _give_out(self) -> None:
        """All ranks get all parameters."""
        for one in self.held:
            one.whole.value.write(one.together(self._everyones(one, one.own.value.read())))

    def _everyones(self, one: Held, own: Array) -> list[Array]:
        """The elements of a parameter, or of its moment, that each rank has."""
        counts = [one.layout.elements(rank) for rank in range(self._comm.size)]
        flat = np.ascontiguousarray(np.asarray(own)[: one.count])
        bounds = np.cumsum(counts)[:-1]
        return np.split(self._comm.all_gather(flat, counts=counts), bounds)

    # --- the state --------------------------------------------------------------------------------

    def _whole_moment(self, name: str, part: Held) -> Array:
        return part.together(self._everyones(part, self._slots[name].value.read()))

    def collect(self) -> None:
        """Give all ranks whole moments; all of them call it."""
        self._collect_moments()

    def begin_epoch(self) -> None:
        """Go on from the model's parameters, which callbacks may have set."""
        self._is_newer = True

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, on any number of ranks."""
        super().load_state(state)
        self._is_newer = True

    @property
    def own_bytes(self) -> int:
        """Bytes of the elements of parameters and moments that this rank updates alone."""
        held = sum(int(one.own.value.read().nbytes) for one in self.held)
        return held + sum(int(self._slots[name].value.read().nbytes) for name in self._moments)


def _packed(whole: Array, layout: Layout, rank: int) -> Array:
    from magmadnn.dmath.arrays.making import packed

    own: Array = packed(whole, layout, rank)
    return own


def step_of(
    way: Any, optimizer: Any, loss: Operation, parameters: Any, *more: Any, **named: Any
) -> RanksStep:
    """The step of a rank: one in which ranks compute parts of layers, or one that brings weights together."""
    layers = splittable([loss.node], [p.node for p in parameters])
    splits = splits_of(way, layers, way.workers().size)
    way.shares_rows = splits is None
    made = LaidOutStep if splits is None else PlacedStep
    return made(way, optimizer, loss, parameters, *more, **named)
