"""The order of regions that grow and merge, against a search through all of them; free memory."""

from __future__ import annotations

import numpy as np
import pytest

from magmadnn.compiler.plan.memory import _Free
from magmadnn.compiler.regions.fusion.growth import RegionOrder
from magmadnn.compiler.regions.region import Region, RegionKind


def reachable(order: RegionOrder, start: Region) -> set[Region]:
    found, stack = {start}, [start]
    while stack:
        fresh = order.needs[stack.pop()] - found
        found |= fresh
        stack.extend(fresh)
    return found - {start}


@pytest.mark.parametrize("seed", range(8))
def test_what_needs_what_is_told_while_regions_grow_and_merge(seed: int) -> None:
    rng = np.random.default_rng(seed)
    order, regions = RegionOrder(), []
    answers = []
    for _ in range(400):
        step = rng.random()
        if step < 0.4 or len(regions) < 3:
            regions.append(Region(RegionKind.ROWS, (), 1))
            order.add(regions[-1])
            continue
        one, other = (regions[k] for k in rng.integers(0, len(regions), 2))
        if one is other:
            continue
        apart = one not in reachable(order, other)
        if step < 0.8 and apart:
            order.need(one, other)  # an older one may need a later one
        elif apart and other not in reachable(order, one):
            merged = Region(RegionKind.ROWS, (), 1)
            order.merge(merged, one, other)
            regions = [r for r in regions if r not in (one, other)] + [merged]
        start, *targets = (regions[k] for k in rng.integers(0, len(regions), 3))
        wanted = bool(reachable(order, start) & set(targets))
        assert order.reaches(start, targets) == wanted
        answers.append(wanted)
        assert all(order._place[n] < order._place[r] for r in regions for n in order.needs[r])
    assert 20 < sum(answers) < len(answers) - 20


@pytest.mark.parametrize("seed", range(4))
def test_memory_that_is_taken_is_the_lowest_that_is_free(seed: int) -> None:
    """Against a row of bytes, each of which is free or not."""
    rng = np.random.default_rng(seed)
    free, taken = _Free(), np.zeros(4000, bool)
    held: list[tuple[int, int]] = []
    for _ in range(300):
        if held and rng.random() < 0.48:
            start, room = held.pop(int(rng.integers(len(held))))
            free.give(start, room)
            taken[start : start + room] = False
            continue
        room = int(rng.integers(1, 40))
        start = free.take(room)
        assert start == next(k for k in range(4000) if not taken[k : k + room].any())
        taken[start : start + room] = True
        held.append((start, room))
    for start, room in held:
        free.give(start, room)
    assert (free._starts, free._ends) == ([0], [np.inf])
