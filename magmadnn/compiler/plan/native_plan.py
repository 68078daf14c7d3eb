"""A NativePlan: the kernels that a program became, in running order, and where values lie.

Sizes need not be known: `memory.py` lays a plan out once for each set of sizes that it is run with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.compiler.dump import Dump
from magmadnn.compiler.kernels.library import Library, WholeLibrary
from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.regions.draft import Alike, Work
from magmadnn.compiler.regions.open_sizes import Choice
from magmadnn.graph.body import Body
from magmadnn.graph.dim import Size
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node
from magmadnn.graph.program import Program

from .arena import Arena
from .lasting import Lasting, lasting_of

_CALLED = (Library, WholeLibrary)  # kernels that are calls of a library


@dataclass(frozen=True, eq=False)
class NativePlan:
    """A compiled program.

    Attributes:
        program: what was compiled, after all passes.
        work: steps in running order.
        layouts: how values lie in memory.
        in_place: values that are written straight into the variable that they update.
        checked: the phase before which all outputs are computed; no variable is written earlier.
        dump: where what is made of the plan is written, if anybody wants it.
        verified: whether places in memory are checked too, for each set of sizes.
        choices: reductions that are looked at before a run, with sizes that must not be 0.
        loops: the plan of each loop.
        inside: values that are computed where they lie in the result of a movement, and that movement.
        arenas: where values lie for the sizes that were asked for last (`arena_of`).
        alike: the same for plans that differ in their leaves only; None where that is not known.
    """

    program: Program
    work: tuple[Work, ...]
    layouts: Layouts
    in_place: Mapping[Node, Node]
    checked: int
    dump: Dump
    verified: bool = False
    choices: tuple[Choice, ...] = ()
    loops: Mapping[Node, LoopPlan] = field(default_factory=dict)
    inside: Mapping[Node, Node] = field(default_factory=dict)
    arenas: dict[tuple[tuple[str, int], ...], Arena] = field(default_factory=dict)
    alike: Alike | None = None

    @property
    def kernels(self) -> int:
        """How many steps are compiled kernels, or calls of a library."""
        return sum(work.lowered is not None for work in self.work)

    @cached_property
    def variables(self) -> list[Node]:
        """Variables that it reads or writes, in an order that is the same for plans that are alike."""
        read = [node for node in self.program.nodes() if node.op is VARIABLE]
        return list(dict.fromkeys([*read, *self.changed]))

    @cached_property
    def changed(self) -> list[Node]:
        """Variables that it writes."""
        return [target for target, _ in self.program.updates]

    @cached_property
    def lasting(self) -> Lasting:
        """The steps that a run does only if a variable has changed."""
        return Lasting() if self.program.updates else lasting_of(self.program, self.work)

    @cached_property
    def placeholders(self) -> list[Node]:
        """What it reads of what is fed."""
        return [node for node in self.program.nodes() if node.op is PLACEHOLDER]

    @cached_property
    def stores_all(self) -> bool:
        """Whether outputs and new values lie in memory of their own, element by element."""
        known = None if self.alike is None else self.alike.stores_all
        if known is None:
            known = (
                all(map(self.is_stored, self.program.outputs))
                and all(v in self.in_place or self.is_stored(v) for _, v in self.program.updates)
                and all(target.op is VARIABLE for target in self.changed)
            )
            if self.alike is not None:
                self.alike.stores_all = known
        return known

    @cached_property
    def is_own(self) -> bool:
        """Whether all steps are kernels that are compiled here: none is a library's, NumPy's, or a loop."""
        known = None if self.alike is None else self.alike.is_own
        if known is None:
            known = all(
                work.lowered is not None and not isinstance(work.lowered.kernel, _CALLED)
                for work in self.work
            )
            if self.alike is not None:
                self.alike.is_own = known
        return known

    @cached_property
    def _stored(self) -> frozenset[Node]:
        return frozenset(node for work in self.work for node in work.needed)

    def is_stored(self, node: Node) -> bool:
        """Whether a step stores a value as it is, element by element."""
        return self.layouts.bases[node] in self._stored and self.layouts.is_whole(node)

    def owner(self, node: Node) -> Node:
        """The value whose memory a value has a part of; itself where it has its own."""
        node = self.layouts.bases[node]
        while node in self.inside:
            node = self.inside[node]
        return node

    def lies_apart(self, node: Node) -> bool:
        """Whether a value is a stack whose matrices lie where a movement wants them: none follows another."""
        movement = self.inside.get(node)
        return movement is not None and len(movement.inputs) == 1

    @cached_property
    def last_phases(self) -> dict[Node, int]:
        """The last phase that makes or reads values of each memory; what is wanted later is kept."""
        last: dict[Node, int] = {}
        for work in self.work:  # in the order of phases
            read = (operand for node in work.region.nodes for operand in node.inputs)
            for node in (*work.placed, *read):
                last[self.owner(node)] = work.phase
        kept = (node for work in self.lasting.work for node in work.placed)
        for node in (*self.program.roots, *kept):
            last[self.owner(node)] = len(self.work)
        return last

    @property
    def phase_count(self) -> int:
        """How many phases there are."""
        return max((work.phase for work in self.work), default=-1) + 1


class LaterPlan(NativePlan):
    """A plan that is alike one that was made before, and is made when somebody looks into it.

    To lay tasks of the earlier one out for other variables, its leaves are enough.

    Args:
        over: makes it over any leaves that are like its own.
        own: the leaves of its program.
        alike: as of `NativePlan`.
        leaves: the placeholders and variables that it reads, and the variables that it writes.
    """

    own: tuple[Node, ...]
    over: Callable[[tuple[Node, ...]], NativePlan]

    def __init__(
        self,
        over: Callable[[tuple[Node, ...]], NativePlan],
        own: tuple[Node, ...],
        alike: Alike,
        leaves: Sequence[list[Node]],
    ) -> None:
        placeholders, read, changed = leaves
        variables = list(dict.fromkeys([*read, *changed]))
        known = {"placeholders": placeholders, "variables": variables, "changed": changed}
        self.__dict__.update(known, over=over, own=own, alike=alike, verified=False)

    def with_leaves(self, new: Mapping[Node, Node]) -> LaterPlan:
        """The plan over other leaves, given for each of its own; it is made when somebody looks into it."""
        lists = self.placeholders, self.variables, self.changed
        own = tuple(new[node] for node in self.own)
        assert self.alike is not None
        return LaterPlan(self.over, own, self.alike, [[new[n] for n in some] for some in lists])

    @cached_property
    def made(self) -> NativePlan:
        """The plan as it was made."""
        return self.over(self.own)

    def __getattr__(self, name: str) -> object:
        if name in _LATER:
            return getattr(self.made, name)
        raise AttributeError(name)


_LATER = frozenset("program work layouts in_place checked dump loops inside arenas".split())


@dataclass(frozen=True, eq=False)
class LoopPlan:
    """A loop, as far as its results are wanted.

    Attributes:
        body: what is computed in a step.
        length: how many steps.
        reverse: whether the last slice comes first.
        operands: of the loop, by the placeholder of the body.
        step: the plan of a step.
        carried: its variables, by the number of the carried value; those on which no result depends are left
            out.
        kept: the numbers of the loop's results that its outputs are the steps of.
        before: numbers of results that are the steps of a carried value, and that value's number.
    """

    body: Body
    length: Size
    reverse: bool
    operands: Mapping[Node, Node]
    step: NativePlan
    carried: Mapping[int, Node]
    kept: tuple[int, ...]
    before: Mapping[int, int]
