"""Values that go from a module straight to another."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from magmadnn.errors import ArgumentError
from magmadnn.workflow.tuples import messages as m
from magmadnn.workflow.tuples.client import line_of_caller
from magmadnn.workflow.tuples.mail import Mail, Pause
from magmadnn.workflow.tuples.payload import array_of, pack, unpack

Place = tuple[int, list[int]]  # number of a run, ranks

_TOLD_AFTER = 0.05


class Direct:
    """A run's messages to and from other runs.

    Args:
        mail: for these only.
        run: number of this run.
        own: module, copy and rank of this process within the workflow.
        find: asks the executive where a module's copy runs; waits until it does.
        tell: tells the executive who waits, and that it does no longer.
    """

    def __init__(
        self,
        mail: Mail,
        run: int,
        own: tuple[str, int, int],
        find: Callable[[str, int], Place],
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self._mail, self._run, self._own = mail, run, own
        self._find, self._tell = find, tell
        self._places: dict[tuple[str, int], Place] = {}
        self._inbox: dict[str, deque[m.Message]] = defaultdict(deque)

    def send(self, value: Any, module: str, copy: int, rank: int, tag: str) -> None:
        """See `Context.send`."""
        if (module, copy) not in self._places:
            self._places[module, copy] = self._find(module, copy)
        run, ranks = self._places[module, copy]
        if not 0 <= rank < len(ranks):
            raise ArgumentError(f"send: {module} has ranks 0 to {len(ranks) - 1}, got rank={rank}")
        words, data = pack(value)
        key = _key(*self._own, tag)
        self._mail.send(m.packed(m.VALUE, run=run, tag=key, words=words, data=data), ranks[rank])

    def recv(self, module: str, copy: int, rank: int, tag: str, dtype: Any) -> Any:
        """See `Context.recv`."""
        key, pause, begun, told = _key(module, copy, rank, tag), Pause(), time.monotonic(), False
        while not self._inbox[key]:
            found = self._mail.receive()
            if found is not None:
                message = m.Message(found[1])
                if message.run == self._run:  # others are of runs that have ended
                    self._inbox[message.tag].append(message)
                continue
            pause()
            if not told and time.monotonic() - begun > _TOLD_AFTER:
                told = True
                self._tell({"op": "expects", "module": module, "where": line_of_caller()})
        if told:
            self._tell({"op": "received"})
        message = self._inbox[key].popleft()
        return array_of(tag or module, unpack(message.words, bytearray(message.data)), dtype)


def _key(module: str, copy: int, rank: int, tag: str) -> str:
    return f"{module}/{copy}/{rank}/{tag}"
