"""A training step of several ranks, whose bits do not depend on how many there are.

A batch is cut into shards. One program computes of each shard the loss, the sums of metrics and the
gradients, all times what the shard weighs. They are added in the order of a tree (`tree.py`), and a second
program, the same on all ranks, divides by the weight of the batch and updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from magmadnn import ops
from magmadnn.comm import Communicator
from magmadnn.errors import ArgumentError, NumericError
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import PLACEHOLDER, Updated, placeholder, topological
from magmadnn.graph.op import Array
from magmadnn.memory.dtypes import is_floating
from magmadnn.optim import Step, StepSlices
from magmadnn.optim.building.accumulation import Accumulation, inverse_of
from magmadnn.optim.courses import StepCourse
from magmadnn.optim.memory_check import BATCH
from magmadnn.runtime import Executable
from magmadnn.runtime.agreement import ALONE, agreeing
from magmadnn.runtime.step_memory import StepMemory
from magmadnn.tensor import Operation
from magmadnn.tensor.operation import Feeds, as_feeds

from .buckets import Buckets, size_of
from .in_graph.slices import RanksSlices, on_wire
from .in_graph.whole_step import ShardGraph, whole_step
from .ranks_step import RanksStep, refuse, vectors_bytes
from .tree import TreeSum, cuts

if TYPE_CHECKING:
    from magmadnn.optim.building.update import Update

_SCALAR = Spec((), np.dtype(np.float64))
_HEAD = 4  # failures, weight, rows, weight * loss: what the small vector begins with


class Way(Protocol):
    """How ranks share the work: what a step asks of `DataParallel`."""

    computed: Callable[[Any], None] | None
    wire: Literal["bfloat16"] | None

    @property
    def parts(self) -> int:
        """Parts of a batch, of which each rank computes some."""
        ...

    def workers(self) -> Communicator:
        """The ranks that train."""
        ...

    def settle(self, device: str) -> None:
        """Be told where the model is, before `parts` is asked for."""
        ...


class SharedGradients:
    """Between the two halves of a step: gradients go out of one, their means come into the other.

    It has the place of an `Accumulation`, and may be followed by one.

    Args:
        mass: what the mean over a shard was divided by: a scalar of float64.
        every: batches whose gradients are averaged for one update.
    """

    def __init__(self, mass: Operation, every: int = 1) -> None:
        self.mass, self.buckets = mass, Buckets()
        self.plain: list[Node] = []  # gradients of a shard before they are weighed
        self.total = placeholder("total_mass", _SCALAR)
        self.rows = placeholder("total_rows", _SCALAR)
        self.groups = None if every == 1 else Accumulation(every, Operation(self.total))

    def averaged(self, gradients: Sequence[Operation], names: Sequence[str]) -> list[Operation]:
        """The means over all shards, and over groups of batches, from the gradients of a shard."""
        means = self.means(gradients)
        return means if self.groups is None else self.groups.averaged(means, names)

    def means(self, gradients: Sequence[Operation]) -> list[Operation]:
        """The means over all shards, from the gradients of one."""
        is_heavy = ops.greater(self.mass, 0.0)
        self.plain = [g.node for g in gradients]
        weighed = [ops.where(is_heavy, g * ops.cast(self.mass, g.dtype), 0) for g in gradients]
        sums, inverse = self.buckets.exchanged(weighed, "gradient"), self.inverse()
        return [s * ops.cast(inverse, s.dtype) for s in sums]

    def inverse(self) -> Operation:
        """What sums are multiplied by to be means: a scalar of float64."""
        return inverse_of(Operation(self.total))

    def kept(self, updates: Sequence[Updated]) -> Sequence[Updated]:
        """The updates; at the end of a group only, where there are groups."""
        return updates if self.groups is None else self.groups.kept(updates)

    def updates(self) -> list[Updated]:
        """What else is updated."""
        return [] if self.groups is None else self.groups.updates()

    @property
    def slots(self) -> dict[str, Any]:
        """What belongs to the state."""
        return {} if self.groups is None else self.groups.slots


class ParallelStep(RanksStep):
    """One step of a batch whose shards are shared by ranks; see `Step`.

    Args:
        way: how ranks share the work.
        optimizer, loss, parameters, outputs, executor, precision, device, kept, more: as for `Step`.
        mass: what the mean loss of a batch is divided by: a scalar of float64.
        rows: samples of a batch: a scalar of float64.
        every: batches whose gradients are averaged for one update.

    Attributes:
        whole_rows: of the next batch, all shards together.
        states: what the graph itself updates: running statistics, counters.
    """

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
        way.settle(device)
        self._shared = SharedGradients(mass, every)
        self._way, self._rows = way, rows
        self._comm = way.workers()
        self._tree = self._joined()
        self.whole_rows = 0
        self._slices: RanksSlices | None = None
        self._updated_elsewhere: set[Node] = set()  # in place of parameters
        self._shapes = [bind_shape(o.shape, {}) for o in outputs]
        super().__init__(
            optimizer, loss, parameters, outputs, executor, precision, device, kept, more,
            self._shared,  # type: ignore[arg-type]  # has what is asked of an Accumulation there
        )  # fmt: skip
        self.accumulation = self._shared.groups

    def _joined(self) -> TreeSum:
        return TreeSum(self._comm, self._way.parts)

    def next_batch(self, rows: int, epoch: int, batch: int, batches: int | None, size: int) -> None:
        """Be told of the batch that is run next: samples of all ranks, and its place in training."""
        self.whole_rows = rows

    # --- the two programs -------------------------------------------------------------------------

    def _compiled(self, update: Update, way: dict[str, Any]) -> Executable:
        """The gradients of a shard; `self._update` is the rest."""
        known = {p.node for p in self.parameters} | {s.node for s in update.slots.values()}
        known |= (
            self._updated_elsewhere
            | {update.count.node}
            | {s.node for s in self._shared.slots.values()}
        )
        own = [(target, value) for target, value in update.updates if target not in known]
        updates = [pair for pair in update.updates if pair[0] in known]
        statistics = [(t, v) for t, v in own if is_floating(t.dtype)]
        self._counters = [(t, advance(t, v)) for t, v in own if not is_floating(t.dtype)]
        rows = Operation(self._shared.rows)
        weighed = [Operation(v) * ops.cast(self._rows, v.dtype) for _, v in statistics]
        means = self._shared.buckets.exchanged(weighed, "statistic")
        for (target, _), total in zip(statistics, means, strict=True):
            updates.append((target, (total / ops.cast(rows, target.dtype)).node))
        self._update = Executable([(update.count + 0).node], updates, training=True, **way)
        loss, *sums = (ops.cast(Operation(n), "float64") for n in update.outputs)
        mass = self._shared.mass
        above = ops.where(ops.greater(mass, 0.0), loss * mass, 0.0)
        head = ops.stack(
            [ops.cast(0.0, "float64") * mass, mass, ops.cast(self._rows, "float64"), above]
        )
        flat = [ops.reshape(s, (size_of(s.node.spec),)) for s in sums]
        small = ops.concat([head, *flat], axis=0) if flat else head
        outputs = [small, *self._shared.buckets.vectors()]
        self._graph = ShardGraph(
            small.node,
            self._shared.buckets.values,
            self._shared.plain,
            mass if isinstance(mass, Node) else mass.node,
            [node for node, _ in self._shared.buckets.places],
            self._shared.total,
            self._shared.rows,
            self._counters,
            updates,
        )
        self._compiling = way
        self._device = self._update.device
        self.states = [t for t, _ in own]
        self._small_length = size_of(small.node.spec)
        return Executable([o.node for o in outputs], training=True, **way)

    # --- a run ------------------------------------------------------------------------------------

    def run(
        self, feeds: Feeds | None = None, watch: Any = None, guard: bool = False
    ) -> list[Array]:
        """Do one step on this rank's rows of a batch; the loss and the outputs of all of it, as `Step.run`.

        Raises:
            what is wrong on this rank, or MagmaDNNError if it is on another; nothing is updated then on any.
        """
        own = as_feeds(feeds)
        bounds = cuts(self.whole_rows, self._way.parts)
        there = [s for s in range(self._way.parts) if bounds[s + 1] > bounds[s]]
        before = [int(node.value.read()) for node, _ in self._counters]
        failed: list[Exception] = []

        def leaf(shard: int) -> list[Array]:
            return self._shard(shard, own, bounds, before, failed)

        try:
            sums = self._tree.own(leaf, there)
        finally:
            self._count_on(before, 0)
        if self._way.computed is not None:
            self._way.computed(self._comm)
        likes = self._likes()
        small = self._tree.all_sum([one[0] for one in sums], likes[0], there)
        if small[0]:
            raise self._told(failed[0] if failed else None)
        if guard and not np.isfinite(small).all():
            raise self._told(self._fault(own, bounds, before))
        parts = [[one[k] for one in sums] for k in range(1, len(likes))]
        try:
            self._share(small, parts, likes[1:], there, guard)
        except NumericError as error:
            raise self._told(self._fault(own, bounds, before), error) from error
        self._count_on(before, self._way.parts)
        return self.outputs_of(small)

    def _share(
        self, small: Array, parts: Sequence[list[Array]], likes: Sequence[Array], there: Sequence[int],
        guard: bool,
    ) -> None:  # fmt: skip
        """Add up gradients of all shards, and update; `parts` are this rank's, for each dtype."""
        pairs = zip(parts, likes, strict=True)
        vectors = [self._tree.all_sum(own, like, there) for own, like in pairs]
        self._apply(small, vectors, self.scalars(), guard)

    def _apply(
        self, small: Array, vectors: Sequence[Array], scalars: Mapping[Node, Any], guard: bool
    ) -> None:
        """Update, from the sums over all shards; all ranks that do have the same numbers."""
        by_dtype = dict(zip(self._shared.buckets.lengths, vectors, strict=True))
        fed = self._shared.buckets.feeds(by_dtype)
        fed |= {self._shared.total: small[1], self._shared.rows: small[2], **scalars}
        used = set(self._update.program.placeholders)
        with agreeing(ALONE):
            self._update.run({n: np.asarray(v) for n, v in fed.items() if n in used}, guard=guard)

    def _shard(
        self, shard: int, own: Mapping[Node, Any], bounds: Sequence[int], before: Sequence[int],
        failed: list[Exception],
    ) -> list[Array]:  # fmt: skip
        """What the first program gives for a shard; a failure is a number in its place."""
        if not failed:
            try:
                self._count_on(before, shard)
                return self._sums_of(self._rows_of(shard, own, bounds))
            except Exception as error:
                failed.append(error)
        found = self._likes()
        found[0][0] = 1.0
        return found

    def _sums_of(self, feeds: Mapping[Node, Any]) -> list[Array]:
        """What the first program gives."""
        return self._executable.run(feeds)

    def _likes(self) -> list[Array]:
        lengths = self._shared.buckets.lengths.items()
        return [np.zeros(self._small_length), *(np.zeros(n, d) for d, n in lengths)]

    def _rows_of(
        self, shard: int, own: Mapping[Node, Any], bounds: Sequence[int]
    ) -> dict[Node, Any]:
        first = bounds[self._tree.first]
        rows = slice(bounds[shard] - first, bounds[shard + 1] - first)
        return {node: np.asarray(value)[rows] for node, value in own.items()}

    def _count_on(self, before: Sequence[int], shards: int) -> None:
        """Set counters of random numbers to where a shard begins: each shard draws its own."""
        for (node, step), number in zip(self._counters, before, strict=True):
            node.value.write(np.asarray(number + shards * step, node.dtype))

    def outputs_of(self, small: Array) -> list[Array]:
        """The loss and the outputs of a batch, from the sums over its shards."""
        found, at = [np.asarray(small[3] / small[1] if small[1] else 0.0)], _HEAD
        for shape in self._shapes:
            size = int(np.prod(shape, dtype=np.int64))
            found.append(small[at : at + size].reshape(shape))
            at += size
        return found

    def _fault(
        self, own: Mapping[Node, Any], bounds: Sequence[int], before: Sequence[int]
    ) -> Exception | None:
        """What made NaN or infinity on this rank."""
        try:
            with agreeing(ALONE):
                for shard in range(self._tree.first, self._tree.last):
                    if bounds[shard + 1] > bounds[shard]:
                        self._count_on(before, shard)
                        self._executable.run(self._rows_of(shard, own, bounds), guard=True)
        except Exception as error:
            return error
        finally:
            self._count_on(before, 0)
        return None

    def _held(self) -> list[Node]:
        floats = [n for n in self.states if n not in [c for c, _ in self._counters]]
        return [*(p.node for p in self.parameters), *floats]

    def _values(self) -> list[Array]:
        """Parameters and running statistics, one vector for each dtype."""
        by: dict[Any, list[Array]] = {}
        for node in self._held():
            by.setdefault(node.dtype, []).append(np.ravel(node.value.read()))
        return [np.concatenate(parts) for parts in by.values()]

    def _take(self, vectors: Sequence[Array]) -> None:
        at = dict.fromkeys([v.dtype for v in vectors], 0)
        by = {v.dtype: v for v in vectors}
        for node in self._held():
            size, start = int(np.prod(node.shape, dtype=np.int64)), at[node.dtype]
            node.value.write(by[node.dtype][start : start + size].reshape(node.shape))
            at[node.dtype] = start + size

    def share_state(self) -> None:
        """Give all ranks what the optimiser of the server goes on from, and counters."""
        held = [self._count, *self._slots.values()]
        for node in [*(v.node for v in held), *(c for c, _ in self._counters)]:
            value = np.array(node.value.read(), order="C")
            node.value.write(self._comm.broadcast(value))

    # --- what a step of one batch has beside that -------------------------------------------------

    def slices(
        self, data: Mapping[Any, Array], batch_size: int, streams: bool = False,
        ring_bytes: int | None = None,
    ) -> StepSlices | None:  # fmt: skip
        """Many batches in one call, sums over ranks included; see `Step.slices`.

        Args:
            data: whole batches are taken from it, of which this rank computes its rows.
            batch_size: rows of a whole batch.
            streams: for devices.
            ring_bytes: for devices.

        Returns:
            None where it has to be done batch by batch, in two programs.
        """
        if type(self) is not ParallelStep or self._compiling["executor"] != "native":
            return None
        if self._way.computed is not None or batch_size < self._way.parts:
            return None
        rows = as_feeds(data)
        bounds = cuts(batch_size, self._way.parts)
        device = self._device
        whole = whole_step(
            self._graph,
            list(rows),
            self._tree,
            self._comm.size,
            bounds,
            device is not None,
            on_wire(self._way.wire, self._comm, device),
        )
        if whole is None:
            return None
        found = RanksSlices.of(self, self._settings, whole, rows, bounds, self._compiling)
        self._slices = found or self._slices
        return found

    def text(self, sizes: Mapping[str, int]) -> str:
        """What the last fit's steps ran, and what they sent; the program of a shard before there is one."""
        return super().text(sizes) if self._slices is None else self._slices.text(sizes)

    def _memory_for(self, sizes: Mapping[str, int], workspace: bool) -> StepMemory | None:
        """That of a step as two programs, or of many in one call, whichever takes more.

        On a device the two programs run a step at a time, with no room for what many steps give.
        """
        rows = sizes.get(BATCH, 1)
        each = -(-rows // self._way.parts)
        shard, update = {**sizes, BATCH: each}, {**sizes, BATCH: 1}
        vectors = vectors_bytes(self._shared.buckets.lengths) + 8 * self._small_length
        one = self._executable.memory(shard, False)
        found = self._together(
            [(self._executable, shard), (self._update, update)],
            workspace and self._device is None, 0,
            int(vectors * self._most_vectors()),
            (self._tree.last - self._tree.first) * (0 if one is None else one.batch),
        )  # fmt: skip
        whole = None if self._slices is None else self._slices.memory_of(rows)
        if found is None or whole is None:
            return found
        whole = whole.with_state(self._state_nodes())
        return found if found.total >= whole.total else whole

    def _most_vectors(self) -> float:
        """Vectors as long as all gradients that this rank has at a time, at most, beside a program's."""
        every = range(self._way.parts)
        blocks = self._tree.blocks(self._comm.rank, every)
        adding = len(blocks) + max((level for level, _ in blocks), default=0)
        if self._comm.size == 1:
            return adding
        others = sum(len(self._tree.blocks(r, every)) for r in range(self._comm.size))
        sent = len(blocks) if len(blocks) > 1 else 0
        return max(adding, len(blocks) + sent + others / self._comm.size + 1)

    def _missing(self, sizes: Mapping[str, int]) -> int:
        """As `RanksStep`; on a device the whole step is one program, of which a shard is the least."""
        if self._device is None:
            return super()._missing(sizes)
        each = -(-sizes.get(BATCH, 1) // self._way.parts)
        return self._executable.missing_bytes({**sizes, BATCH: each})

    @property
    def ranks(self) -> tuple[Communicator, TreeSum]:
        """The ranks, and the tree that gradients are added by."""
        return self._comm, self._tree

    def course(self, *arguments: Any, **named: Any) -> StepCourse | None:
        """None: other ranks wait for this one."""
        return None

    def prepare(self, feeds: Mapping[Node, Array], batch_size: int) -> None:
        """On a device: compile now what a shard needs; see `Step.prepare`."""
        if self._device is not None:
            Step.prepare(self, feeds, batch_size)


def advance(target: Node, value: Node) -> int:
    """By how much a step moves a counter on.

    Raises:
        ArgumentError: if it is none: its new value depends on data, or is not so much more each time.
    """
    nodes = topological([value])
    simple = target.shape == () and not any(n.op is PLACEHOLDER for n in nodes)
    if simple:
        now = target.value.read().copy()
        found = []
        program = Executable([value])
        try:
            for start in (now, now + 7):
                target.value.write(np.asarray(start, target.dtype))
                found.append(int(program.run({})[0]) - int(start))
        finally:
            target.value.write(now)
        if found[0] == found[1]:
            return found[0]
    raise ArgumentError(
        f"DataParallel: the state {target.name} ({target.spec}) is no counter, nor a mean over samples, "
        f"so shards "
        "of a batch cannot share it: train without parallel="
    )
