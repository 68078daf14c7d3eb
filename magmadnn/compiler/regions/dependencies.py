"""What regions need of each other, and orders in which they can run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from magmadnn.compiler.layout import Layouts
from magmadnn.graph.dim import Size
from magmadnn.graph.node import Node

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
        wrong = {r for r in self.before if r.kind in _MAY_FAIL and not r.arrives}
        for region in self.before:
            if region.kind is RegionKind.SCATTER and _numbers(region) not in known:
                wrong.add(region)
        return self._all_before({*wrong, *self._homes(outputs)})

    def _homes(self, values: Iterable[Node]) -> set[Region]:
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
