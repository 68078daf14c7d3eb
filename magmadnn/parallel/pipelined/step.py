"""One step of a pipeline, as one rank does it: its stage's micro-batches, forward and backward, 1F1B."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from magmadnn import ops
from magmadnn.comm import Communicator, Request
from magmadnn.comm.communicator import Json
from magmadnn.compiler.plan.memory import nbytes_of
from magmadnn.errors import ArgumentError, NumericError
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import PLACEHOLDER, placeholder
from magmadnn.graph.op import Array
from magmadnn.layers.layer import Layer
from magmadnn.memory.foreign import OnDevice
from magmadnn.optim import StepSlices, Transform
from magmadnn.optim.building.accumulation import Accumulation, inverse_of
from magmadnn.optim.building.loss_scaling import LossScale
from magmadnn.optim.building.update import Update, keys_of
from magmadnn.optim.courses import StepCourse
from magmadnn.optim.memory_check import BATCH
from magmadnn.optim.parts import adding_up
from magmadnn.parallel.ranks_step import refuse, sizes_of, vectors_bytes
from magmadnn.parallel.scattered import Scattered, ScatteredStep
from magmadnn.parallel.shared_sums import SharedSums
from magmadnn.runtime import Executable
from magmadnn.runtime.agreement import ALONE, agreeing
from magmadnn.runtime.step_memory import StepMemory
from magmadnn.tensor import Operation
from magmadnn.tensor.operation import Feeds, as_feeds

from .peer_pieces import PeerPieces
from .programs import Crossing, Cut, as_node, reported_by
from .schedule import orders
from .stages import begins_of, costs_of_layers, layer_of, layers_in_order

_SCALAR = Spec((), np.dtype(np.float64))


class Way(Protocol):
    """How ranks share the work: what a step asks of `Pipeline`."""

    micro_batches: int
    stages: list[str] | None
    computed: Callable[[Any], None] | None

    def workers(self) -> Communicator:
        """The ranks that train."""
        ...


@dataclass
class _Piece:
    """A micro-batch of this rank.

    Attributes:
        feeds: its rows of the data.
        sizes: of symbolic dimensions.
        saved: values that its way back needs, or memory that holds them; None where the way forward failed.
    """

    feeds: dict[Node, Any]
    sizes: dict[str, int]
    saved: list[Any] | None = None


@dataclass
class _Run:
    """What one step has found so far.

    Attributes:
        pieces: the micro-batches.
        reports: sums of what is reported, [failures, mass, rows, mass * loss, outputs].
        gradients: sums, a vector for each dtype, where they are on the host.
        there: where values stay on GPUs: what computes there.
        failed: the first thing that went wrong here.
        sending: messages under way.
        in_flight, most: micro-batches that wait for their way back, now and at most.
    """

    pieces: list[_Piece]
    reports: list[Array]
    gradients: list[Array]
    there: PeerPieces | None = None
    failed: Exception | None = None
    sending: list[tuple[Request, Array]] = field(default_factory=list)
    in_flight: int = 0
    most: int = 0


class PipelineStep(ScatteredStep):
    """One step of one stage; see `Step`.

    Args:
        way: how ranks share the work.
        optimizer, loss, parameters, outputs, executor, precision, device, kept, more: as for `Step`.
        mass: what the mean loss of a batch is divided by: a scalar of float64.
        rows: samples of a batch: a scalar of float64.
        every: batches whose gradients are averaged for one update.

    Attributes:
        stages: labels of the layers of each stage.
        most_in_flight: micro-batches of the last batch that waited for their way back at a time, at most.
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
        refuse("Pipeline", precision)
        self._way, self._comm = way, way.workers()
        self._mass, self._rows = (Operation(as_node(value)) for value in (mass, rows))
        self._shapes = [bind_shape(o.shape, {}) for o in outputs]
        self._total = placeholder("total_mass", _SCALAR)
        groups = None if every == 1 else Accumulation(every, Operation(self._total))
        self.most_in_flight, self._whole = 0, 0
        self._there: PeerPieces | None = None
        self._is_there, self._has_tried = False, False
        super().__init__(
            optimizer, loss, parameters, outputs, executor, precision, device, kept, more, groups
        )
        given = {parameter.node: parameter for parameter in parameters}
        self.parameters = tuple(given[node] for node in self._cut.parameters)
        own = [self._cut.stage_of(node) for node in self._cut.parameters]
        states = [(t, self._cut.stage_of(v)) for t, v in self._cut.updates]
        held = [*zip(self._cut.parameters, own, strict=True), *states]
        self._scattered = Scattered(self._comm, held, self._slots)

    # --- the graph --------------------------------------------------------------------------------

    def _updating(
        self, name: str, parts: Sequence[Transform], roots: Sequence[Node], nodes: Sequence[Node],
        scaling: LossScale | None, kept: Collection[Node], accumulation: Accumulation | None,
        known: Any = None,
    ) -> Update:  # fmt: skip
        """The update of this stage's parameters, from sums of gradients that are placeholders."""
        loss, outputs = Operation(roots[0]), [Operation(root) for root in roots[1:]]
        mass = self._mass
        above = ops.where(ops.greater(mass, 0.0), ops.cast(loss, "float64") * mass, 0.0)
        reports = reported_by([mass, self._rows, above, *outputs])
        self._cut = Cut(roots[0], mass.node, reports, nodes, kept)
        self._cut.into(self._comm.size, self._layers_by_stage())
        self._stage = stage = self._cut.stages[self._comm.rank]
        if alone := [part for part in parts if not part.spreads]:
            raise ArgumentError(
                f"Pipeline: {type(alone[0]).__name__} looks at the gradients of all parameters, which are on "
                "several ranks: use DataParallel, or a Transform with spreads = True"
            )
        keys = dict(zip(nodes, keys_of(nodes), strict=True))

        def means(values: Sequence[Operation], names: Sequence[str]) -> list[Operation]:
            total = Operation(self._total)
            inverse = inverse_of(total)
            return [s * ops.cast(inverse, s.dtype) for s in stage.gradients]

        place = {node: k for k, node in enumerate(self._cut.parameters)}
        numbers = [[place[node] for node in one.parameters] for one in self._cut.stages]
        self._sums = SharedSums(self._comm, numbers)
        with adding_up(self._sums.adding):
            return Update(
                name, parts, self._settings.scalars, roots[:1], stage.parameters, scaling, kept,
                accumulation, None, [keys[node] for node in stage.parameters], means,
            ).make()  # fmt: skip

    def _layers_by_stage(self) -> dict[Layer, int]:
        cut, count = self._cut, self._comm.size
        layers = layers_in_order(cut.nodes)
        trained = {layer for p in cut.parameters if (layer := layer_of(p)) is not None}
        costs = costs_of_layers(cut.nodes, layers)
        begins = begins_of(layers, costs, trained, count, self._way.stages)
        bounds = [0, *begins, len(layers)]
        self.stages = [
            [layer.label for layer in layers[bounds[k] : bounds[k + 1]]] for k in range(count)
        ]
        return {
            layer: number
            for number in range(count)
            for layer in layers[bounds[number] : bounds[number + 1]]
        }

    def _compiled(self, update: Update, way: dict[str, Any]) -> Executable:
        """The update; `self._forward` and `self._backward` are this stage's programs."""
        stage = self._stage
        own = {target for target, _ in stage.updates}
        updates = [pair for pair in update.updates if pair[0] not in own]
        updates = [pair for pair in updates if pair[0] in self._own_variables(update)]
        self._forward = Executable(stage.forward, stage.updates, training=True, **way)
        self._sums.compile(way)
        self._backward = Executable(stage.backward, training=True, **way)
        counting = (update.count + 0).node
        found = Executable([counting], updates, training=True, **way)
        self._graph = counting, updates, way
        programs = [one.program for one in (self._forward, self._backward, found)]
        self._needed = {node for program in programs for node in program.leaves}
        self._needed |= {target for program in programs for target, _ in program.updates}
        return found

    def _own_variables(self, update: Update) -> set[Node]:
        held = {update.count.node, *update.parameters, *(s.node for s in update.slots.values())}
        groups = self.accumulation
        return held if groups is None else held | {s.node for s in groups.slots.values()}

    # --- from GPU to GPU --------------------------------------------------------------------------

    def offers(self) -> Json:
        """Whether this rank's GPU keeps all of its stage, and has not failed to reach others."""
        if self._executable.device is None or self._has_tried or self._sums.some:
            return False
        if self._there is None:
            made = self._comm, self._cut.stages, self._forward, *self._graph, self._has_computed
            self._there = PeerPieces(*made)
        return self._there.can()

    def meet(self, offers: Sequence[Json]) -> None:
        """Let values cross from GPU to GPU where all ranks can."""
        self._is_there = all(offers)

    @property
    def peer_bytes(self) -> int | None:
        """Bytes that this rank has written to other GPUs; None where they pass through the hosts."""
        peers = None if self._there is None or not self._is_there else self._there.peers
        return None if peers is None else peers.copied

    def text(self, sizes: Mapping[str, int]) -> str:
        """The plan of an update, and how values cross."""
        reason = (
            "" if self._there is None or not self._there.why_not else f": {self._there.why_not}"
        )
        by = f"through the hosts{reason}" if self.peer_bytes is None else "from GPU to GPU"
        return f"{super().text(sizes)}\n# values of stages travel {by}"

    def _reaches(self, pieces: Sequence[_Piece]) -> bool:
        """Whether values of these micro-batches cross from GPU to GPU, as all ranks know."""
        if self._is_there and self._there is not None:
            sizes = dict(pieces[0].sizes)
            self._is_there = self._there.meet(sizes, max(len(pieces), self._way.micro_batches))
            self._has_tried = not self._is_there
        return self._is_there

    # --- a run ------------------------------------------------------------------------------------

    def next_batch(self, rows: int, epoch: int, batch: int, batches: int | None, size: int) -> None:
        """Be told of the batch that is run next; a last, smaller one has pieces of the same size."""
        self._whole = size

    def run(
        self, feeds: Feeds | None = None, watch: Any = None, guard: bool = False
    ) -> list[Array]:
        """Do one step of a batch; the loss and the outputs of all of it, as `Step.run`.

        Raises:
            what is wrong on this rank, or MagmaDNNError if it is on another; nothing is updated then on any.
        """
        self._scattered.let_go(self._needed)
        before = [(t, t.value.read().copy()) for t, _ in self._stage.updates]
        try:
            run = self._all_pieces(as_feeds(feeds))
            small = self._added_up(run, guard)
            if small is None:  # by the hosts it is found where that comes from
                for target, value in before:
                    target.value.write(value)
                run = self._all_pieces(as_feeds(feeds), False)
                small = self._added_up(run, guard)
                assert small is not None
            self._apply(run, small, guard)
        except Exception:
            for target, value in before:
                target.value.write(value)
            raise
        outputs, at = [np.asarray(small[3] / small[1] if small[1] else 0.0)], 4
        for shape in self._shapes:
            size = int(np.prod(shape, dtype=np.int64))
            outputs.append(small[at : at + size].reshape(shape))
            at += size
        return outputs

    def _all_pieces(self, feeds: Mapping[Node, Any], may_copy: bool = True) -> _Run:
        """Forward and backward with all micro-batches."""
        pieces = self._cut_into_pieces(feeds, may_copy and self._is_there)
        shapes = [(), (), (), *self._shapes]
        lengths = self._stage.buckets.lengths.items()
        there = self._there if may_copy and self._reaches(pieces) else None
        if there is not None:
            lengths = {}.items()
            for piece in pieces:
                piece.feeds = there.fed(piece.feeds)
            there.begin(pieces)
        run = _Run(
            pieces, [np.zeros(s) for s in shapes], [np.zeros(n, d) for d, n in lengths], there
        )
        try:
            for is_forward, number in orders(self._comm.rank, self._comm.size, len(pieces)):
                (self._go_forward if is_forward else self._go_back)(run, number)
            for request, _ in run.sending:
                request.wait()
            if there is not None:
                there.ends(run)
        except BaseException:  # an interrupt, or a rank that ended: others may never send the rest
            if there is not None:
                there.let_go_on()
            raise
        self.most_in_flight = run.most
        return run

    def _cut_into_pieces(self, feeds: Mapping[Node, Any], there: bool) -> list[_Piece]:
        arrays: dict[Node, Any] = {
            node: value if there and isinstance(value, OnDevice) else np.asarray(value)
            for node, value in feeds.items()
        }
        rows = len(next(iter(arrays.values())))
        each = max(-(-max(rows, self._whole) // self._way.micro_batches), 1)
        found = []
        for start in range(0, max(rows, 1), each):
            own = {node: array[start : start + each] for node, array in arrays.items()}
            found.append(_Piece(own, sizes_of(own)))
        return found

    def _go_forward(self, run: _Run, number: int) -> None:
        stage, piece = self._stage, run.pieces[number]
        run.in_flight += 1
        run.most = max(run.most, run.in_flight)
        if run.there is not None:
            run.there.forward(run, piece, number)
            return
        fed = dict(piece.feeds)
        for crossing in stage.arrivals:
            fed[crossing.arrived] = self._receive(crossing, crossing.source, piece, 0)
        count, reports = len(stage.departures), len(stage.reported)
        try:
            with agreeing(ALONE):
                found = self._forward.run(only_those(self._forward, fed))
                self._look(run, self._forward, fed, found)
        except Exception as error:
            run.failed = run.failed or error
            found = [self._empty(c.value, piece) for c in stage.departures]
        else:
            piece.saved = found[count + reports :]
            piece.feeds = fed
            pairs = zip(stage.reported, found[count : count + reports], strict=True)
            for (number, _), value in pairs:
                run.reports[number] += value
        self._has_computed()
        for crossing, value in zip(stage.departures, found[:count], strict=True):
            self._send(run, crossing, crossing.goal, value, 0)

    def _go_back(self, run: _Run, number: int) -> None:
        stage, piece = self._stage, run.pieces[number]
        run.in_flight -= 1
        if run.there is not None:
            run.there.back(run, piece, number)
            piece.saved, piece.feeds = None, {}
            return
        seeds: dict[Node, Array] = {}
        for crossing in stage.departures:
            if crossing.returns:
                node = stage.seeds[crossing.value]
                got = self._receive(crossing, crossing.goal, piece, 1)
                seeds[node] = seeds[node] + got if node in seeds else got
        count = len(stage.returned)
        found: list[Array] | None = None
        if piece.saved is not None and stage.backward:
            saved = zip((node for _, node in stage.saved), piece.saved, strict=True)
            fed = {**piece.feeds, **dict(saved), **seeds}
            try:
                with agreeing(ALONE):
                    found = self._backward.run(only_those(self._backward, fed))
            except Exception as error:
                run.failed = run.failed or error
        if found is None:
            found = [self._empty(c.value, piece) for c, _ in stage.returned]
        self._has_computed()
        for (crossing, _), value in zip(stage.returned, found[:count], strict=True):
            self._send(run, crossing, crossing.source, value, 1)
        for total, value in zip(run.gradients, found[count:], strict=False):
            np.add(total, value, out=total)
        piece.saved, piece.feeds = None, {}

    def _has_computed(self) -> None:
        if self._way.computed is not None:
            self._way.computed(self._comm)

    def _look(
        self, run: _Run, executable: Executable, fed: Mapping[Node, Array], found: Sequence[Array]
    ) -> None:
        """Find what makes NaN or infinity here, rather than before."""
        stage = self._stage
        count = len(stage.departures) + len(stage.reported)
        if all(map(_is_finite, found[:count])) or run.failed is not None:
            return
        if all(_is_finite(fed[c.arrived]) for c in stage.arrivals):
            states = [(t, t.value.read().copy()) for t, _ in stage.updates]
            try:
                executable.run(only_those(executable, fed), guard=True)
            except NumericError as error:
                run.failed = error
            for target, value in states:
                target.value.write(value)

    # --- messages ---------------------------------------------------------------------------------

    def _receive(self, crossing: Crossing, source: int, piece: _Piece, way: int) -> Array:
        array = self._empty(crossing.value, piece)
        return self._comm.recv(array, source, tag=2 * crossing.number + way)  # type: ignore[no-any-return]

    def _empty(self, node: Node, piece: _Piece) -> Array:
        return np.zeros(bind_shape(node.shape, piece.sizes), node.dtype)

    def _send(self, run: _Run, crossing: Crossing, to: int, value: Array, way: int) -> None:
        array = np.asarray(value, order="C")  # a penalty stays a scalar: its shape travels too
        request = self._comm.start_send(array, to, tag=2 * crossing.number + way)
        run.sending.append((request, array))

    # --- the end of a step ------------------------------------------------------------------------

    def _added_up(self, run: _Run, guard: bool) -> Array | None:
        """What is reported, on all ranks: [failures, mass, rows, mass * loss, outputs].

        None where it has NaN or infinity and values were not looked at on their way.

        Raises:
            what went wrong here or on another rank.
        """
        failures = np.array([0.0 if run.failed is None else 1.0])
        own = np.concatenate([failures, *(np.ravel(one) for one in run.reports)])
        small: Array = self._comm.all_reduce(own)
        if run.there is not None and not small[0] and guard and not np.isfinite(small).all():
            return None
        if small[0] or (guard and not np.isfinite(small).all()):
            raise self._told(run.failed)
        return small

    def _apply(self, run: _Run, small: Array, guard: bool) -> None:
        """Update this stage's parameters; no rank does unless all can."""
        if run.there is not None:
            run.there.apply({self._total: small[1], **self.scalars()}, guard)
            return
        fed = self._stage.buckets.feeds(
            dict(zip(self._stage.buckets.lengths, run.gradients, strict=True))
        )
        fed |= {self._total: small[1], **self.scalars()}
        fed |= self._sums.feeds(fed)
        self._executable.run(only_those(self._executable, fed), guard=guard)

    # --- what a step of one batch has beside that -------------------------------------------------

    def slices(self, *arguments: Any, **named: Any) -> StepSlices | None:
        """None: between the programs ranks talk to each other."""
        return None

    def course(self, *arguments: Any, **named: Any) -> StepCourse | None:
        """None, as `slices`."""
        return None

    def _memory_for(self, sizes: Mapping[str, int], workspace: bool) -> StepMemory | None:
        """Micro-batches under way keep values; what is sent lies there until the end of a batch."""
        rows, pieces, stage = sizes.get(BATCH, 1), self._way.micro_batches, self._stage
        piece, whole = {**sizes, BATCH: -(-rows // pieces)}, {**sizes, BATCH: rows}
        waiting = min(self._comm.size - self._comm.rank, pieces)
        arrived = [crossing.arrived for crossing in stage.arrivals]
        crossed = [c.value for c in stage.departures] + [node for _, node in stage.returned]
        kept = sum(nbytes_of(node, piece) for node in [*stage.forward, *arrived])
        sent = sum(nbytes_of(node, piece) for node in crossed)
        fed = [node for node in self._cut.nodes if node.op is PLACEHOLDER]
        programs = [(self._forward, piece), (self._backward, piece), (self._executable, piece)]
        return self._together(
            programs, workspace, waiting * kept + pieces * sent,
            2 * vectors_bytes(stage.buckets.lengths), sum(nbytes_of(node, whole) for node in fed),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<PipelineStep {self.count}, stage {self._comm.rank} of {self._comm.size}>"


def only_those(executable: Executable, feeds: Mapping[Node, Any]) -> dict[Node, Array]:
    """Feeds for what a program takes."""
    return {n: np.asarray(feeds[n]) for n in executable.program.placeholders}


def _is_finite(array: Array) -> bool:
    return array.dtype.kind in "iub" or bool(np.isfinite(array).all())
