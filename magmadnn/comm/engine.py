"""What carries out rounds of messages, and the names of calls for errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from magmadnn.errors import CommunicationError

from .communicator import Request
from .rounds import Task


@dataclass(slots=True, frozen=True)
class Call:
    """A call of one rank.

    Args:
        group: of ranks, a name that is the same on all of them.
        number: of the collective within the group, from 1; 0 for messages between two ranks.
        what: operation, dtype, shape and arguments; for a collective equal on all ranks.
        site: file and line of the user's program.
        channel: messages of one channel match each other only: the tag.
        peers: the ranks it may wait for; empty for all.
    """

    group: str
    number: int
    what: str
    site: str
    channel: int
    peers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.what} at {self.site}"


class SameCalls:
    """Calls of ranks of one process, compared with each other as they are made."""

    def __init__(self) -> None:
        # By group and number: the first call, its rank, and how many have made it. 0 is for pairs.
        self._open: dict[tuple[str, int], tuple[Call, int, int]] = {}

    def enter(self, rank: int, call: Call, size: int) -> None:
        """A rank makes a call, as one of `size`.

        Raises:
            CommunicationError: if another has made a different one.
        """
        if call.number == 0:
            return
        first, other, count = self._open.setdefault((call.group, call.number), (call, rank, 0))
        if first.what != call.what:
            raise CommunicationError(
                f"calls differ: rank {rank} makes {call}, rank {other} made {first}, as call "
                f"{call.number} of their group: all ranks make the same calls in the same order"
            )
        if count + 1 == size:
            del self._open[call.group, call.number]
        else:
            self._open[call.group, call.number] = (first, other, count + 1)


class Engine(Protocol):
    """A way to send bytes among the ranks of a group."""

    @property
    def rank(self) -> int:
        """Number of this rank."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def group(self) -> str:
        """A name of the group, the same on all its ranks."""
        ...

    def run(self, task: Task, call: Call) -> Any:
        """Carry out a task to its end; what it returns."""
        ...

    def start(self, task: Task, call: Call) -> Request:
        """Begin a task that goes on beside what its rank does."""
        ...

    def split(self, name: str, members: list[int]) -> Engine | None:
        """The engine of some ranks of this one, in this order; None on all others. Collective."""
        ...

    def library_all_reduce(self, array: Any, op: str) -> Any | None:
        """The library's own all-reduce of a flat array; None where there is none."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...
