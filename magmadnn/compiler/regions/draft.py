"""A Draft: what passes hand on to each other on the way from a program to a native plan; its copies.

A draft is copied over other nodes than those that it was made for, where programs are built alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from magmadnn.compiler.kernels.kernel import Kernel, same_kernel
from magmadnn.compiler.layout import Layouts
from magmadnn.graph.dim import Shape, Size, substitute
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program

from .dependencies import Dependencies
from .region import Region


@dataclass(frozen=True)
class Lowered:
    """A kernel, and which values its slots mean.

    Attributes:
        kernel: what is compiled.
        reads: (slot, node, spread) of what is read.
        writes: (slot, node, spread) of what is stored.
        numbers: (slot, integer) of what is known beforehand; sizes may be symbolic.
        shapes: (slot, shape) of operands whose rows are strided: the shape that they are read in.
    """

    kernel: Kernel
    reads: tuple[tuple[str, Node, str], ...]
    writes: tuple[tuple[str, Node, str], ...]
    numbers: tuple[tuple[str, Size], ...] = ()
    shapes: tuple[tuple[str, Shape], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", same_kernel(self.kernel))


@dataclass(frozen=True, eq=False)
class Work:
    """One step of a plan.

    Attributes:
        region: what is computed.
        needed: those of its nodes that are stored.
        room: a node besides whose place is room for sums, and which nobody reads.
        lowered: the kernel; None where NumPy does it.
        phase: steps of one phase do not depend on each other, and come after those of earlier phases.
    """

    region: Region
    needed: tuple[Node, ...]
    lowered: Lowered | None
    phase: int
    room: Node | None = None

    @property
    def placed(self) -> tuple[Node, ...]:
        """Nodes that get memory."""
        return self.needed if self.room is None else (self.room, *self.needed)


Sizes = tuple[tuple[str, int], ...]  # of symbolic dimensions, by name


@dataclass(frozen=True)
class Places:
    """An arena of any of the drafts that are alike.

    Attributes:
        places: number of a node of the program, first byte, bytes, first and last phase.
        lives: how many of them are values; partial results follow.
        nbytes, apart: as of `Arena`.
    """

    places: tuple[tuple[int, int, int, int, int], ...]
    lives: int
    nbytes: int
    apart: int


class Alike:
    """Stands for all drafts that differ in their leaves only: nodes stand in the same order in them.

    Attributes:
        places: where values lie in memory, for sizes that were asked for lately.
        checked: the phase before which all outputs are computed; None where nobody has found out yet.
        stores_all: whether their plans store outputs and new values; None where nobody has found out yet.
        is_own: whether all of their steps are kernels that are compiled, likewise.
        memory: bytes of each kind that a run takes, likewise; see `runtime.step_memory`.
        has_others: whether more than one program has come, or will: what they could copy is worth making.
    """

    def __init__(self) -> None:
        self.has_others = False
        self.checked: int | None = None
        self.stores_all: bool | None = None
        self.is_own: bool | None = None
        self.places: dict[Sizes, Places] = {}
        self.memory: dict[Sizes, tuple[int, ...]] = {}


@dataclass(frozen=True, eq=False)
class Draft:
    """A native plan in the making; each pass fills in what its name says.

    Attributes:
        program: what is compiled.
        regions: what becomes one step each, in an order in which they can run (`fuse`).
        layouts: how values lie in memory (`fuse`).
        before: the regions that must have run before each, beyond those that it reads from (`fold`).
        in_place: values that are written straight into the variable that they update (`fold`).
        phases: of each region (`order`).
        work: the steps (`select`).
        alike: the same for drafts that differ in their leaves only; None where that is not known.
    """

    program: Program
    regions: tuple[Region, ...] = ()
    layouts: Layouts = field(default_factory=lambda: Layouts(()))
    before: Mapping[Region, frozenset[Region]] = field(default_factory=dict)
    in_place: Mapping[Node, Node] = field(default_factory=dict)
    phases: Mapping[Region, int] = field(default_factory=dict)
    work: tuple[Work, ...] = ()
    alike: Alike | None = None

    @property
    def dependencies(self) -> Dependencies:
        """What regions read from each other."""
        return Dependencies(self.regions, self.layouts)

    def __str__(self) -> str:
        """The program before `fuse`; regions, and what is known of each, after it."""
        if not self.regions:
            return str(self.program)
        lines = []
        for number, region in enumerate(self.regions):
            lines.append(f"r{number} = {region}")
            lines += [f"    {line}" for line in self._known_of(region)]
        lines += [f"{t.name} := {v.label}" for t, v in self.program.updates]
        return "\n".join(lines)

    def _known_of(self, region: Region) -> list[str]:
        """What passes after `fuse` found out about a region."""
        numbers = {r: f"r{k}" for k, r in enumerate(self.regions)}
        written = [f"{n.label} in {t.label}" for n, t in self.in_place.items() if n in region.nodes]
        after = sorted((numbers[r] for r in self.before.get(region, ())), key=lambda n: int(n[1:]))
        lines = []
        if after:
            lines.append(f"after {', '.join(after)}")
        if written:
            lines.append(f"writes {', '.join(written)}")
        if region in self.phases:
            lines.append(f"phase {self.phases[region]}")
        for work in self.work:
            if work.region is region:
                lines.append(f"keeps {', '.join(n.label for n in work.needed) or 'nothing'}")
                lines.append(f"by {'NumPy' if work.lowered is None else repr(work.lowered.kernel)}")
        return lines


_NONE: Mapping[str, int] = MappingProxyType({})


def over_leaves(draft: Draft, leaves: Mapping[Node, Node]) -> Draft:
    """A draft over other leaves; what does not depend on them, and stand-ins of values, are shared."""
    new = dict(leaves)
    for node in draft.program.nodes():
        if node not in new:
            new[node] = renewed(node, new)
    return copied(draft, new, draft.layouts.renewed(new))


def copied(
    draft: Draft, new: Mapping[Node, Node], layouts: Layouts, sizes: Mapping[str, int] = _NONE
) -> Draft:
    """A draft of other nodes.

    Args:
        draft: after all passes.
        new: what stands for each of its nodes.
        layouts: of these.
        sizes: numbers for symbols in it.
    """
    regions = {
        region: replace(
            region,
            rows=substitute(region.rows, sizes),
            columns=substitute(region.columns, sizes),
            nodes=[new[n] for n in region.nodes],
            numbers={new[n] for n in region.numbers},
            elements={new[n] for n in region.elements},
        )
        for region in draft.regions
    }
    return Draft(
        draft.program.renewed(new),
        tuple(regions.values()),
        layouts,
        {regions[r]: frozenset(regions[b] for b in bs) for r, bs in draft.before.items()},
        {new[value]: new[target] for value, target in draft.in_place.items()},
        {regions[r]: phase for r, phase in draft.phases.items()},
        tuple(_work(work, regions, new, sizes) for work in draft.work),
    )


def renewed(node: Node, new: Mapping[Node, Node]) -> Node:
    """A node over others; itself where nothing of it depends on a model."""
    name, path = node.name, node.path
    if type(name) is not str or path:  # as most are that have been copied before
        name, path = str(name), named(node)
    if not node.inputs and name is node.name and path is node.path and not isinstance(node.op, Op):
        return node
    inputs = tuple([new[i] for i in node.inputs])
    return Node(node.op, inputs, node.spec, node.attributes, name, node.value, path, None)


def _work(
    work: Work,
    regions: Mapping[Region, Region],
    new: Mapping[Node, Node],
    sizes: Mapping[str, int],
) -> Work:
    lowered = work.lowered
    if lowered is not None:
        lowered = Lowered(
            lowered.kernel,
            _moved(lowered.reads, new),
            _moved(lowered.writes, new),
            tuple((slot, substitute(number, sizes)) for slot, number in lowered.numbers),
            tuple((slot, substitute(shape, sizes)) for slot, shape in lowered.shapes),
        )
    room = None if work.room is None else new[work.room]
    needed = tuple(new[n] for n in work.needed)
    return Work(regions[work.region], needed, lowered, work.phase, room)


def _moved(
    slots: Iterable[tuple[str, Node, str]], new: Mapping[Node, Node]
) -> tuple[tuple[str, Node, str], ...]:
    return tuple((slot, new[node], spread) for slot, node, spread in slots)


def named(node: Node) -> tuple[object, ...]:
    """The scopes of a node as text, which keeps no layer alive."""
    path = node.path
    for scope in path:
        if type(scope) is not str:
            return tuple(map(str, path))
    return path
