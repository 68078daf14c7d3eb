"""A Draft: what passes hand on to each other on the way from a program to a native plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.layout import Layouts
from magmadnn.graph.dim import Shape, Size
from magmadnn.graph.node import Node
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
        memory: bytes of each kind that a run takes, likewise; see `runtime.step_memory`.
        has_others: whether more than one program has come, or will: what they could copy is worth making.
    """

    def __init__(self) -> None:
        self.has_others = False
        self.checked: int | None = None
        self.stores_all: bool | None = None
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
