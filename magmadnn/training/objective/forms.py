"""Objectives that are built like an earlier one: their graphs are made when somebody looks into them.

The graph of losses and metrics follows from that of what the model predicts and of penalties, which are
compared node by node, and from records of settings. Where all of that is like what this process has seen
before, it is known what the graph looks like, and which leaves it has. Losses and metrics of the user's own
may do anything, so that theirs are always made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, is_dataclass

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.plan.built_alike.look import LONGEST, NotComparedError, plain, structure_of
from magmadnn.compiler.program.precision import precision as rounded
from magmadnn.compiler.regions.nonempty import open_choices
from magmadnn.graph.node import Node, scopes
from magmadnn.graph.program import LaterProgram, Program
from magmadnn.losses.registry import Named
from magmadnn.optim.building.alike import Like, Look
from magmadnn.optim.records import fields_of

from .heads import Head
from .measured import Measured, Unit

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
