"""Regions that wait for the same sums and read a matrix that was summed become one, which reads it once.

Where two normalisations are added, the gradients of both are made of the gradient of their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from magmadnn.compiler.regions.region import Region, RegionKind

from .growth import Growth


class Merging(Protocol):
    """Regions in the making that can become one: `Fusion`."""

    growth: Growth

    def merge(self, one: Region, other: Region) -> Region | None:
        """What two regions become as one; None where they cannot be one kernel."""
        ...


def gather_beside(fusion: Merging, ordered: Sequence[Region]) -> None:
    """Make one of such regions.

    Args:
        fusion: that made the regions.
        ordered: all of them, in an order in which they can run.
    """
    growth, place = fusion.growth, {region: k for k, region in enumerate(ordered)}
    waiting: dict[Region, Region] = {}  # by the sums that are known last
    for region in ordered:
        sums = [r for r in growth.order.needs[region] if r.kind is RegionKind.COLUMNS]
        if region.kind is not RegionKind.ROWS or region.numbers or not sums:
            continue
        last = max(sums, key=lambda r: place[r])
        other, read = waiting.get(last), growth.streams[region] & growth.matrices(last)
        merged = None
        if other is not None and not read.isdisjoint(growth.streams[other]):
            merged = fusion.merge(other, region)
        waiting[last] = merged or region
