"""What a model is trained on: the loss, and the sums that metrics are made of, as graphs.

`Objective` is all of a training step but the update: predictions, loss, penalties, metrics. Its graph follows
from that of what the model predicts and of penalties, which are compared node by node, and from records of
settings. Where all of that is like what this process has seen before, it is known what the graph looks like,
and which leaves it has: it is made when somebody looks. Losses and metrics of the user's own may do anything,
so that theirs are always made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, is_dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn import ops
from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.plan.built_alike.look import LONGEST, NotComparedError, plain, structure_of
from magmadnn.compiler.program.precision import precision as rounded
from magmadnn.compiler.regions.open_sizes import open_choices
from magmadnn.errors import DataError, ShapeError
from magmadnn.graph.node import Node, scoped, scopes
from magmadnn.graph.program import LaterProgram, Program
from magmadnn.losses import Loss
from magmadnn.losses.loss import Named
from magmadnn.memory.dtypes import is_floating
from magmadnn.metrics.operands import ones
from magmadnn.optim.building.alike import Like, Look, Roots
from magmadnn.optim.records import fields_of
from magmadnn.tensor import Operation, Placeholder, placeholder
from magmadnn.training.objective.heads import Head, check_columns, heads_of
from magmadnn.training.objective.measured import Measured, Unit

if TYPE_CHECKING:
    from magmadnn.training.model.augmented_step import StepAugmentation
    from magmadnn.training.model.model import Model


_MOST = 64  # forms that are kept
_OWN = f"{__name__.split('.', maxsplit=1)[0]}."


@dataclass(frozen=True)
class Form:
    """What the graph of an objective is made from.

    Attributes:
        like: equal where the graphs are.
        leaves: variables and placeholders of predictions and penalties, then those of targets and weights.
        ops: of predictions and penalties.
    """

    like: Like
    leaves: tuple[Node, ...]
    ops: tuple[object, ...]


@dataclass(eq=False)
class Known:
    """Of an objective that was made: what another of the same form looks like.

    Attributes:
        look: that of its graph but for the leaves,
        places: which are these of the form.
        ops: of the form and the graph: while they are kept, no other op has their id.
        is_divided: whether a loss is divided by something else than the number of samples.
        evaluated: places of the leaves of the program that evaluates it, by precision.
    """

    look: Look
    places: tuple[int, ...]
    ops: tuple[object, ...]
    is_divided: bool
    evaluated: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def look_of(self, form: Form) -> Look:
        """The look of an objective of this form."""
        leaves = tuple([form.leaves[place] for place in self.places])
        return Look(self.look.like, self.look.sizes, leaves, self.look.ops)


_known: OrderedDict[Like, Known] = OrderedDict()
_lock = ProcessLock()


def form_of(
    heads: Sequence[Head],
    penalties: Sequence[Node],
    fed: Sequence[Node],
    has_weights: bool,
    metrics: Sequence[Measured],
    units: Sequence[Unit] | None,
) -> Form | None:
    """The form of an objective; None where a loss or metric is a user's, or something cannot be compared.

    Args:
        heads: the outputs.
        penalties: terms of the loss.
        fed: placeholders of targets, and of weights if there are any.
        has_weights: whether there are.
        metrics: of all outputs.
        units: of targets.
    """
    program = Program((*[head.output.node for head in heads], *penalties))
    try:
        structure = structure_of(program, names=True)
        settings = (
            tuple([(_settings(h.loss), plain(h.weight), h.column, len(h.metrics)) for h in heads]),
            tuple([(measured.column, _settings(measured.metric)) for measured in metrics]),
            None
            if units is None
            else tuple([(u.name, plain(u.mean), plain(u.deviation)) for u in units]),
        )
    except NotComparedError:
        return None
    looks = tuple([(str(node.name), node.shape, node.dtype) for node in fed])
    around = (len(heads), has_weights, tuple(map(str, scopes())))
    like = Like((structure.key, structure.sizes, settings, looks, around))
    ops = tuple(dict.fromkeys([node.op for node in program.nodes()]))
    return Form(like, (*program.leaves, *fed), ops)


def _settings(record: Named) -> Hashable:
    """A loss or metric by its class and settings.

    Raises:
        NotComparedError: if it is a user's, or a setting is no number, text or tuple of these.
    """
    if not is_dataclass(record):
        raise NotComparedError
    values = [getattr(record, part.name) for part in fields_of(type(record))]
    if not type(record).__module__.startswith(_OWN) or any(map(callable, values)):
        raise NotComparedError
    return type(record), tuple(map(plain, values))


def known_of(form: Form) -> Known | None:
    """What is known of objectives of this form; None where none was made."""
    with _lock:
        found = _known.get(form.like)
        if found is not None:
            _known.move_to_end(form.like)
    return found


def note(form: Form, look: Look, is_divided: bool) -> Known | None:
    """Note an objective that was made; None where another could not be told from it.

    Args:
        form: what it was made from.
        look: of its graph.
        is_divided: as of `Known`.
    """
    numbers = {leaf: number for number, leaf in enumerate(form.leaves)}
    if any(leaf not in numbers for leaf in look.leaves):
        return None
    places = tuple(numbers[leaf] for leaf in look.leaves)
    known = Known(Look(look.like, look.sizes, (), look.ops), places, form.ops, is_divided)
    with _lock:
        _known[form.like] = known
        if len(_known) > _MOST:
            _known.popitem(last=False)
    return known


def evaluating(
    form: Form, known: Known, make: Callable[[], Sequence[Node]], precision: str, is_first: bool
) -> Program:
    """The program that evaluates an objective; from the third of a form on it is made later.

    Args:
        form: what it is made from.
        known: of this form.
        make: gives the nodes of the loss and the sums.
        precision: of matrix products.
        is_first: whether this was the first of its form: most come once.
    """

    def made() -> Program:
        return rounded(Program.of(make()), precision)

    like = Like(("evaluated", known.look.like, precision))
    places = known.evaluated.get(precision)
    if places is not None:
        leaves = tuple([form.leaves[place] for place in places])
        return LaterProgram(made, like, known.look.sizes, leaves)
    program = made()
    if is_first or len(program.nodes()) > LONGEST or program.open_sizes or open_choices(program):
        return program
    numbers = {leaf: number for number, leaf in enumerate(form.leaves)}
    if any(leaf not in numbers for leaf in program.leaves):
        return program
    known.evaluated[precision] = tuple(numbers[leaf] for leaf in program.leaves)
    return LaterProgram(lambda: program, like, known.look.sizes, program.leaves)


# --- objectives -----------------------------------------------------------------------------------


Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class _Graph:
    """What an objective computes.

    Attributes:
        loss, sums: as of `Objective`.
        divisor: of the first output's loss.
        is_divided: whether one has any.
    """

    loss: Operation
    sums: list[Operation]
    divisor: Any
    is_divided: bool


class Objective:
    """Losses and metrics of a model for targets of given shapes and dtypes.

    The loss of many batches is the mean of theirs, weighted by their samples' weights, where there is one
    loss that divides by just these. Otherwise `sums` begins with a pair for each output, its loss times what
    it was divided by, and that, and with one for the regularisers.

    Attributes:
        inputs: placeholders: those of the model; behind them what is drawn for each image.
        targets: placeholders, one for each output.
        weights: placeholder for the samples' weights, [batch], or [batch, outputs] where each output has its
            own; None where there are none.
        loss: what is minimised: the outputs' losses by their weights, and the regularisers.
        sums: pairs of losses, and streaming sums of the metrics, a vector each.
        metrics: in the order of their sums.
        losses: column and weight of each pair at the beginning of `sums`.
    """

    def __init__(
        self,
        model: Model,
        targets: Sequence[Array],
        weights: Array | None,
        augmentation: StepAugmentation | None = None,
    ) -> None:
        heads = heads_of(model)
        units = None if model.preparation is None else model.units
        self.inputs: list[Placeholder] = list(model.inputs)
        if len(targets) != len(heads):
            raise DataError(f"fit: the model has {len(heads)} outputs, got {len(targets)} targets")
        several = len(heads) > 1
        self.targets: list[Placeholder] = [
            _target(k, head.output, target, several)
            for k, (head, target) in enumerate(zip(heads, targets, strict=True))
        ]
        shape = () if weights is None else (None, *weights.shape[1:])
        self.weights = placeholder("sample_weight", shape) if shape else None
        self.metrics = measured_of(heads, units)
        self._heads, self._penalties, self._outer = heads, model.penalties(), scopes()
        self._augmentation = augmentation
        self._kept: _Graph | None = None
        self._form = self._known = None
        if augmentation is None:
            fed = [p.node for p in (*self.targets, self.weights) if p is not None]
            penalties = [p.node for p in self._penalties]
            self._form = form_of(heads, penalties, fed, bool(shape), self.metrics, units)
            self._known = None if self._form is None else known_of(self._form)
        self._is_first = self._known is None
        if self._is_first:
            graph = self._graph
            check_columns([c for m in self.metrics for c in m.columns])
            self._is_divided = graph.is_divided
            self._look = None if self._form is None else Look.of(self._nodes())
            if self._form is not None and self._look is not None:
                self._known = note(self._form, self._look, graph.is_divided)
        else:
            assert self._form is not None and self._known is not None
            self._is_divided = self._known.is_divided
            self._look = self._known.look_of(self._form)
        self.losses = self._pairs()
        if augmentation is not None:
            self.inputs.append(augmentation.drawn)

    def _pairs(self) -> list[tuple[str | None, float]]:
        """Column and weight of each pair at the beginning of `sums`."""
        if len(self._heads) == 1 and not self._is_divided:
            return []
        penalty: list[tuple[str | None, float]] = [(None, 1.0)] if self._penalties else []
        return [*((head.column, head.weight) for head in self._heads), *penalty]

    @property
    def _graph(self) -> _Graph:
        """Loss and sums, made in the scopes that the objective was asked for in."""
        if self._kept is None:
            with scoped(self._outer):
                self._kept = self._made()
        return self._kept

    def _made(self) -> _Graph:
        heads, metrics = self._heads, iter(self.metrics)
        losses, divisors, sums = [], [], []
        for k, (head, fed) in enumerate(zip(heads, self.targets, strict=True)):
            own = self._weights_of(k)
            losses.append(_scalar(head.loss, head.output, fed, own))
            divisors.append(head.loss.divisor(head.output, fed))
            for measured in islice(metrics, len(head.metrics)):
                sums += measured.sums(head.output, fed, own)
        parts = [_times(h.weight, loss) for h, loss in zip(heads, losses, strict=True)]
        total: Operation = sum(parts[1:], parts[0])
        penalty = _added(self._penalties)
        if penalty is not None:
            total = total + penalty
        is_divided = any(divisor is not None for divisor in divisors)
        pairs = []
        if len(heads) > 1 or is_divided:
            pairs = [
                self._pair(loss, self._weights_of(k), divisor)
                for k, (loss, divisor) in enumerate(zip(losses, divisors, strict=True))
            ]
            if penalty is not None:
                pairs.append(self._pair(penalty, None if self._has_own_weights else self.weights))
        found = [total, *pairs, *sums]
        if self._augmentation is not None:
            found = self._augmentation.within(found)
        return _Graph(found[0], found[1:], divisors[0], is_divided)

    def _nodes(self) -> list[Node]:
        return [output.node for output in self.outputs]

    @property
    def loss(self) -> Operation:
        """See the class."""
        return self._graph.loss

    @property
    def sums(self) -> list[Operation]:
        """See the class."""
        return self._graph.sums

    @property
    def roots(self) -> Roots:
        """Loss and sums for a step, which makes them only where it is not built like an earlier one."""
        return Roots(self._nodes, self._look)

    def evaluating(self, precision: str) -> Program | None:
        """The program that computes the loss and the sums; None where it has to be made of these."""
        if self._form is None or self._known is None:
            return None
        return evaluating(self._form, self._known, self._nodes, precision, self._is_first)

    @property
    def mass(self) -> Operation | None:
        """What the loss of a batch was divided by, in float64; None where outputs' losses differ in that."""
        if len(self._heads) > 1 and (self._is_divided or self._has_own_weights):
            return None
        return self._mass(self.weights, self._graph.divisor)

    @property
    def rows(self) -> Operation:
        """The number of samples of a batch, in float64."""
        count: Operation = ops.sum(ones(self.targets[0].shape[:1]))
        return count

    def _mass(self, weights: Operation | None, divisor: Any) -> Operation:
        """The sum of what each sample adds to the number that its loss is divided by."""
        shares = [ops.cast(x, "float64") for x in (weights, divisor) if x is not None]
        total: Operation = ops.sum(shares[0] if shares else ones(self.targets[0].shape[:1]))
        return ops.sum(shares[0] * shares[1]) if len(shares) == 2 else total

    @property
    def _has_own_weights(self) -> bool:
        """Whether each output has weights of its own."""
        return self.weights is not None and len(self.weights.shape) > 1

    def _weights_of(self, output: int) -> Operation | None:
        """The weights [batch] of an output; None where there are none."""
        if self.weights is None or not self._has_own_weights:
            return self.weights
        column: Operation = self.weights[:, output]
        return column

    def _pair(self, loss: Operation, weights: Operation | None, divisor: Any = None) -> Operation:
        """The loss of a batch times what it was divided by, and that, in float64."""
        total = self._mass(weights, divisor)
        pair: Operation = ops.stack([ops.cast(loss, "float64") * total, total])
        return pair

    @property
    def outputs(self) -> list[Operation]:
        """Everything that a step reports: the loss, then the sums."""
        return [self.loss, *self.sums]

    @property
    def higher_is_better(self) -> dict[str, bool | None]:
        """For losses and metrics: whether higher values are better; None where it does not say."""
        return _directions(self._heads, self.metrics)


