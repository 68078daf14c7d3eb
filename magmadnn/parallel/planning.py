"""What each way to train would take, and which is the quickest that has room: `plan`.

A step of each way is planned as it would run: the programs of ranks, what they send, the memory of the
compiled plan. Times are a model, not measurements:

    seconds = operations / rate + bytes / memory's rate + sum over rounds of messages (latency + bytes / wire)

and bytes of sums and gathers over workers once more by a rate of their own. Bytes are those of results and of
products' operands; a batch that is computed in parts, as shards or micro-batches, reads weights and adds up
gradients for each. So times compare ways, and are as good as the rates. They suppose a core for each worker:
workers that share cores, with each other or with other programs, wait for each other at every message, which
the model does not know of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

from magmadnn.compiler.plan.planning import native_plan
from magmadnn.errors import ArgumentError, MagmaDNNError, OutOfMemoryError, quoted
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import Node, variable
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.placing import Placement, axes_of, local_shape
from magmadnn.graph.program import Program
from magmadnn.graph.spec import Spec
from magmadnn.memory.usage import in_units
from magmadnn.optim.building.update import keys_of
from magmadnn.optim.memory_check import BATCH
from magmadnn.runtime.step_memory import StepMemory, step_memory

from .data_parallel import DataParallel
from .in_graph.whole_step import BUCKET_BYTES, GPU_BUCKET_BYTES
from .pipelined.pipeline import Pipeline
from .pipelined.stages import costs_of_layers, evened, layer_of, layers_in_order
from .placements.distribute import Distribution, elements, sharing_rows
from .placements.fewer_ranks import Shared, shared_by
from .placements.model_parallel import Hybrid, ModelParallel
from .placements.one_rank import of_rank
from .placements.splits import Splittable, chosen, placements_of, splittable, with_slots, within
from .way import SHARDS, TrainingWay, is_whole

_MICRO_BATCHES = 4
_Leaves = dict[Node, tuple[Placement, Node]]


class Planned(Protocol):
    """What is asked of a model."""

    def _planned(self, what: str, x: Any, y: Any) -> Any: ...


@dataclass(frozen=True)
class Rates:
    """Of one worker, and of what connects two.

    Attributes:
        operations: floating-point operations in a second.
        memory: bytes of values that are read or written in a second.
        wire: bytes from one worker to another in a second.
        latency: seconds of a message without content.
        collecting: bytes of sums and gathers over workers that a worker sends in a second, apart from the
            wire: copies, additions and new memory.
    """

    operations: float = 3e10
    memory: float = 1e10
    wire: float = 3e9
    latency: float = 3e-5
    collecting: float = 1e9

    def __post_init__(self) -> None:
        for name in ("operations", "memory", "wire", "latency", "collecting"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ArgumentError(f"Rates: {name} must be a number above 0, got {value!r}")


@dataclass(frozen=True)
class Prediction:
    """What one way would take.

    Attributes:
        name: "alone", "data", "model", "hybrid", "pipeline"; data parallel with a shared-out "optimiser",
            or with shared-out "parameters".
        workers: how many it uses, which may be fewer than there are.
        seconds: of a step.
        computing: the part of them in which a worker computes.
        sent: bytes that a worker sends in a step.
        memory: bytes that a step takes on the worker that needs the most.
        way: for `fit(parallel=...)`; None for one worker.
        fewer: of layers that not all of the workers compute, the number that do, by path.
    """

    name: str
    workers: int
    seconds: float
    computing: float
    sent: int
    memory: int
    way: TrainingWay | None
    fewer: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class TrainingPlan:
    """Predictions for all ways, and the proposal.

    Attributes:
        predictions: of each way, the best number of workers up to those that there are.
        best: the quickest that has room.
        left_out: ways that the model cannot be trained in, and why.
        memory_limit: bytes of each worker; None for no limit.
    """

    predictions: tuple[Prediction, ...]
    best: Prediction
    left_out: Mapping[str, str]
    memory_limit: int | None = None

    @property
    def way(self) -> TrainingWay | None:
        """For `fit(parallel=plan.way)`."""
        return self.best.way

    def __str__(self) -> str:
        lines = [
            "predicted, with a core for each worker; workers that share cores wait for each other longer",
            f"  {'way':<10}{'workers':>8}{'a step':>11}{'computing':>11}{'sent':>11}{'memory':>11}",
        ]
        for one in self.predictions:
            mark = "*" if one is self.best else " "
            full = self.memory_limit is not None and one.memory > self.memory_limit
            lines.append(
                f"{mark} {one.name:<10}{one.workers:>8}"
                f"{one.seconds * 1e3:>8.2f} ms{one.computing * 1e3:>8.2f} ms"
                f"{in_units(one.sent):>11}{in_units(one.memory):>11}{'  no room' if full else ''}"
            )
        lines += [f"  {name:<10}left out: {why}" for name, why in self.left_out.items()]
        for one in self.predictions:
            for path, ranks in one.fewer.items():
                which = "rank 0" if ranks == 1 else f"ranks 0 to {ranks - 1}"
                lines.append(f"  {one.name:<10}{path} on {which} of {one.workers}")
        return "\n".join(lines)


def plan(
    model: Planned,
    workers: int,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int = 32,
    memory_limit: int | None = None,
    rates: Rates | None = None,
    all_workers: bool = False,
) -> TrainingPlan:
    """Predict time and memory of a step for each way to train, and propose one.

    Each way may use fewer workers than there are, and one worker is among the ways, so the proposal is never
    slower with more workers; beyond 16 some numbers are tried only (`tried_numbers`). "hybrid" may give a
    Dense layer to some of its workers only, where that is quicker. `print` the result for a table.

    Args:
        model: with loss and optimiser.
        workers: how many there are.
        x: data as for `fit`, of which a few samples will do; not needed once the model was fitted.
        y: targets, likewise.
        batch_size: rows of a batch, of all workers together.
        memory_limit: bytes that a step may take on each worker; None for any.
        rates: of workers and of what connects them; None for usual ones of a processor's core.
        all_workers: whether each way has to use all of them, as processes that are there already do.

    Raises:
        ArgumentError: if workers, batch_size or memory_limit are no numbers from 1, model or rates are
            something else, or all workers cannot train together.
        OutOfMemoryError: if no way has room.
    """
    given = (("workers", workers), ("batch_size", batch_size), ("memory_limit", memory_limit))
    for name, value in given:
        if not is_whole(value, 1) and not (name == "memory_limit" and value is None):
            raise ArgumentError(f"plan: {name} must be a whole number of at least 1, got {value!r}")
    if not hasattr(model, "_planned"):
        raise ArgumentError(f"plan: model must be an md.Model, got {quoted(model)}")
    if rates is not None and not isinstance(rates, Rates):
        raise ArgumentError(f"plan: rates must be md.parallel.Rates, got {quoted(rates)}")
    step = model._planned("plan", x, y)
    if not hasattr(step, "parameters"):
        raise ArgumentError("plan: the model has no optimizer, so there is no training to plan")
    return _Planner(step, batch_size, rates or Rates(), memory_limit).plan(workers, all_workers)


def tried_numbers(workers: int) -> list[int]:
    """Numbers of workers that a plan tries, from 2 on: all up to 16, then four between 16 and 32, and so on.

    What more workers try has all that fewer try, so that no proposal is slower with more.
    """
    return [
        n for n in range(2, workers + 1) if n <= 16 or n % (1 << ((n - 1).bit_length() - 3)) == 0
    ]


class _Planner:
    def __init__(self, step: Any, rows: int, rates: Rates, limit: int | None) -> None:
        self._rows, self._rates, self._limit = rows, rates, limit
        program = step._executable.program
        self._program = Program(tuple(program.outputs), tuple(program.updates))
        self._parameters = [p.node for p in step.parameters]
        self._slots = step._slots
        self._is_on_gpu = step._executable.device is not None
        known = step.memory({BATCH: rows})
        self._workspace = 0 if known is None else known.workspace
        self._layers: list[Splittable] = splittable(program.outputs[:1], self._parameters)

    def plan(self, workers: int, all_workers: bool) -> TrainingPlan:
        makers = {"data": self._data, "optimiser": self._optimiser, "parameters": self._pieces}
        makers |= {"model": self._model, "hybrid": self._hybrid, "pipeline": self._pipeline}
        self._one = one = self._alone()
        found: list[Prediction] = [] if all_workers and workers > 1 else [one]
        left_out: dict[str, str] = {}
        for name, make in makers.items():
            of_each: list[Prediction] = []
            why = "it needs two workers"
            for count in [workers] if all_workers else tried_numbers(workers):
                try:
                    of_each += [make(count)] if count > 1 else []
                except MagmaDNNError as error:
                    why = str(error)
            if of_each:
                best = min(of_each, key=self._rank)
                found.append(self._by_layer(best) if name == "hybrid" else best)
            else:
                left_out[name] = why
        if not found:
            raise ArgumentError(
                f"plan: {workers} workers cannot train this model together: "
                + "; ".join(f"{name}: {why}" for name, why in left_out.items())
            )
        best = min(found, key=self._rank)
        if self._limit is not None and best.memory > self._limit:
            raise OutOfMemoryError(
                f"plan: no way to train with batch_size={self._rows} on up to {workers} workers has room in "
                f"memory_limit={in_units(self._limit)}: {best.name} on {best.workers} needs "
                f"{in_units(best.memory)}; use more workers, or a smaller batch"
            )
        return TrainingPlan(tuple(found), best, left_out, self._limit)

    def _rank(self, one: Prediction) -> tuple[float, ...]:
        """The quickest that has room; where none has, that which needs the least."""
        over = max(0, one.memory - self._limit) if self._limit is not None else 0
        return over, one.seconds, one.workers

    # --- ways -------------------------------------------------------------------------------------

    def _alone(self) -> Prediction:
        seconds = self._computing(self._program, self._rows)
        memory = self._memory(self._program, self._rows)
        self._whole = memory
        return Prediction("alone", 1, seconds, seconds, 0, memory.total, None)

    def _model(self, count: int) -> Prediction:
        splits = chosen("ModelParallel", self._layers, count, only_dense=False)
        return self._placed("model", count, ModelParallel(), Shared(splits), shares_rows=False)

    def _hybrid(self, count: int) -> Prediction:
        """Dense layers on all workers, or on the first 1, 2, 4 .. of them."""
        dense = [str(one.layer.path) for one in self._layers if one.is_dense]
        fewer = [self._on(count, dict.fromkeys(dense, n)) for n in _fewer(count) if dense]
        try:
            splits = chosen("Hybrid", self._layers, count, only_dense=True)
        except ArgumentError:
            if not fewer:
                raise
            return min(fewer, key=self._rank)
        on_all = self._placed("hybrid", count, Hybrid(), Shared(splits), shares_rows=True)
        return min([on_all, *fewer], key=self._rank)

    def _by_layer(self, best: Prediction) -> Prediction:
        """One Dense layer after the other on more or fewer workers, where that is quicker."""
        count, ranks = best.workers, dict(best.fewer)
        for path in [str(one.layer.path) for one in self._layers if one.is_dense]:
            others = [n for n in (*_fewer(count), count) if n != ranks.get(path, count)]
            found = [self._on(count, {**ranks, path: n}) for n in others]
            best = min([best, *found], key=self._rank)
            ranks = dict(best.fewer)
        return best

    def _on(self, count: int, ranks: Mapping[str, int]) -> Prediction:
        """Dense layers on the first of the workers: how many, by path; on all where nothing is said."""
        shared = shared_by(self._layers, ranks, count)
        made = self._placed("hybrid", count, Hybrid(shared.layouts), shared, shares_rows=True)
        return replace(made, fewer={path: n for path, n in ranks.items() if n < count})

    def _data(self, count: int) -> Prediction:
        if count > self._rows:
            raise ArgumentError(
                f"a batch of {self._rows} rows has none for each of {count} workers"
            )
        rows = -(-self._rows // count)
        sizes = [elements(p.shape) * p.dtype.itemsize for p in self._parameters]
        sent, shards = 2 * (count - 1) / count * sum(sizes), max(SHARDS, count)
        bucket = GPU_BUCKET_BYTES if self._is_on_gpu else BUCKET_BYTES
        sums = 1 + -(-sum(sizes) // bucket)  # one of the loss and metrics
        computing = self._computing(
            self._program, rows, 1 if self._is_on_gpu else -(-shards // count)
        )
        seconds = computing + 2 * sums * self._rates.latency + self._collected(sent)
        found = self._memory(self._program, rows)
        memory = int(found.total - found.gradients + self._vectors(count) * sum(sizes))
        way = DataParallel(shards=shards)
        return Prediction("data", count, seconds, computing, int(sent), memory, way)

    def _vectors(self, count: int) -> int:
        """Vectors of gradients that a worker has at a time: of blocks of its shards, to be sent, and the sum.

        Of shards that are added in a tree one waits on each level.
        """
        if self._is_on_gpu:
            return 3
        shards = max(SHARDS, count)
        own = -(-shards // count)
        return 3 + (own - 1).bit_length() + (2 if shards % count or own & (own - 1) else 0)

    def _optimiser(self, count: int) -> Prediction:
        """As `_data`, with the optimiser's state of a share of the parameters: the bytes sent are the same.

        Sums are scattered, and new parameters gathered. On processors shares are of whole parameters.
        """
        data, slots = self._data(count), sum(slot.value.nbytes for slot in self._slots.values())
        if count > len(self._parameters):
            raise ArgumentError(f"{count} workers cannot share {len(self._parameters)} parameters")
        share = 1 / count
        if not self._is_on_gpu:
            sizes = [float(elements(p.shape)) for p in self._parameters]
            bounds = [0, *evened(sizes, [True] * len(sizes), count), len(sizes)]
            share = max(sum(sizes[a:b]) for a, b in pairwise(bounds)) / sum(sizes)
        memory = int(data.memory - 2 * slots * (1 - share))  # and copies to go back to
        way = DataParallel(shards=max(SHARDS, count), shard="optimiser")
        return replace(data, name="optimiser", memory=memory, way=way)

    def _pieces(self, count: int) -> Prediction:
        """As `_data`, with a piece of each parameter: gathered layer by layer, forward and back.

        At a time two layers' parameters are whole, and as many gradients of these.
        """
        data = self._data(count)
        layers: dict[Any, int] = {}
        for p in self._parameters:
            nbytes = elements(p.shape) * p.dtype.itemsize
            layers[layer_of(p)] = layers.get(layer_of(p), 0) + nbytes
        two, total = sum(sorted(layers.values())[-2:]), sum(layers.values())
        sent = 3 * (count - 1) / count * total  # forward, back, and scattered sums
        calls = 3 * len(layers) - 1  # what the last layer gathered is there on the way back
        seconds = data.computing + calls * self._rates.latency + self._collected(sent)
        rows = self._memory(self._program, -(-self._rows // count))
        kept = (rows.parameters + rows.copies) / count  # with the optimiser's state
        memory = kept + self._vectors(count) * two + rows.activations + rows.batch + rows.workspace
        way = DataParallel(shards=max(SHARDS, count), shard="parameters")
        return Prediction("parameters", count, seconds, data.computing, int(sent), int(memory), way)

    def _placed(
        self, name: str, count: int, way: TrainingWay, shared: Shared, shares_rows: bool
    ) -> Prediction:
        given = {str(one.layer.path): "data" for one in self._layers} | dict(shared.splits)
        keys = dict(zip(keys_of(self._parameters), self._parameters, strict=True))
        placements = with_slots(placements_of(self._layers, given, shared.some), keys, self._slots)
        leaves: _Leaves = {}
        for node, one in placements.items():
            shape = local_shape(node.shape, one, count)
            leaves[node] = one, variable(node.name, Spec(shape, node.dtype), node.value)
        program, rows, stays = self._program, self._rows, list(leaves)
        held = {own: lies.on for lies, own in leaves.values() if lies.on is not None}
        if shares_rows:
            program, fed = sharing_rows(program, count)
            leaves, rows = leaves | fed, -(-rows // count)
        some = within(self._layers, shared.some)
        found = Distribution(program, leaves, count, stays=stays, within=some)
        own = of_rank(found.program, held, 0, count) if held else found.program  # it has all layers
        collectives = found.sent(rows)
        sent = [(s.elements * s.itemsize) for s in collectives]
        rounds = sum(2 if s.op == "all_reduce" else 1 for s in collectives)
        computing = self._computing(own, rows)
        seconds = computing + rounds * self._rates.latency + self._collected(sum(sent))
        memory = self._memory(own, rows).total
        return Prediction(name, count, seconds, computing, int(sum(sent)), memory, way)

    def _pipeline(self, count: int) -> Prediction:
        nodes = Program(self._program.outputs[:1]).nodes()
        layers = layers_in_order(nodes)
        trained = {layer for p in self._parameters if (layer := layer_of(p)) is not None}
        has = [layer in trained for layer in layers]
        if sum(has) < count:
            raise ArgumentError(f"{sum(has)} layers with parameters are no {count} stages")
        costs = costs_of_layers(nodes, layers)
        begins = evened(costs, has, count)
        bounds = [0, *begins, len(layers)]
        runs = [slice(a, b) for a, b in pairwise(bounds)]
        share = max(sum(costs[run]) for run in runs) / max(sum(costs), 1.0)
        pieces = _MICRO_BATCHES
        computing = self._computing(self._program, self._rows, pieces) * share
        waits = computing * (pieces + count - 1) / pieces
        last = {layer: node for node in nodes if (layer := layer_of(node)) is not None}
        crossing = [
            elements(last[layers[b - 1]].shape, self._rows) * last[layers[b - 1]].dtype.itemsize
            for b in begins
        ]
        sent = 2 * max(crossing)  # forward, and its gradient
        wire = 2 * pieces * self._rates.latency + sent / self._rates.wire
        held = [
            sum(
                elements(p.shape) * p.dtype.itemsize
                for p in self._parameters
                if layer_of(p) in layers[run]
            )
            for run in runs
        ]
        part = max(held) / max(sum(held), 1.0)
        whole = self._whole
        fixed = (whole.parameters + whole.optimizer + whole.gradients + whole.copies) * part
        # at most `count` of the pieces are in flight, of the activations of a stage
        flying = (whole.activations * share + whole.batch) * min(count, pieces) / pieces
        memory = int(fixed + flying + whole.workspace)
        return Prediction(
            "pipeline", count, waits + wire, computing, int(sent), memory,
            Pipeline(micro_batches=pieces),
        )  # fmt: skip

    # --- costs ------------------------------------------------------------------------------------

    def _memory(self, program: Program, rows: int) -> StepMemory:
        return step_memory(native_plan(program), {BATCH: rows}, self._workspace)

    def _collected(self, sent: float) -> float:
        """Seconds of sums and gathers in which a worker sends so many bytes, but for latency."""
        return sent / self._rates.wire + sent / self._rates.collecting

    def _computing(self, program: Program, rows: int, parts: int = 1) -> float:
        """Seconds of a worker that computes so many rows in parts, one after the other, and updates once."""
        parts = min(parts, rows)
        seconds = 0.0
        for node in program.nodes():
            if isinstance(node.op, Op) and node.op.kind is not OpKind.COLLECTIVE:
                times = parts if any(_has_rows(one) for one in (*node.inputs, node)) else 1
                seconds += times * self._of_node(node, node.op, -(-rows // times))
        # gradients of parts are added up: two are read, one is written
        added: float = 3 * sum(elements(p.shape) * p.dtype.itemsize for p in self._parameters)
        return seconds + (parts - 1) * added / self._rates.memory

    def _of_node(self, node: Node, op: Op, rows: int) -> float:
        seconds = _operations(node, op, rows) / self._rates.operations
        if op.kind is OpKind.MOVEMENT:
            return seconds
        moved = [node, *node.inputs] if op.kind is OpKind.CONTRACTION else [node]
        count = sum(elements(one.shape, rows) * one.dtype.itemsize for one in moved)
        return seconds + count / self._rates.memory


def _fewer(count: int) -> list[int]:
    """Numbers of workers below `count`: powers of two."""
    return [1 << k for k in range(count.bit_length()) if 1 << k < count]


def _has_rows(node: Node) -> bool:
    """Whether a value has an element, or several, for each row of a batch."""
    return any(isinstance(size, Dim) for size in node.shape)


def _operations(node: Node, op: Op, rows: int) -> float:
    """Multiplications and additions of a node: 2 m k n of a product, 2 n windows taps c o of images."""
    if op.kind is not OpKind.CONTRACTION or len(node.inputs) != 2:
        return elements(node.shape, rows)
    every = [*node.inputs, node]
    sizes = [elements(one.shape, rows) for one in every]
    axes = axes_of(op, [i.spec for i in node.inputs], node.attributes)
    names = [] if axes is None else [*axes.operands, axes.result]
    images = [k for k, own in enumerate(names) if "n" in own and "o" in own and None in own]
    filters = [k for k, own in enumerate(names) if "n" not in own and None in own]
    if images and filters:
        outputs = elements(every[images[0]].shape[-1:], rows)
        return 2 * sizes[images[0]] * sizes[filters[0]] / outputs
    product = sizes[0] * sizes[1] * sizes[2]
    return float(2 * product**0.5)  # m k, k n and m n
