"""When a worker multiplied and when elements were on their way to it: whether the one hides the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final

import numpy as np

PRODUCT: Final = "product"
MESSAGE: Final = "message"


class Trace:
    """The spans of one worker. On a GPU a moment is an event of a stream, else a time.

    Args:
        team: whose spans these are.
    """

    def __init__(self, team: Any) -> None:
        self._team, self._on_device = team, team.xp is not np
        self._spans: list[tuple[str, str, Any, Any]] = []
        self._clock: float | None = getattr(team.comm, "clock", None)
        self._base: Any = None
        if self._on_device:
            team.finish()
            self._base = self.moment()
            self._base.synchronize()
        self._start = self._now()

    def _now(self) -> float:
        """Seconds: of simulated ranks by their clock."""
        return perf_counter() if self._clock is None else float(self._team.comm.clock)

    def moment(self, copies: bool = False) -> Any:
        """What the present stream has done so far; with `copies` that of copies."""
        if not self._on_device:
            return self._now()
        if copies and self._team.peers is not None:
            return self._team.peers.mark()
        return self._team.xp.cuda.get_current_stream().record()

    def add(self, kind: str, what: str, start: Any, copies: bool = False) -> None:
        """A span that began at a moment and ends now."""
        self._spans.append((kind, what, start, self.moment(copies)))

    def told(self) -> list[list[Any]]:
        """Kind, words, start and end, seconds on a clock that a machine's workers share. Waits for GPUs."""
        if self._on_device:
            self._team.finish()
        return [[kind, what, self._at(a), self._at(b)] for kind, what, a, b in self._spans]

    def _at(self, moment: Any) -> float:
        if not self._on_device:
            return float(moment)
        passed = self._team.xp.cuda.get_elapsed_time(self._base, moment)
        return self._start + float(passed) / 1e3


@contextmanager
def span(team: Any, kind: str, what: str, copies: bool = False) -> Iterator[None]:
    """What happens inside is a span of the team's trace, if it has one."""
    trace: Trace | None = team.trace
    if trace is None:
        yield
        return
    start = trace.moment(copies)
    yield
    trace.add(kind, what, start, copies)


class TracedRequest:
    """A message that is a span from its start until it has been waited for.

    Args:
        request: the message.
        team: with a trace.
        what: in words.
        start: when it began.
    """

    def __init__(self, request: Any, team: Any, what: str, start: Any) -> None:
        self._request, self._trace, self._what, self._start = request, team.trace, what, start

    def wait(self) -> Any:
        """Wait for the message; the span ends."""
        found = self._request.wait()
        self._trace.add(MESSAGE, self._what, self._start)
        return found

    def done(self) -> bool:
        """Whether the message has arrived."""
        return bool(self._request.done())
