"""What several workers that train one model must decide alike.

Some decisions of a training depend on the machine it runs on: how many steps one execution has (a clock),
whether steps are taken back (a NaN) or run again (data that was written meanwhile), whether they are the last
(a time limit). A worker that decided alone would leave the others waiting for it in the next exchange. So
each such decision asks here first. A worker that is alone gets its own answer back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Agreement(Protocol):
    """How workers come to the same answer; all of them ask the same questions in the same order."""

    @property
    def is_alone(self) -> bool:
        """Whether there is no other worker."""
        ...

    def all(self, fact: bool, about: str) -> bool:
        """Whether a fact holds for every worker.

        Args:
            fact: whether it does for this one.
            about: what is asked, the same text on all workers.
        """
        ...

    def least(self, number: int, about: str) -> int:
        """The least number that any worker gives; `about` as for `all`."""
        ...


class _Alone:
    """One worker, whose answer is its own."""

    is_alone = True

    def all(self, fact: bool, about: str) -> bool:
        """The fact itself."""
        return fact

    def least(self, number: int, about: str) -> int:
        """The number itself."""
        return number


ALONE: Agreement = _Alone()
_current = threading.local()


def agreement() -> Agreement:
    """What decisions of this thread ask."""
    found: Agreement = getattr(_current, "agreement", ALONE)
    return found


@contextmanager
def agreeing(workers: Agreement) -> Iterator[None]:
    """Decisions of this thread ask `workers` while this lasts."""
    before = agreement()
    _current.agreement = workers
    try:
        yield
    finally:
        _current.agreement = before
