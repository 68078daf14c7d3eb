"""What is legal of regions, of updates in place, of phases and of memory; run between passes by the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from magmadnn.errors import GraphError
from magmadnn.graph.node import VARIABLE, Node
from magmadnn.graph.op import Op

from .alias import alone, is_safe
from .draft import Draft, Work
from .region import BY_PYTHON, Region


def verify_draft(draft: Draft, *, name: str) -> None:
    """Check what a pass made of regions.

    Looks at what is known so far: regions after `fuse`, updates in place after `fold`, phases after `order`,
    steps after `select`.

    Raises:
        GraphError: naming the pass, and the fault.
    """
    if not draft.regions:
        return
    found = _Draft(draft, name)
    found.check_regions()
    found.check_in_place()
    if draft.phases:
        found.check_phases()
        found.check_anti_dependences()
    if draft.work:
        found.check_work()


class _Draft:
    """A draft under examination."""

    def __init__(self, draft: Draft, name: str) -> None:
        self.draft, self.name = draft, name
        self.known = draft.dependencies
        self.early = self.known.early(draft.program.outputs)

    def fail(self, what: str) -> GraphError:
        return GraphError(f"pass {self.name}: {what}")

    def check_regions(self) -> None:
        """Every value has one region, which comes after those that it reads from."""
        draft, layouts = self.draft, self.draft.layouts
        nodes = [n for n in draft.program.nodes() if isinstance(n.op, Op) and n in layouts.bases]
        homes = Counter(n for region in draft.regions for n in region.nodes)
        for node in nodes:
            if not layouts.is_view(node) and homes[node] != 1:
                raise self.fail(f"{node.label} is in {homes[node]} regions, expected 1")
        done: set[Region] = set()
        for region in draft.regions:
            if missing := self.known.before[region] - done:
                raise self.fail(f"{region} stands before {_some(missing)}, which it reads")
            done.add(region)

    def check_in_place(self) -> None:
        """A value that is written over a variable is its only new value, and nobody needs the old one."""
        draft, known = self.draft, self.known
        updates = [(target, value) for value, target in draft.in_place.items()]
        targets = Counter(target for target, _ in updates)
        for target, value in updates:
            where = f"{value.label} in place of {target.label}"
            if (target, value) not in draft.program.updates or target.op is not VARIABLE:
                raise self.fail(f"{where}: there is no such update")
            if targets[target] > 1:
                raise self.fail(f"{where}: {target.label} is written {targets[target]} times")
            region = known.home.get(value)
            if region is None or region.kind in BY_PYTHON:
                raise self.fail(f"{where}: no kernel computes it")
            if region in self.early:
                raise self.fail(f"{where}: outputs need {region}, and come before all updates")
            safe = is_safe(target, value, region, draft.layouts)
            if not safe or not alone(draft.program, draft.layouts)(target, value):
                raise self.fail(f"{where}: {region} reads other elements of it, or reads it later")

    def check_phases(self) -> None:
        """What is read was computed in an earlier phase; outputs and what may raise come before the rest."""
        draft, phases = self.draft, self.draft.phases
        for region in draft.regions:
            for other in self.known.before[region] | draft.before.get(region, frozenset()):
                if phases[other] >= phases[region]:
                    raise self.fail(
                        f"{region} in phase {phases[region]} needs {other} in phase {phases[other]}"
                    )
        last = max((phases[r] for r in self.early), default=-1)
        beside = self.known.before_calls(value for _, value in draft.program.updates)
        for region in draft.regions:
            if region not in self.early | beside and phases[region] <= last:
                raise self.fail(
                    f"{region} in phase {phases[region]} runs beside what outputs need, or may raise"
                )

    def check_anti_dependences(self) -> None:
        """No other region reads a variable in or after the phase that writes it."""
        draft, phases = self.draft, self.draft.phases
        for value, target in draft.in_place.items():
            writer = self.known.home[value]
            for region in draft.regions:
                if region is writer or phases[region] < phases[writer]:
                    continue
                when = f"phase {phases[region]}, but phase {phases[writer]} writes it"
                if region in self.known.readers(target):
                    raise self.fail(f"{region} reads {target.label} in {when}")

    def check_work(self) -> None:
        """Every region is one step, and what steps read from each other is stored."""
        draft = self.draft
        if {id(w.region) for w in draft.work} != {id(r) for r in draft.regions}:
            raise self.fail("steps and regions are not the same")
        stored = {node for work in draft.work for node in work.needed}
        for work in draft.work:
            for base in _read_from_memory(work, draft):
                if base in self.known.home and base not in stored:
                    raise self.fail(f"{work.region} reads {base.label}, which nothing stores")
        for root in draft.program.roots:
            base = draft.layouts.bases[root]
            if base in self.known.home and base not in stored:
                raise self.fail(f"{base.label} is wanted at the end, but nothing stores it")


def _read_from_memory(work: Work, draft: Draft) -> list[Node]:
    if work.lowered is None:
        nodes: Sequence[Node] = work.region.read
    else:
        nodes = [node for _, node, _ in work.lowered.reads]
    return [draft.layouts.bases[node] for node in nodes]


def _some(regions: set[Region] | frozenset[Region]) -> str:
    return ", ".join(sorted(map(str, regions)))