def directions_of(model: Model) -> dict[str, bool | None]:
    """For losses and metrics of a model: whether higher values are better; None where it does not say."""
    heads = heads_of(model)
    return _directions(heads, measured_of(heads, model.units))


def measured_of(heads: Sequence[Head], units: tuple[Unit, ...] | None) -> list[Measured]:
    """The metrics of all outputs, in order, in the units of the targets where these are known."""
    return [Measured(c, metric, units) for head in heads for c, metric in head.metrics.items()]


def _directions(heads: Sequence[Head], metrics: Sequence[Measured]) -> dict[str, bool | None]:
    losses = ["loss", *(head.column for head in heads if head.column is not None)]
    found = {c: m.metric.higher_is_better for m in metrics for c in m.columns}
    return dict.fromkeys(losses, False) | found


def _times(weight: float, loss: Operation) -> Operation:
    return loss if weight == 1 else loss * weight


def _added(terms: Sequence[Operation]) -> Operation | None:
    """Their sum; None where there is none."""
    return sum(terms[1:], terms[0]) if terms else None


def _target(number: int, output: Operation, target: Array, numbered: bool) -> Placeholder:
    """The placeholder for a target like this array."""
    dtype = output.dtype if is_floating(target.dtype) else np.int64
    name = f"target_{number}" if numbered else "target"
    return placeholder(name, (None, *target.shape[1:]), dtype)


def _scalar(
    loss: Loss, output: Operation, target: Placeholder, weights: Operation | None
) -> Operation:
    total: Operation = loss(output, target, weights)
    if total.shape != ():
        raise ShapeError(f"loss {loss.name}: expected a scalar, got {total!r}; take its mean")
    return total
