"""Launches whose operands and results lie somewhere else each time: stand-ins for their addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Protocol, TypeVar

# Between stand-ins. They lie behind all addresses, and are none of the numbers that kernels are given: as
# bits of a float64 they would be below 1e-290.
_STEP: Final = 1 << 50
_MOST_BYTES: Final = 1 << 40  # between a stand-in and what stands for other bytes of its memory
MOST_STAND_INS: Final = 100
ALIGNMENT: Final = 256  # bytes, of what takes the place of a stand-in

Node = TypeVar("Node")


@dataclass(frozen=True)
class CopyNode:
    """A copy between addresses of the device, or to pinned memory of the host.

    Attributes:
        to, source: addresses.
        nbytes: how many.
        after: as for `KernelNode`.
    """

    to: int
    source: int
    nbytes: int
    after: tuple[int, ...] = ()


class Replay(Protocol):
    """Launches in order, to be begun again and again with other memory."""

    def launch(self, places: Sequence[int]) -> None:
        """Begin with all of them.

        Args:
            places: the address that each stand-in stands for now, a multiple of `ALIGNMENT`.
        """
        ...


def stand_in(number: int) -> int:
    """What stands for the address of memory number `number`; bytes behind it are added as to an address."""
    assert 0 <= number < MOST_STAND_INS
    return (number + 1) * _STEP


def number_of(address: int) -> int | None:
    """Which memory an address stands for; None for one that is real, and for any other number."""
    found = parted(address)
    return None if found is None else found[0]


def parted(address: int) -> tuple[int, int] | None:
    """The number of the memory that an address stands for, and how many bytes behind its first.

    None for an address that is real, and for any other number.
    """
    number = (address + _STEP // 2) // _STEP - 1
    if not 0 <= number < MOST_STAND_INS:
        return None
    behind = address - stand_in(number)
    return (number, behind) if abs(behind) < _MOST_BYTES else None


def with_addresses(node: Node, places: Sequence[int]) -> Node:
    """A node with addresses in place of stand-ins."""
    given: Any = node  # all nodes are dataclasses
    made: Node = replace(
        given, **{f.name: _settled(getattr(node, f.name), places) for f in fields(given)}
    )
    return made


def _settled(value: Any, places: Sequence[int]) -> Any:
    if isinstance(value, tuple):
        found = [_settled(part, places) for part in value]
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    known = parted(value) if type(value) is int else None
    return value if known is None else places[known[0]] + known[1]
