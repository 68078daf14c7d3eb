"""What one tuple server holds, and who waits for what: no MPI here.

Tuples of a tag leave in the order in which they came. Who waits longest is served first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from .messages import KEEP, PATTERN, TAKE


@dataclass(slots=True)
class Held:
    """A tuple on a server.

    Attributes:
        tag: under which.
        words: about the data.
        raw: the message that brought it, where it is small.
        segment: name of the shared memory that it lies in; empty where it is small.
        size: bytes.
        maker: number of the run that put it.
        source: the rank that put it.
        order: in which it came.
    """

    tag: str
    words: bytes
    raw: bytearray
    segment: str
    size: int
    maker: int
    source: int
    order: int = 0


@dataclass(slots=True)
class Waiting:
    """A get that has not been answered.

    Attributes:
        rank: who asks.
        request: number of the request.
        run: of the module run.
        flags: of the GET.
        tag: or pattern.
        where: file and line of the asker, as bytes.
    """

    rank: int
    request: int
    run: int
    flags: int
    tag: str
    where: bytes

    def meets(self, tag: str) -> bool:
        """Whether a tag is what it waits for."""
        if not self.flags & PATTERN:
            return tag == self.tag
        return not tag.startswith("\0") and fnmatchcase(
            tag, self.tag
        )  # parts of dist_put are no tuples


@dataclass
class Store:
    """Tuples and those who wait.

    Attributes:
        waiting: gets that have not been answered, longest first.
        bytes_held: of all tuples.
        bytes_put: since the beginning.
    """

    waiting: list[Waiting] = field(default_factory=list)
    bytes_held: int = 0
    bytes_put: int = 0
    puts: int = 0
    _queues: dict[str, deque[Held]] = field(default_factory=dict)
    _kept: dict[int, list[tuple[int, Held]]] = field(default_factory=lambda: defaultdict(list))

    def put(self, held: Held) -> Iterable[tuple[Waiting, Held, bool]]:
        """Add a tuple; gets that it answers, each with whether the tuple is gone then."""
        self.puts += 1
        self.bytes_put += held.size
        held.order = self.puts
        self._add(held)
        return self._serve(held.tag) if self.waiting else ()

    def take(self, tag: str) -> Held | None:
        """Take the first tuple of a tag out for good; None where there is none."""
        if (queue := self._queues.get(tag)) is None:
            return None
        held = queue.popleft()
        if not queue:
            del self._queues[tag]
        self.bytes_held -= held.size
        return held

    def _add(self, held: Held, first: bool = False) -> None:
        queue = self._queues.get(held.tag)
        if queue is None:
            queue = self._queues[held.tag] = deque()
        if first:
            queue.appendleft(held)
        else:
            queue.append(held)
        self.bytes_held += held.size

    def _serve(self, tag: str) -> Iterator[tuple[Waiting, Held, bool]]:
        for asker in list(self.waiting):
            if asker.meets(tag) and (held := self._first(tag)) is not None:
                self.waiting.remove(asker)
                yield asker, held, self._hand(asker, held)

    def get(self, asker: Waiting) -> tuple[Held, bool] | None:
        """The first tuple that meets a get, and whether it is gone; None where there is none."""
        if asker.flags & PATTERN:
            found = [q[0] for tag, q in self._queues.items() if q and asker.meets(tag)]
            held = min(found, key=lambda one: one.order) if found else None
        else:
            held = self._first(asker.tag)
        return None if held is None else (held, self._hand(asker, held))

    def _first(self, tag: str) -> Held | None:
        queue = self._queues.get(tag)
        return queue[0] if queue else None

    def _hand(self, asker: Waiting, held: Held) -> bool:
        """Take it out where the asker takes it."""
        if not asker.flags & TAKE:
            return False
        self._remove(held)
        if asker.flags & KEEP:
            self._kept[asker.run].append((asker.rank, held))
            self.bytes_held += held.size
            return False
        return True

    def _remove(self, held: Held) -> None:
        queue = self._queues[held.tag]
        queue.remove(held) if queue[0] is not held else queue.popleft()
        if not queue:
            del self._queues[held.tag]
        self.bytes_held -= held.size

    def ended(self, run: int, rank: int | None = None) -> list[Held]:
        """A run has ended well, or a rank of it has confirmed: what was kept for another attempt is gone."""
        gone = self._let_go(run, rank)
        self.bytes_held -= sum(held.size for held in gone)
        return gone

    def _let_go(self, run: int, rank: int | None) -> list[Held]:
        kept = self._kept.pop(run, [])
        if rank is not None and (others := [one for one in kept if one[0] != rank]):
            self._kept[run] = others
        return [held for taker, held in kept if rank in (None, taker)]

    def roll_back(
        self, run: int, rank: int | None = None
    ) -> tuple[list[Held], list[tuple[Waiting, Held, bool]]]:
        """A run, or what one rank of it did, is tried again.

        What it took is back, but what a whole run had put itself; what it put and nobody took is gone.

        Returns:
            The tuples that are gone, and gets that those which are back answer.
        """
        gone = [
            held
            for queue in self._queues.values()
            for held in queue
            if held.maker == run and rank in (None, held.source)
        ]
        for held in gone:
            self._remove(held)
        kept = self._let_go(run, rank)
        self.bytes_held -= sum(held.size for held in kept)
        own = [held for held in kept if rank is None and held.maker == run]
        back = [held for held in kept if rank is not None or held.maker != run]
        for held in sorted(back, key=lambda one: -one.order):
            self._add(held, first=True)
        answered = [one for held in back for one in self._serve(held.tag)]
        return [*gone, *own], answered

    def withdraw(self, run: int, rank: int | None = None) -> list[Waiting]:
        """Gets of a run, or of one rank of it, that will not be answered."""
        gone = [one for one in self.waiting if one.run == run and rank in (None, one.rank)]
        self.waiting = [one for one in self.waiting if one not in gone]
        return gone

    def statistics(self) -> dict[str, Any]:
        """Figures for reports."""
        held = sum(len(q) for q in self._queues.values())
        return {
            "held": held,
            "bytes_held": self.bytes_held,
            "puts": self.puts,
            "bytes_put": self.bytes_put,
        }
