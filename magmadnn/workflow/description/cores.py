"""Which cores each rank of a module is kept on; the plan and the executive hand them out in the same way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence


def cores_here() -> list[int]:
    """The cores that this process may use; where the system does not say, none."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class Cores:
    """The cores of each machine, handed out to ranks that run.

    A rank gets as many as it has threads, the first that are free, next to each other where there are such.
    One for which too few are left gets none and may use all: two ranks on one core would wait for each other.

    Args:
        hosts: the cores of each machine.
    """

    def __init__(self, hosts: Mapping[str, Iterable[int]]) -> None:
        self._free = {host: sorted(set(cores)) for host, cores in hosts.items()}

    def take(self, host: str, threads: int) -> list[int]:
        """Cores for a rank on a machine; empty where too few are free."""
        free = self._free.get(host, [])
        if threads > len(free):
            return []
        rows = (free[k : k + threads] for k in range(len(free) - threads + 1))
        row = next((r for r in rows if r[-1] - r[0] == threads - 1), free[:threads])
        self._free[host] = [core for core in free if core not in row]
        return row

    def give_back(self, host: str, cores: Sequence[int]) -> None:
        """A rank has ended."""
        if cores:
            self._free[host] = sorted([*self._free[host], *cores])


def in_words(cores: Sequence[int]) -> str:
    """`0`, `0-3` or `0,2`; `all` where a rank is not kept on some."""
    if not cores:
        return "all"
    if len(cores) > 1 and cores[-1] - cores[0] == len(cores) - 1:
        return f"{cores[0]}-{cores[-1]}"
    return ",".join(map(str, cores))


def as_mask(cores: Iterable[int]) -> str:
    """Cores as a hexadecimal number, which is short in a message."""
    return f"{sum(1 << core for core in cores):x}"


def of_mask(text: str) -> list[int]:
    """The cores of `as_mask`."""
    number = int(text, 16)
    return [k for k in range(number.bit_length()) if number >> k & 1]
