"""Memory for many models: whether there is enough, and how many are under way at the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from magmadnn.errors import OutOfMemoryError
from magmadnn.storage.machine_memory import available_bytes
from magmadnn.training.model.model import Model

_COPIES = 3  # of parameters, beside themselves: two moments, and the values before steps that are taken back
_SHARE = 0.5  # of what is free, for trainings that are under way
MOST = 128  # trainings at the same time: more gain nothing


def check_memory(what: str, models: Sequence[Model]) -> None:
    """Refuse models whose parameters alone need more memory than is free.

    Raises:
        OutOfMemoryError: if so.
    """
    sizes = [
        math.prod(map(int, p.node.shape)) * p.node.dtype.itemsize
        for model in models
        for p in model.parameters()
    ]
    needed, free = _COPIES * sum(sizes), available_bytes()
    if needed > free:
        raise OutOfMemoryError(
            f"{what}: {len(models):,} models need about {needed / 1e9:.3g} GB beside their parameters, and "
            f"{free / 1e9:.3g} GB are free; train fewer in one call"
        )


class Room:
    """How many trainings may be under way, by the memory that those so far have taken."""

    def __init__(self) -> None:
        self._budget = _SHARE * available_bytes()
        self._largest = 1

    def note(self, nbytes: int) -> None:
        """A training has taken so much."""
        self._largest = max(self._largest, nbytes)

    @property
    def most(self) -> int:
        """How many trainings may be under way."""
        return max(min(MOST, int(self._budget / self._largest)), 1)
