"""What regions need of each other, orders in which they can run, and their phases.

Regions of one phase do not depend on each other: threads share their work.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.program.recompute import is_called_again
from magmadnn.graph.dim import Size
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op

from .region import Region, RegionKind

_MAY_FAIL = (
    RegionKind.GATHER,
    RegionKind.LIBRARY,
    RegionKind.LOOP,
    RegionKind.COLLECTIVE,
    RegionKind.CALL,
)


class Dependencies:
    """Which region computes what, and which regions it reads from.

    Attributes:
        home: the region of each node that is computed.
        before: the regions that each region reads from.
    """

    def __init__(self, regions: Sequence[Region], layouts: Layouts) -> None:
        self.home = {node: region for region in regions for node in region.nodes}
        self._bases = layouts.bases
        self._readers: dict[Node, set[Region]] = {}
        for region in regions:
            for node in region.nodes:
                for operand in node.inputs:
                    self._readers.setdefault(self._bases[operand], set()).add(region)
        self.before = {region: self._read_by(region) for region in regions}

    def _read_by(self, region: Region) -> frozenset[Region]:
        bases = {self._bases[i] for node in region.nodes for i in node.inputs}
        return frozenset(self.home[b] for b in bases if b in self.home) - {region}

    def readers(self, target: Node) -> frozenset[Region]:
        """The regions that read the memory of `target`."""
        return frozenset(self._readers.get(target, ()))

    def early(self, outputs: Iterable[Node]) -> set[Region]:
        """The regions that run before any variable is written, and all that they need.

        Outputs are looked at before, and what may find something wrong, or raise, must have run.
        """
        known = {_numbers(r) for r in self.before if r.kind is RegionKind.GATHER}
        wrong = {r for r in self.before if _may_fail(r) and not r.arrives}
        for region in self.before:
            if region.kind is RegionKind.SCATTER and _numbers(region) not in known:
                wrong.add(region)
        return self._all_before({*wrong, *self.homes(outputs)})

    def before_calls(self, written: Iterable[Node]) -> set[Region]:
        """The regions that call functions of whole arrays, which cannot fail, and all that they need.

        Without those that compute `written`, new values of variables.
        """
        calls = {r for r in self.before if r.kind is RegionKind.LIBRARY and not _may_fail(r)}
        return self._all_before(calls) - self.homes(written)

    def homes(self, values: Iterable[Node]) -> set[Region]:
        """The regions that compute some values."""
        return {self.home[b] for v in values if (b := self._bases[v]) in self.home}

    def _all_before(self, regions: Iterable[Region]) -> set[Region]:
        """These regions and those that they need, directly or through others."""
        found = set(regions)
        stack = list(found)
        while stack:
            fresh = self.before[stack.pop()] - found
            found |= fresh
            stack.extend(fresh)
        return found


def _may_fail(region: Region) -> bool:
    """Whether a region may find its operands wrong, or raise: functions of whole arrays do neither."""
    if region.kind is not RegionKind.LIBRARY:
        return region.kind in _MAY_FAIL
    calls = [node.op.library for node in region.nodes if isinstance(node.op, Op)]
    return not any(call is not None and call.whole for call in calls)


def behind(before: Mapping[Region, frozenset[Region]]) -> set[Region]:
    """The regions that wait for what another rank sends, and all that need them."""
    found = {region for region in before if region.arrives}
    fresh = set(found)
    while fresh:
        fresh = {r for r, needs in before.items() if r not in found and needs & found}
        found |= fresh
    return found


def _numbers(region: Region) -> tuple[Node, Size]:
    """The numbers that a gather or scatter goes by, and how many rows there are to number."""
    node = region.nodes[0]
    count = node.attributes.get("count")
    return node.inputs[1], node.inputs[0].shape[node.attributes["axis"]] if count is None else count


def in_order(
    before: Mapping[Region, frozenset[Region]], position: Mapping[Region, tuple[int, ...]]
) -> list[Region] | None:
    """Regions after those before them, otherwise by position; None if that is a circle."""
    left = {region: len(needs) for region, needs in before.items()}
    after: dict[Region, list[Region]] = {region: [] for region in before}
    for region, needs in before.items():
        for other in needs:
            after[other].append(region)
    numbers = {region: number for number, region in enumerate(before)}  # positions may be equal
    ready = [(position[r], numbers[r], r) for r, count in left.items() if not count]
    heapify(ready)
    ordered: list[Region] = []
    while ready:
        region = heappop(ready)[-1]
        ordered.append(region)
        for other in after[region]:
            left[other] -= 1
            if not left[other]:
                heappush(ready, (position[other], numbers[other], other))
    return ordered if len(ordered) == len(left) else None


def phases_of(
    known: Dependencies,
    outputs: Iterable[Node],
    others: Mapping[Region, frozenset[Region]],
    written: Iterable[Node] = (),
) -> dict[Region, int]:
    """The earliest phase of each region; those that outputs need come before all others.

    What calls of whole arrays need, as convolutions and their gradients, begins as early as these, but new
    values of variables do not.

    A phase has one collective at most, and they come in the order in which what they need can be there, the
    same on all ranks. Those that only wait for what has been begun come behind all that does not need them.

    Args:
        known: what regions read of each other.
        outputs: of the program.
        others: regions that have to be done before one for another reason.
        written: new values of variables.
    """
    early = known.early(outputs)
    beside = known.before_calls(written) - early
    before = {r: needs | others.get(r, frozenset()) for r, needs in known.before.items()}
    late = behind(before)
    ready = _ready(before)

    def turn(region: Region) -> int:
        """Which regions come first, where nothing else says so."""
        return 3 * (region in late) + (0 if region in early else 1 if region in beside else 2)

    position = {r: (turn(r), ready.get(r, -1), k) for k, r in enumerate(before)}
    ordered = in_order(before, position)
    assert ordered is not None
    phases: dict[Region, int] = {}
    checked = 0  # phases of those that outputs need, which are all in front
    end = 0  # of all that needs nothing of what is waited for
    calls = 0  # the first phase for the next collective: all ranks make these in one order, one at a time
    for region in ordered:
        first = 0 if region in early or region in beside else checked
        if region.kind is RegionKind.COLLECTIVE:
            first = max(first, calls, end if region.arrives else 0)
        phases[region] = max([first, *(phases[r] + 1 for r in before[region])])
        if region.kind is RegionKind.COLLECTIVE:
            calls = phases[region] + 1
        if region not in late:
            end = max(end, phases[region] + 1)
        if region in early:
            checked = max(checked, phases[region] + 1)
    _delay(phases, before, known.homes(outputs))
    return phases


def _delay(
    phases: dict[Region, int],
    before: Mapping[Region, frozenset[Region]],
    wanted: Container[Region],
) -> None:
    """Put regions that make a large value again for one reader right in front of that, unless `wanted`."""
    again = (r for r in before if r not in wanted and any(map(is_called_again, r.nodes)))
    for region in again:
        readers = (phases[other] for other, needs in before.items() if region in needs)
        phases[region] = min(readers, default=phases[region] + 1) - 1


def _ready(before: Mapping[Region, frozenset[Region]]) -> dict[Region, int]:
    """For each collective the longest way through what it needs; nothing where there is none."""
    if not any(region.kind is RegionKind.COLLECTIVE for region in before):
        return {}
    ways: dict[Region, int] = {}
    ordered = in_order(before, {region: (k,) for k, region in enumerate(before)})
    assert ordered is not None
    for region in ordered:
        ways[region] = max((ways[other] + 1 for other in before[region]), default=0)
    return {r: way for r, way in ways.items() if r.kind is RegionKind.COLLECTIVE}
