"""What regions need of each other, and orders in which they can run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from magmadnn.compiler.layout import Layouts
from magmadnn.graph.dim import Size
from magmadnn.graph.node import Node

from .region import Region, RegionKind


class Dependencies:
    """Which region computes what, and which regions it reads from.

    Attributes:
        home: the region of each node that is computed.
        before: the regions that each region reads from.
    """

    def __init__(self, regions: Sequence[Region], layouts: Layouts) -> None:
        self.home = {node: region for region in regions for node in region.nodes}
        self._bases = layouts.bases
        self.before = {region: self._read_by(region) for region in regions}

    def _read_by(self, region: Region) -> frozenset[Region]:
        bases = {self._bases[i] for node in region.nodes for i in node.inputs}
        return frozenset(self.home[b] for b in bases if b in self.home) - {region}

    def reads(self, region: Region, target: Node) -> bool:
        """Whether a region reads the memory of `target`."""
        return any(self._bases[i] is target for n in region.nodes for i in n.inputs)

    def early(self, outputs: Iterable[Node]) -> set[Region]:
        """The regions that run before any variable is written, and all that they need.

        Outputs are looked at before, and kernels that may find something wrong must have run.
        """
        known = {_numbers(r) for r in self.before if r.kind is RegionKind.GATHER}
        wrong = {r for r in self.before if r.kind is RegionKind.GATHER}
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


def _numbers(region: Region) -> tuple[Node, Size]:
    """The numbers that a gather or scatter goes by, and how many rows there are to number."""
    node = region.nodes[0]
    count = node.attributes.get("count")
    return node.inputs[1], node.inputs[0].shape[node.attributes["axis"]] if count is None else count


def in_order(
    before: Mapping[Region, frozenset[Region]], position: Mapping[Region, tuple[bool, int]]
) -> list[Region] | None:
    """Regions after those before them, otherwise by position; None if that is a circle."""
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
