"""How many steps each graph of a slice has."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 4096  # batches of one slice, for which there is room to keep outputs and settings
STEPS = (1, 8, 64)  # of a graph
_MOST = 1024  # steps of one kernel
_LONG_AS_SHORT = 2  # of the longest graphs, while rows come: the host is ahead of the device then


def cut(count: int, is_one_kernel: bool) -> list[int]:
    """Graphs of so many steps each that make a slice; short ones first, that the device begins early."""
    if is_one_kernel:
        return [_MOST] * -(-count // _MOST)
    found = []
    for steps, longer in zip(STEPS, (*STEPS[1:], LONGEST + 1), strict=True):
        found += [steps] * (count % longer // steps)
    return found


def short_first(graphs: Sequence[int]) -> list[int]:
    """A slice's graphs with the first long ones as shorter ones, which wait for fewer rows."""
    short, long = STEPS[-2:]
    first = graphs.index(long) if long in graphs else len(graphs)
    last = first + min(len(graphs) - first, _LONG_AS_SHORT)
    return [*graphs[:first], *[short] * (long // short * (last - first)), *graphs[last:]]
