"""What every description of a kernel has."""

from __future__ import annotations

from typing import Protocol


class Kernel(Protocol):
    """A description of a kernel: a frozen dataclass whose `repr` says everything about its code."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots, in order."""
        ...
