"""What a core can do at most, and how long a piece of work takes at that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Limits of one core, as they were measured.

    Attributes:
        flops: operations a second by dtype ("float32", "float64"); an FMA is two.
        bandwidth: bytes a second to and from memory, beyond all caches.
    """

    flops: Mapping[str, float]
    bandwidth: float

    def seconds(self, operations: float, nbytes: float, dtype: str) -> float:
        """The time that one core needs: the longer of computing and of moving from and to memory.

        What lies in a cache is read faster; what is no FMA (exp, division) is computed more slowly.
        """
        peak = self.flops.get(dtype, self.flops["float32"])
        return max(operations / peak, nbytes / self.bandwidth)
