"""What simulated messages cost, and what goes wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from magmadnn.errors import ArgumentError


@dataclass(frozen=True)
class Network:
    """What a message costs: it arrives `latency + bytes / bandwidth` seconds after it has left.

    Messages of one rank leave one after the other, as a port sends one at a time; those that arrive at one
    rank do not wait for each other. Ranks may be in groups, such as GPUs below one PCIe root: all messages
    from one group to another share a link.

    Args:
        latency: seconds.
        bandwidth: bytes per second, of each rank in each direction.
        groups: the group of each rank; empty: all are in one.
        between: bytes per second from one group to another.
    """

    latency: float = 0.0
    bandwidth: float = float("inf")
    groups: tuple[int, ...] = ()
    between: float = float("inf")

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0 and self.between > 0):
            raise ArgumentError(
                "Network: latency must be at least 0, bandwidth and between above 0, got "
                f"{self.latency}, {self.bandwidth} and {self.between}"
            )


@dataclass(frozen=True)
class Drop:
    """The `message`-th message (from 1) of rank `source` to rank `to` is lost."""

    source: int
    to: int
    message: int = 1


@dataclass(frozen=True)
class Delay:
    """The `message`-th message (from 1) of rank `source` to rank `to` takes `seconds` longer."""

    source: int
    to: int
    message: int
    seconds: float


@dataclass(frozen=True)
class Kill:
    """Rank `rank` ends at its `call`-th call (from 1), as a killed process would."""

    rank: int
    call: int = 1


Fault: TypeAlias = Drop | Delay | Kill
