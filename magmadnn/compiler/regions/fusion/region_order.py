"""An order of regions, each behind those that it needs, which is kept while regions grow and merge.

D. J. Pearce, P. H. J. Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", ACM Journal
of Experimental Algorithmics 11 (2006): what is new of one region moves only regions that lie between it and
what it needs. So it can be told without looking at all regions whether one needs another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from magmadnn.compiler.regions.region import Region


class RegionOrder:
    """Which regions need which.

    Attributes:
        needs: the regions that each needs directly.
    """

    def __init__(self) -> None:
        self.needs: dict[Region, set[Region]] = {}
        self._readers: dict[Region, set[Region]] = {}
        self._place: dict[Region, int] = {}
        self._count = 0

    def add(self, region: Region) -> None:
        """One more region, behind all others."""
        self.needs[region], self._readers[region] = set(), set()
        self._place[region] = self._count
        self._count += 1

    def need(self, region: Region, other: Region) -> None:
        """`region` needs `other`, which does not need it."""
        self.needs[region].add(other)
        self._readers[other].add(region)
        start, end = self._place[region], self._place[other]
        if start > end:
            return
        later = self._found(region, self._readers, start, end)
        earlier = self._found(other, self.needs, start, end)
        ordered = [*sorted(earlier, key=self._at), *sorted(later, key=self._at)]
        self._place.update(zip(ordered, sorted(map(self._at, ordered)), strict=True))

    def merge(self, merged: Region, one: Region, other: Region) -> None:
        """`merged` takes the place of two regions, neither of which needs the other."""
        parts = {one, other}
        for table, opposite in ((self.needs, self._readers), (self._readers, self.needs)):
            table[merged] = (table.pop(one) | table.pop(other)) - parts
            for near in table[merged]:
                opposite[near] -= parts
                opposite[near].add(merged)
        self._place[merged] = max(self._place.pop(one), self._place.pop(other))
        for reader in sorted(self._readers[merged], key=self._at):
            self.need(reader, merged)

    def reaches(self, start: Region, targets: Collection[Region]) -> bool:
        """Whether `start` needs one of `targets`, directly or through others."""
        place = self._place
        first = min(place[region] for region in targets)
        seen, stack = {start}, [start]
        while stack:
            fresh = self.needs[stack.pop()] - seen
            if not fresh.isdisjoint(targets):
                return True
            behind = [region for region in fresh if place[region] > first]
            seen.update(behind)
            stack += sorted(behind, key=self._at, reverse=True)  # what is nearest is looked at next
        return False

    def _at(self, region: Region) -> int:
        return self._place[region]

    def _found(
        self, begin: Region, table: Mapping[Region, set[Region]], start: int, end: int
    ) -> set[Region]:
        """What hangs on a region, directly or through others, at places from `start` to `end`."""
        seen, stack, place = {begin}, [begin], self._place
        while stack:
            near = table[stack.pop()] - seen
            inside = {region for region in near if start <= place[region] <= end}
            seen |= inside
            stack.extend(inside)
        return seen
