"""Values that go from a module straight to another."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from magmadnn.errors import ArgumentError
from magmadnn.workflow.tuples import messages as m
from magmadnn.workflow.tuples.client import line_of_caller
from magmadnn.workflow.tuples.mail import Pause
from magmadnn.workflow.tuples.payload import array_of, pack, unpack, words_of

from .gpu_memory import ModuleMail

Place = tuple[int, list[int]]  # number of a run, ranks

_TOLD_AFTER = 0.05


class Direct:
    """A run's messages to and from other runs.

    Args:
        mail: of this rank, for these only.
        run: number of this run.
        own: module, copy and rank of this process within the workflow.
        find: asks the executive where a module's copy runs; waits until it does.
        tell: tells the executive who waits, and that it does no longer.
    """

    def __init__(
        self,
        mail: ModuleMail,
        run: int,
        own: tuple[str, int, int],
        find: Callable[[str, int], Place],
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self._mail, self._run, self._own = mail, run, own
        self._find, self._tell = find, tell
        self._places: dict[tuple[str, int], Place] = {}
        self._inbox: dict[str, deque[tuple[int, m.Message]]] = defaultdict(deque)

    def send(self, value: Any, module: str, copy: int, rank: int, tag: str) -> None:
        """See `Context.send`."""
        if (module, copy) not in self._places:
            self._places[module, copy] = self._find(module, copy)
        run, ranks = self._places[module, copy]
        if not 0 <= rank < len(ranks):
            raise ArgumentError(f"send: {module} has ranks 0 to {len(ranks) - 1}, got rank={rank}")
        key = _key(*self._own, tag)
        if (lent := self._mail.lend(value, ranks[rank])) is not None:
            number, where = lent
            raw = m.packed(
                m.LENT, request=number, run=run, tag=key, words=words_of(value), data=where
            )
        else:
            words, data = pack(value)
            raw = m.packed(m.VALUE, run=run, tag=key, words=words, data=data)
        self._mail.send(raw, ranks[rank])

    def recv(self, module: str, copy: int, rank: int, tag: str, dtype: Any) -> Any:
        """See `Context.recv`."""
        key, pause, begun, told = _key(module, copy, rank, tag), Pause(), time.monotonic(), False
        while not self._inbox[key]:
            found = self._mail.receive()
            if found is not None:
                if found[1].run == self._run:
                    self._inbox[found[1].tag].append(found)
                else:  # of a run that has ended
                    self._mail.give_back(*found)
                continue
            pause()
            if not told and time.monotonic() - begun > _TOLD_AFTER:
                told = True
                self._tell({"op": "expects", "module": module, "where": line_of_caller()})
        if told:
            self._tell({"op": "received"})
        source, message = self._inbox[key].popleft()
        if message.operation == m.LENT:
            return array_of(tag or module, self._mail.borrowed(source, message), dtype)
        return array_of(tag or module, unpack(message.words, bytearray(message.data)), dtype)

    def close(self) -> None:
        """The run has ended: memory of arrays that it did not receive is their senders' again."""
        for found in (one for waiting in self._inbox.values() for one in waiting):
            self._mail.give_back(*found)
        self._inbox.clear()


def _key(module: str, copy: int, rank: int, tag: str) -> str:
    return f"{module}/{copy}/{rank}/{tag}"
