"""What every description of a kernel has."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol, TypeVar

Class = TypeVar("Class", bound=type[Any])
_HASH = "_hash"


class Kernel(Protocol):
    """A description of a kernel: a frozen dataclass whose `repr` says everything about its code."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots, in order."""
        ...

    def __hash__(self) -> int: ...


@lru_cache(maxsize=4096)
def same_kernel(kernel: Kernel) -> Kernel:
    """The first kernel that is equal to this one: to compare it with itself takes no look at formulas."""
    return kernel


def hashed_once(cls: Class) -> Class:
    """A frozen dataclass whose objects keep their hash: formulas are long, and looked up often."""
    changed: Any = cls
    compute: Callable[[Any], int] = changed.__hash__

    def own_hash(self: Any) -> int:
        kept = self.__dict__
        if _HASH not in kept:
            kept[_HASH] = compute(self)
        found: int = kept[_HASH]
        return found

    def state(self: Any) -> dict[str, Any]:  # another process hashes text otherwise
        return {name: value for name, value in self.__dict__.items() if name != _HASH}

    changed.__hash__, changed.__getstate__ = own_hash, state
    return cls
