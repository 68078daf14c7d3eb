"""The graph of a step cut into stages: of each a program forward, and one backward.

Forward a stage gets the values that cross into it, and gives those that cross out of it, what it reports, and
all that its backward program needs. Backward it gets the gradients of what it gave away, and gives those of
what it got, and of its parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from magmadnn import ops
from magmadnn.errors import ArgumentError
from magmadnn.graph import Node
from magmadnn.graph.body import is_result
from magmadnn.graph.node import (
    PLACEHOLDER,
    VARIABLE,
    Updated,
    placeholder,
    rebuild,
    resolve_phase,
    topological,
)
from magmadnn.graph.transforms.gradient import adjoints, parts, stabilised
from magmadnn.layers.layer import Layer
from magmadnn.memory.dtypes import is_floating
from magmadnn.parallel.buckets import Buckets
from magmadnn.tensor import Operation

from .stages import NOWHERE, depends_on, layer_of, stages_of


@dataclass
class Crossing:
    """A value that one stage gives to a later one.

    Attributes:
        value: of the graph that was cut.
        source, goal: the stages.
        number: among all crossings; part of the tags of its messages.
        arrived: what stands for it in the goal.
        returns: whether its gradient comes back.
    """

    value: Node
    source: int
    goal: int
    number: int
    arrived: Node
    returns: bool = False


@dataclass
class Stage:
    """What one stage computes.

    Attributes:
        number: its place.
        arrivals, departures: what crosses into it and out of it.
        reported: number among all that is reported, and the value in float64.
        updates: of states, with each forward run.
        forward: what that gives: departures, reports, then `saved`.
        saved: values of the forward program, and what stands for them backward.
        seeds: what stands for the gradient of each departure that has one, by the value that departs.
        returned: gradients of arrivals, by crossing.
        parameters: what it trains.
        gradients: of these.
        buckets: of these, as `backward` gives them after `returned`.
    """

    number: int
    arrivals: list[Crossing] = field(default_factory=list)
    departures: list[Crossing] = field(default_factory=list)
    reported: list[tuple[int, Node]] = field(default_factory=list)
    updates: list[Updated] = field(default_factory=list)
    forward: list[Node] = field(default_factory=list)
    saved: list[tuple[Node, Node]] = field(default_factory=list)
    seeds: dict[Node, Node] = field(default_factory=dict)
    returned: list[tuple[Crossing, Node]] = field(default_factory=list)
    parameters: list[Node] = field(default_factory=list)
    gradients: list[Operation] = field(default_factory=list)
    buckets: Buckets = field(default_factory=Buckets)
    backward: list[Node] = field(default_factory=list)


class Cut:
    """A step's graph in stages.

    Args:
        loss: a scalar.
        mass: what it was divided by, which depends on data only.
        reports: what is added up over micro-batches, in float64.
        parameters: what is trained.
        kept: states that are not updated.

    Attributes:
        nodes: the graph, inputs before users.
        parameters: those that the loss depends on.
        updates: of states.
        stages: what each computes, after `into`.
    """

    def __init__(
        self,
        loss: Node,
        mass: Node,
        reports: Sequence[Node],
        parameters: Sequence[Node],
        kept: Collection[Node] = (),
    ) -> None:
        roots, own = resolve_phase([loss, mass, *reports], training=True)
        own = [(target, value) for target, value in own if target not in kept]
        roots += [value for _, value in own]
        stable = stabilised(roots)
        roots = [stable[root] for root in roots]
        self._loss, self._mass = roots[:2]
        self._reports = roots[2 : 2 + len(reports)]
        self.updates = [(t, v) for (t, _), v in zip(own, roots[2 + len(reports) :], strict=True)]
        self.nodes = topological(roots)
        reached = {n for n in topological([self._loss]) if n.op is VARIABLE}
        self.parameters = [p for p in parameters if p in reached]

    def into(self, count: int, stage_of_layer: Mapping[Layer, int]) -> None:
        """Cut into `count` stages.

        Raises:
            ArgumentError: if the loss is divided by what depends on layers.
        """
        self._stage = stages_of(self.nodes, stage_of_layer)
        if self._stage[self._mass] != NOWHERE:
            raise ArgumentError(
                "Pipeline: the loss is divided by a number that depends on the network's outputs: train "
                "without parallel="
            )
        for parameter in self.parameters:
            if layer_of(parameter) is None:
                raise ArgumentError(
                    f"Pipeline: variable {parameter.name} belongs to no layer, so to no stage: make it a "
                    "layer's parameter, or train with DataParallel()"
                )
        self.stages = [Stage(number) for number in range(count)]
        self._made: dict[int, dict[Node, Node]] = {}  # by stage: what nodes became in it
        self._cross()
        for stage in self.stages:
            self._fill(stage)
        for stage in reversed(self.stages):
            self._differentiate(stage)

    def stage_of(self, node: Node) -> int:
        """Where a node is computed, or a variable kept."""
        return max(self._stage.get(node, 0), 0)

    # --- forward ----------------------------------------------------------------------------------

    def _cross(self) -> None:
        """Find what crosses from stage to stage, each value once for each goal."""
        found: dict[tuple[Node, int], Crossing] = {}
        for node in self.nodes:
            goal = self._stage[node]
            for value in node.inputs:
                source = self._stage[value]
                if source in (NOWHERE, goal) or (value, goal) in found:
                    continue
                arrived = placeholder(f"from_stage_{source}_{len(found)}", value.spec)
                found[value, goal] = Crossing(value, source, goal, len(found), arrived)
        for crossing in found.values():
            self.stages[crossing.source].departures.append(crossing)
            self.stages[crossing.goal].arrivals.append(crossing)

    def _fill(self, stage: Stage) -> None:
        """The forward graph of a stage, without what is saved."""
        own = [(k, r) for k, r in enumerate(self._reports) if self.stage_of(r) == stage.number]
        updates = [(t, v) for t, v in self.updates if self.stage_of(v) == stage.number]
        roots = [
            *(c.value for c in stage.departures),
            *(r for _, r in own),
            *(v for _, v in updates),
        ]
        roots += [self._loss, self._mass] if self.stage_of(self._loss) == stage.number else []
        made = rebuild(roots, {c.value: c.arrived for c in stage.arrivals})
        self._made[stage.number] = dict(zip(roots, made, strict=True))
        new = self._made[stage.number]
        stage.reported = [(k, new[r]) for k, r in own]
        stage.updates = [(t, new[v]) for t, v in updates]
        stage.parameters = [p for p in self.parameters if self.stage_of(p) == stage.number]

    # --- backward ---------------------------------------------------------------------------------

    def _differentiate(self, stage: Stage) -> None:
        """The backward graph of a stage, once those of later ones are known."""
        new, seeds = self._made[stage.number], dict[Node, Node]()
        for crossing in stage.departures:
            if crossing.returns and crossing.value not in stage.seeds:
                value = crossing.value
                stage.seeds[value] = placeholder(f"gradient_of_{crossing.number}", value.spec)
                seeds[new[value]] = stage.seeds[value]
        if self._loss in new:
            loss = new[self._loss]
            weight = self._seed(loss, Operation(new[self._mass]))
            seeds[loss] = parts().add(seeds[loss], weight) if loss in seeds else weight
        active = depends_on(self.nodes, self.parameters)
        arrivals = [c for c in stage.arrivals if c.value in active and is_floating(c.value.dtype)]
        targets = [*stage.parameters, *(c.arrived for c in arrivals)]
        found = adjoints(seeds, targets)
        count = len(stage.parameters)
        for crossing, gradient in zip(arrivals, found[count:], strict=True):
            if gradient is not None:
                crossing.returns = True
                stage.returned.append((crossing, gradient))
        pairs = zip(stage.parameters, found[:count], strict=True)
        gradients = {p: g for p, g in pairs if g is not None}
        stage.parameters = list(gradients)
        self._save(stage, self._masked(list(gradients.values())))

    def _seed(self, loss: Node, mass: Operation) -> Node:
        """The gradient of what is added up with respect to the loss: what that was divided by."""
        found: Node = ops.cast(ops.where(ops.greater(mass, 0.0), mass, 0.0), loss.dtype).node
        return found

    def _masked(self, gradients: Sequence[Node]) -> list[Operation]:
        """Gradients of parameters, 0 for micro-batches whose samples all weigh nothing."""
        values = [Operation(gradient) for gradient in gradients]
        if not any(node.op is PLACEHOLDER for node in topological([self._mass])):
            return values
        is_heavy = ops.greater(Operation(self._mass), 0.0)
        return [ops.where(is_heavy, value, 0) for value in values]

    def _save(self, stage: Stage, gradients: list[Operation]) -> None:
        """Part the two programs: what the second needs of the first goes through memory."""
        new = self._made[stage.number]
        forward = [new[c.value] for c in stage.departures]
        forward += [node for _, node in stage.reported]
        computed = set(topological([*forward, *(v for _, v in stage.updates), *new.values()]))
        stage.gradients = stage.buckets.exchanged(gradients, f"gradient_{stage.number}")
        backward = [*(g for _, g in stage.returned), *(v.node for v in stage.buckets.vectors())]
        trained, needed = set(stage.parameters), dict[Node, Node]()

        def is_computed(node: Node) -> bool:
            """Forward; one of several results also where the way forward does not ask for that one."""
            return node in computed or (is_result(node) and node.inputs[0] in computed)

        order = topological(backward, lambda n: () if is_computed(n) else n.inputs)
        for node in order:
            if not is_computed(node) or node in trained or node.op is PLACEHOLDER:
                continue
            if not node.inputs and node.op is not VARIABLE:
                continue  # a constant or a size
            needed[node] = placeholder(f"saved_{stage.number}_{len(needed)}", node.spec)
        stage.saved = list(needed.items())
        saved = [parts().copy(n) if n.op is VARIABLE else n for n in needed]
        stage.forward = [*forward, *saved]
        stage.backward = rebuild(backward, needed) if backward else []


def as_node(value: Node | Operation) -> Node:
    """The node of a value."""
    return value if isinstance(value, Node) else value.node


def reported_by(values: Sequence[Operation]) -> list[Node]:
    """Values in float64, as ranks add them up."""
    return [ops.cast(value, "float64").node for value in values]
