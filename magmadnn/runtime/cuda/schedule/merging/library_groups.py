"""Launches around calls of the device's library, in groups of which each can be merged by itself."""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.backends.cuda.engine import LibraryNode
from magmadnn.runtime.cuda.schedule.hazards import edges_of
from magmadnn.runtime.cuda.schedule.launch import Item


def groups_around_libraries(items: Sequence[Item]) -> list[list[Item]]:
    """The launches in an order in which they can run: each call by itself, and kernels between them together.

    Kernels of a group come after the same calls, directly or through others. So one launch that is made of
    several of them waits for no call that each of them would not have waited for.
    """
    calls = [isinstance(item.what, LibraryNode) for item in items]
    if not any(calls):
        return [list(items)]
    behind: list[int] = []  # as bits: the calls that each launch comes after
    for edges in edges_of([(item.reads, item.writes) for item in items]):
        known = 0
        for other in edges:
            known |= behind[other] | calls[other] << other
        behind.append(known)
    # What comes after something has its calls, and that itself if it is one; kernels stand in front of a call
    # that as many calls come before.
    order = sorted(range(len(items)), key=lambda k: (behind[k].bit_count(), calls[k], behind[k], k))
    groups: list[list[Item]] = []
    last: tuple[bool, int] | None = None
    for number in order:
        key = calls[number], behind[number]
        if key != last or calls[number]:
            groups.append([])
        groups[-1].append(items[number])
        last = key
    return groups
