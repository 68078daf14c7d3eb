"""Cores of the processors: which are free on each host, and running on some of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence

from magmadnn.runtime.threads import MOST, on_threads


class Cores:
    """Cores that runs may have for themselves.

    A run gets as many for each rank as the rank has threads, where that many are free on its host; else its
    ranks share what there is.

    Args:
        hosts: of each rank.
        allowed: cores that each rank may run on, as `own_cores` writes them.
    """

    def __init__(self, hosts: Sequence[str], allowed: Sequence[str]) -> None:
        self._hosts = list(hosts)
        self._free: dict[str, set[int]] = {}
        for host, text in zip(hosts, allowed, strict=True):
            self._free.setdefault(host, set()).update(cores_in(text))

    def take(self, ranks: Iterable[int], threads: int) -> list[list[int]]:
        """Cores for each of some ranks, the lowest that are free; none where one would get too few."""
        found: list[list[int]] = []
        for rank in ranks:
            free = self._free[self._hosts[rank]]
            if len(free) < threads:
                self.give(zip(ranks, found, strict=False))
                return []
            found.append(sorted(free)[:threads])
            free.difference_update(found[-1])
        return found

    def give(self, taken: Iterable[tuple[int, list[int]]]) -> None:
        """Give cores of ranks back."""
        for rank, cores in taken:
            self._free[self._hosts[rank]].update(cores)


def own_cores() -> str:
    """The cores that this process may run on, as `0-3,8`; an empty text where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    runs: list[list[int]] = []
    for core in sorted(os.sched_getaffinity(0)):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in runs)


def cores_in(text: str) -> set[int]:
    """The numbers in such a text."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


@contextlib.contextmanager
def on_cores(cores: Sequence[int], threads: int) -> Iterator[None]:
    """Run on some cores, and compiled programs on so many threads; children that are started do too.

    Where there are no cores to have, or the host has no such, the process stays where it was.
    """
    before = None
    if cores and hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)
    try:
        with on_threads(min(threads, MOST)):
            yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)
