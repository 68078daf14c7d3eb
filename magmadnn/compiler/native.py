"""A NativePlan: the kernels that a program became, in running order, and where values lie.

Sizes need not be known: a plan is laid out in memory once for each set of sizes that it is run with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from magmadnn.graph.node import Node
from magmadnn.graph.program import Program

from .formulas import compilable
from .layout import Layouts
from .listing import describe
from .lower import Lowered, lower, main_result, product_of
from .passes.decompose import decompose
from .passes.fuse import fuse
from .passes.simplify import simplify
from .regions import Region, RegionKind


@dataclass(frozen=True, eq=False)
class Work:
    """One step of a plan.

    Attributes:
        region: what is computed.
        needed: those of its nodes that are stored.
        lowered: the kernel; None where NumPy does it.
        phase: steps of one phase do not depend on each other, and come after those of earlier phases.
    """

    region: Region
    needed: tuple[Node, ...]
    lowered: Lowered | None
    phase: int


@dataclass(frozen=True, eq=False)
class NativePlan:
    """A compiled program.

    Attributes:
        program: what was compiled, after all passes.
        work: steps in running order.
        layouts: how values lie in memory.
        in_place: values that are written straight into the variable that they update.
        checked: the phase before which all outputs are computed; no variable is written earlier.
    """

    program: Program
    work: tuple[Work, ...]
    layouts: Layouts
    in_place: dict[Node, Node]
    checked: int

    @property
    def kernels(self) -> int:
        """How many steps are compiled kernels."""
        return sum(work.lowered is not None for work in self.work)

    def text(self, sizes: Mapping[str, int] = MappingProxyType({})) -> str:
        """Steps, what they read and keep, operations, bytes and memory; see `describe`."""
        return describe(self, sizes)

    def __str__(self) -> str:
        return self.text()


def native_plan(program: Program) -> NativePlan:
    """The native plan of a program."""
    program = simplify(decompose(simplify(program)))
    regions, layouts = fuse(program, compilable)
    needed = _needed(program, regions, layouts)
    early = _for_outputs(program, regions, layouts)
    before, in_place = _updated_in_place(program, regions, layouts, early)
    phases = _phases(regions, before, early)
    work = []
    for region in sorted(regions, key=lambda r: phases[r]):
        stored = tuple(n for n in region.nodes if n in needed)
        if region.kind is RegionKind.GEMM and main_result(region, stored, in_place) not in stored:
            stored = (product_of(region), *stored)
        called = region.kind is RegionKind.CALL
        lowered = None if called else lower(region, layouts, stored, in_place)
        work.append(Work(region, stored, lowered, phases[region]))
    checked = max((phases[r] for r in early), default=-1) + 1
    return NativePlan(program, tuple(work), layouts, in_place, checked)


def _phases(
    regions: list[Region], before: dict[Region, set[Region]], early: set[Region]
) -> dict[Region, int]:
    """The earliest phase of each region; those that outputs need come before all others."""
    phases: dict[Region, int] = {}
    ordered = _sorted(before, {r: (r not in early, k) for k, r in enumerate(regions)})
    assert ordered is not None
    for region in ordered:
        first = 0 if region in early else max((phases[r] for r in early), default=-1) + 1
        phases[region] = max([first, *(phases[r] + 1 for r in before[region])])
    return phases


def _needed(program: Program, regions: list[Region], layouts: Layouts) -> set[Node]:
    """Nodes whose values are read by other regions, or at the end."""
    home = {node: region for region in regions for node in region.nodes}
    needed = {layouts.bases[root] for root in program.roots}
    for region in regions:
        for node in region.nodes:
            for operand in node.inputs:
                base = layouts.bases[operand]
                if home.get(base) is not region:
                    needed.add(base)
    return needed


def _for_outputs(program: Program, regions: list[Region], layouts: Layouts) -> set[Region]:
    """The regions that the outputs need."""
    before = _before(regions, layouts)
    home = {node: region for region in regions for node in region.nodes}
    stack = [home[b] for out in program.outputs if (b := layouts.bases[out]) in home]
    found = set(stack)
    while stack:
        fresh = before[stack.pop()] - found
        found |= fresh
        stack.extend(fresh)
    return found


def _before(regions: list[Region], layouts: Layouts) -> dict[Region, set[Region]]:
    """The regions that each region reads from."""
    home = {node: region for region in regions for node in region.nodes}
    return {
        region: {
            home[base]
            for node in region.nodes
            for operand in node.inputs
            if (base := layouts.bases[operand]) in home and home[base] is not region
        }
        for region in regions
    }


# --- updates in place -----------------------------------------------------------------------------


def _updated_in_place(
    program: Program, regions: list[Region], layouts: Layouts, early: set[Region]
) -> tuple[dict[Region, set[Region]], dict[Node, Node]]:
    """What comes before each region, and which new values are written straight into their variables.

    Regions that outputs need come first, and write no variable. A region that does comes after every other
    region that reads it, and after all calls: those may raise, and then nothing must have changed. Inside
    it, the variable may be read element by element only, in the walk that also writes it.
    """
    home = {node: region for region in regions for node in region.nodes}
    position = {region: (region not in early, k) for k, region in enumerate(regions)}
    before = _before(regions, layouts)
    chosen: dict[Node, Node] = {}
    for target, value in program.updates:
        region = home.get(value)
        if region is None or region.kind is RegionKind.CALL or region in early:
            continue
        if not _may_alias(target, value, region, layouts, program):
            continue
        earlier = {r for r in regions if r.kind is RegionKind.CALL or _reads(r, target, layouts)}
        trial = {**before, region: before[region] | (earlier - {region})}
        if _sorted(trial, position) is not None:
            before = trial
            chosen[value] = target
    return before, chosen


def _may_alias(
    target: Node,
    value: Node,
    region: Region,
    layouts: Layouts,
    program: Program,
) -> bool:
    """Whether `value` may be written over `target` by the region that computes it."""
    if region.numbers and not _is_read_on_the_way(target, value, region, layouts):
        return False  # a walk over a row after the one that stores would read what is new
    if region.kind is RegionKind.GEMM and _reads_in_product(region, target, layouts):
        return False  # elements that are stored already would be read again for others
    if sum(v is value for _, v in program.updates) > 1:
        return False
    others = {layouts.bases[v] for t, v in program.updates if v is not value}
    if target in others:
        return False
    own = [i for n in region.nodes for i in n.inputs if layouts.bases[i] is target]
    return all(layouts.is_whole(i) and i.shape == value.shape for i in own)


def _is_read_on_the_way(target: Node, value: Node, region: Region, layouts: Layouts) -> bool:
    """Whether a number of a row is stored over another that only it, and what it is made of, reads."""
    if value not in region.numbers or region.kind is not RegionKind.ROWS:
        return False
    readers = {n for n in region.nodes if any(layouts.bases[i] is target for i in n.inputs)}
    made_of, stack = {value}, [value]
    while stack:
        fresh = {layouts.bases[i] for i in stack.pop().inputs} - made_of
        made_of |= fresh
        stack.extend(fresh & region.numbers)
    return readers <= made_of & region.numbers


def _reads(region: Region, target: Node, layouts: Layouts) -> bool:
    return any(layouts.bases[i] is target for n in region.nodes for i in n.inputs)


def _reads_in_product(region: Region, target: Node, layouts: Layouts) -> bool:
    return any(layouts.bases[i] is target for i in product_of(region).inputs)


def _sorted(
    before: dict[Region, set[Region]], position: dict[Region, tuple[bool, int]]
) -> list[Region] | None:
    """Regions after those before them, otherwise in their old order; None if that is a circle."""
    left = {region: set(needs) for region, needs in before.items()}
    ordered: list[Region] = []
    ready = sorted((r for r, needs in left.items() if not needs), key=lambda r: position[r])
    while ready:
        region = ready.pop(0)
        ordered.append(region)
        del left[region]
        for other, needs in left.items():
            if region in needs:
                needs.remove(region)
                if not needs:
                    ready.append(other)
        ready.sort(key=lambda r: position[r])
    return None if left else ordered
