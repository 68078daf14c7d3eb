"""Which GPUs each rank of a module sees; the plan and the executive hand them out in the same way.

CUDA keeps to the GPUs that a process shows it when it begins there. So a rank that has run a function, or a
library, with some GPUs runs functions and libraries with just these from then on. Commands are processes of
their own, and free of that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from .model import ModuleModel

Placed = tuple[list[int], list[list[str]]]
"""The ranks of a run, and the GPUs that each of them sees (empty where it sees none)."""


def gpus_here() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [one.strip() for one in given.split(",") if one.strip()]
    return [str(k) for k, _ in enumerate(sorted(Path("/dev").glob("nvidia[0-9]*"), key=str))]


class Gpus:
    """The ranks and the GPUs of a job, handed out to runs of modules.

    Args:
        ranks: for modules.
        gpus: of the machine.

    Attributes:
        free_ranks: those that run nothing, in ascending order.
    """

    def __init__(self, ranks: Iterable[int], gpus: Sequence[str]) -> None:
        self.free_ranks = sorted(ranks)
        self._left, self._lost = len(self.free_ranks), 0
        self._all, self._free = list(gpus), list(gpus)
        self._kept: dict[int, tuple[str, ...]] = {}  # by rank: the GPUs that CUDA has shown it

    def take(self, modules: Sequence[ModuleModel]) -> list[Placed] | None:
        """Places for runs that begin together; None, and nothing is taken, where there are too few.

        Ranks that have seen the right GPUs come first, then those that have seen none.
        """
        before = list(self.free_ranks), list(self._free), dict(self._kept)
        found: dict[int, Placed] = {}
        for k in sorted(range(len(modules)), key=lambda k: -modules[k].gpus):
            placed = self._taken(modules[k])
            if placed is None:
                self.free_ranks, self._free, self._kept = before
                return None
            found[k] = placed
        return [found[k] for k in range(len(modules))]

    def take_for(self, module: ModuleModel, gpus: Sequence[str]) -> int | None:
        """A free rank that takes over a member of a run with its GPUs; None where there is none."""
        return self._rank(tuple(gpus), module.command is None)

    def give_back(self, ranks: Iterable[int], gpus: Iterable[str]) -> None:
        """A run has ended; lost ranks of it are not given back."""
        self.free_ranks = sorted([*self.free_ranks, *ranks])
        returned = {*self._free, *gpus}
        self._free = [one for one in self._all if one in returned]

    def lose(self, rank: int) -> None:
        """A rank is there no more."""
        self._left, self._lost = self._left - 1, self._lost + 1
        self.free_ranks = [one for one in self.free_ranks if one != rank]

    def why_not(self, modules: Sequence[ModuleModel], idle: bool) -> str:
        """Why runs will never have a place; empty where they may have one once others have ended.

        Args:
            modules: that begin together.
            idle: whether nothing runs.
        """
        ranks, gpus = sum(m.ranks for m in modules), sum(m.ranks * m.gpus for m in modules)
        if ranks > self._left:
            return (
                f"needs {ranks} ranks at once, but {self._lost} were lost and {self._left} are left"
            )
        if gpus > len(self._all):
            return f"needs {gpus} GPUs at once, but there are {len(self._all)}"
        if not idle:
            return ""
        seen = "; ".join(
            f"rank {rank} GPU {','.join(own)}" for rank, own in sorted(self._kept.items())
        )
        return (
            f"has no rank for its GPUs: CUDA keeps to those with which it began in a process ({seen}); give "
            "the job more ranks"
        )

    def _taken(self, module: ModuleModel) -> Placed | None:
        ranks, seen = list[int](), list[list[str]]()
        for _ in range(module.ranks):
            gpus = self._gpus_for(module)
            rank = None if gpus is None else self._rank(gpus, module.command is None)
            if gpus is None or rank is None:
                return None
            ranks.append(rank)
            if gpus:
                seen.append(list(gpus))
                self._free = [one for one in self._free if one not in gpus]
        return ranks, seen

    def _gpus_for(self, module: ModuleModel) -> tuple[str, ...] | None:
        """Free GPUs for a rank: those that a free rank has seen, or neighbours that start at a multiple."""
        count = module.gpus
        if count == 0:
            return ()
        sets = [self._all[k : k + count] for k in range(0, len(self._all), count)]
        if module.command is None:
            sets = [list(self._kept[r]) for r in self.free_ranks if r in self._kept] + sets
        for own in [*sets, self._free[:count]]:
            if len(own) == count and set(own) <= set(self._free):
                return tuple(own)
        return None

    def _rank(self, gpus: tuple[str, ...], keeps: bool) -> int | None:
        """A free rank for these GPUs, taken; one that `keeps` to them from now on."""
        fitting = sorted(
            (rank for rank in self.free_ranks if not (keeps and gpus) or self._fits(rank, gpus)),
            key=lambda rank: (self._kept.get(rank, ()) != gpus, rank in self._kept, rank),
        )
        if not fitting:
            return None
        self.free_ranks.remove(fitting[0])
        if keeps and gpus:
            self._kept[fitting[0]] = gpus
        return fitting[0]

    def _fits(self, rank: int, gpus: tuple[str, ...]) -> bool:
        return self._kept.get(rank, gpus) == gpus
