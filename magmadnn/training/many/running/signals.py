"""SIGTERM and Ctrl-C for a set of trainings: one place listens for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from magmadnn.training.callbacks import Checkpoint
from magmadnn.training.loop.signals import StopRequest

from .members import Member


class Signals:
    """Listens where a `Checkpoint` of some training would, in its place; all trainings then save and end.

    Args:
        members: the trainings.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._listening = [
            c for m in members for c in m.callbacks if isinstance(c, Checkpoint) and c.signals
        ]
        self._stop = StopRequest() if self._listening else None

    def __enter__(self) -> Signals:
        for callback in self._listening:
            callback.signals = False
        if self._stop is not None:
            self._stop.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stop is not None:
            self._stop.__exit__(kind, error, trace)
        for callback in self._listening:
            callback.signals = True

    def look(self) -> None:
        """Stop all trainings, if a signal came."""
        if self._stop is not None and self._stop.requested is not None:
            for member in self._members:
                member.stop(f"signal {self._stop.requested}")

    def pass_on(self) -> None:
        """Do with a signal that came what the program would have done."""
        if self._stop is not None:
            self._stop.pass_on()
