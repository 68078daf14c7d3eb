"""order: regions into phases. Those of one phase do not depend on each other: threads share their work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .dependencies import behind, in_order
from .draft import Draft
from .region import Region, RegionKind


def order(draft: Draft) -> Draft:
    """The earliest phase of each region; those that outputs need come before all others.

    A phase has one collective at most, and they come in the order in which what they need can be there, the
    same on all ranks. Those that only wait for what has been begun come behind all that does not need them.
    """
    known = draft.dependencies
    early = known.early(draft.program.outputs)
    before = {r: known.before[r] | draft.before.get(r, frozenset()) for r in draft.regions}
    late = behind(before)
    ready = _ready(before)
    position = {
        r: ((r not in early) + 2 * (r in late), ready.get(r, -1), k)
        for k, r in enumerate(draft.regions)
    }
    ordered = in_order(before, position)
    assert ordered is not None
    phases: dict[Region, int] = {}
    checked = 0  # phases of those that outputs need, which are all in front
    end = 0  # of all that needs nothing of what is waited for
    calls = 0  # the first phase for the next collective: all ranks make these in one order, one at a time
    for region in ordered:
        first = 0 if region in early else checked
        if region.kind is RegionKind.COLLECTIVE:
            first = max(first, calls, end if region.arrives else 0)
        phases[region] = max([first, *(phases[r] + 1 for r in before[region])])
        if region.kind is RegionKind.COLLECTIVE:
            calls = phases[region] + 1
        if region not in late:
            end = max(end, phases[region] + 1)
        if region in early:
            checked = max(checked, phases[region] + 1)
    return replace(draft, phases=phases)


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
