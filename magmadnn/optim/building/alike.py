"""Steps that are built like an earlier one: their graphs are made when somebody looks into them.

The graph of a step (gradients, the optimiser's parts, new values) follows from that of its loss, from
which parameters are trained, and from which parts there are. So where these are like those of a step that
this process has made before, what was compiled for that one is taken for the variables of this one, and the
graph itself is needed only to print it, or to find out where NaN came from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.plan.built_alike.look import LONGEST, NotComparedError, plain, structure_of
from magmadnn.compiler.regions.open_sizes import open_choices
from magmadnn.graph.node import Node, scopes
from magmadnn.graph.program import LaterProgram, Program
from magmadnn.optim.inputs import numbers_of
from magmadnn.optim.parts import Transform
from magmadnn.optim.records import fields_of

_MOST = 64  # structures that are kept
_OWN = f"{__name__.split('.', maxsplit=1)[0]}."


class Like:
    """A key whose hash is found once."""

    __slots__ = ("__weakref__", "_hash", "_key")

    def __init__(self, key: Hashable) -> None:
        self._key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Like) and self._key == other._key)


@dataclass(frozen=True)
class Look:
    """What a loss and further outputs look like.

    Attributes:
        like: equal for those that are built alike but for sizes.
        sizes: theirs.
        leaves: their variables and placeholders.
        ops: theirs.
    """

    like: Like
    sizes: tuple[int, ...]
    leaves: tuple[Node, ...]
    ops: tuple[object, ...]

    @classmethod
    def of(cls, roots: Sequence[Node]) -> Look | None:
        """That of these nodes; None where something cannot be compared."""
        program = Program(tuple(roots))
        try:
            structure = structure_of(program, names=True)
        except NotComparedError:
            return None
        ops = tuple(dict.fromkeys(node.op for node in program.nodes()))
        return cls(Like(structure.key), structure.sizes, program.leaves, ops)


class Roots(Sequence[Node]):
    """The nodes of a loss and further outputs, which are made when somebody looks into them.

    Args:
        make: gives their nodes.
        look: of these; None where they cannot be compared.
    """

    def __init__(self, make: Callable[[], Sequence[Node]], look: Look | None) -> None:
        self._make, self.look = make, look
        self._kept: Sequence[Node] | None = None

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Roots:
        """Those that are made already."""
        return cls(lambda: nodes, Look.of(nodes))

    @property
    def _nodes(self) -> Sequence[Node]:
        if self._kept is None:
            self._kept = self._make()
        return self._kept

    @overload
    def __getitem__(self, place: int) -> Node: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Node]: ...

    def __getitem__(self, place: int | slice) -> Node | Sequence[Node]:
        return self._nodes[place]

    def __len__(self) -> int:
        return len(self._nodes)


@dataclass(frozen=True)
class Origin:
    """What the graph of a step is made from.

    Attributes:
        like: equal for steps that are built alike but for sizes.
        sizes: theirs.
        given: variables and placeholders of the loss and the outputs.
        ops: of the loss and the outputs.
    """

    like: Like
    sizes: tuple[int, ...]
    given: tuple[Node, ...]
    ops: tuple[object, ...]


@dataclass(frozen=True)
class Known:
    """Of a step that was made: which leaves its program has, and which parameters the loss depends on.

    Attributes:
        like: that of its origin.
        leaves: numbers of leaves of the loss, names of others.
        reached: numbers of parameters.
    """

    like: Like
    leaves: tuple[int | str, ...]
    reached: tuple[int, ...]


# with the ops of each: while they are kept, no other op has their id
_known: OrderedDict[Like, tuple[tuple[object, ...], Known | None]] = OrderedDict()
_lock = ProcessLock()


def origin_of(
    roots: Roots,
    parameters: Sequence[Node],
    kept: Collection[Node],
    parts: Sequence[Transform],
    more: Sequence[Hashable],
) -> Origin | None:
    """What a step is made from; None where a part is a user's, or something cannot be compared.

    Args:
        roots: the loss and further outputs.
        parameters: that are trained.
        kept: variables whose updates by layers are left out.
        parts: of the optimiser.
        more: what else the program depends on.
    """
    look = roots.look
    if look is None or not are_own(parts):
        return None
    try:
        rules = tuple(map(rule_of, parts))
    except NotComparedError:
        return None
    numbers = {node: number for number, node in enumerate(look.leaves)}
    if any(node not in numbers for node in (*parameters, *kept)):
        return None
    trained = tuple(numbers[n] for n in parameters)
    held = tuple(sorted(numbers[n] for n in kept))
    like = Like((look.like, trained, held, rules, tuple(more), tuple(map(str, scopes()))))
    return Origin(like, look.sizes, look.leaves, look.ops)


def are_own(parts: Sequence[Transform]) -> bool:
    """Whether no part is a user's."""
    return all(type(part).__module__.startswith(_OWN) for part in parts)


def rule_of(part: Transform) -> Hashable:
    """A part but for its settings, which are inputs of the step.

    Raises:
        NotComparedError: if something in it has no value that could be compared.
    """
    numbers = {field.name for _, field in numbers_of([part]).values()}
    every = fields_of(type(part))
    more = [(f.name, plain(getattr(part, f.name))) for f in every if f.name not in numbers]
    return type(part), tuple(more), tuple(sorted(numbers))


def known_of(origin: Origin) -> Known | None:
    """What is known of steps of this origin; None where none, or one, was made before: most come once."""
    with _lock:
        found = _known.get(origin.like)
        if found is not None:
            _known.move_to_end(origin.like)
    return None if found is None else found[1]


def noted(
    origin: Origin,
    program: Program,
    parameters: Sequence[Node],
    reached: Collection[Node],
    names: Mapping[Node, str],
) -> Program:
    """Note a step that was made; gives its program, with what it is known by from the second on.

    Args:
        origin: what it was made from.
        program: of the step.
        parameters: as they were given.
        reached: those that the loss depends on.
        names: of leaves that are none of the loss.
    """
    with _lock:
        again = origin.like in _known
        if not again:
            _known[origin.like] = (origin.ops, None)
            if len(_known) > _MOST:
                _known.popitem(last=False)
    if not again or len(program.nodes()) > LONGEST:
        return program
    if program.open_sizes or open_choices(program):
        return program
    places: dict[Node, int | str] = {node: number for number, node in enumerate(origin.given)}
    places |= names
    if any(node not in places for node in program.leaves):
        return program
    numbers = tuple(k for k, node in enumerate(parameters) if node in reached)
    found = Known(origin.like, tuple(places[n] for n in program.leaves), numbers)
    with _lock:
        _known[origin.like] = (origin.ops, found)
    return LaterProgram(lambda: program, found.like, origin.sizes, program.leaves)


def later(
    origin: Origin, known: Known, names: Mapping[Node, str], make: Callable[[], Program]
) -> Program:
    """The program of a step that is built like one before.

    Args:
        origin: what it is made from.
        known: of the one before.
        names: of leaves that are none of the loss.
        make: makes it.
    """
    by_name = {name: node for node, name in names.items()}
    leaves = tuple(origin.given[k] if isinstance(k, int) else by_name[k] for k in known.leaves)
    return LaterProgram(make, known.like, origin.sizes, leaves)
