"""Where trials run: the search asks this process and a pool of others in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from magmadnn.search.trials.records import Job, Outcome
from magmadnn.search.trials.training import Task


class Place(Protocol):
    """Takes jobs and gives outcomes."""

    @property
    def has_room(self) -> bool:
        """Whether a job can begin."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether there is a job whose outcome has not been given."""
        ...

    def start(self, jobs: Sequence[Job]) -> None:
        """Begin jobs that are trained together."""
        ...

    def wait(self, seconds: float | None = None) -> list[tuple[Job, Outcome]]:
        """Outcomes that have arrived, at least one unless `seconds` pass."""
        ...

    def close(self) -> None:
        """End what runs."""
        ...


class Elsewhere(Protocol):
    """Makes the place of a search whose trials other processes train, which all call `run` alike.

    Attributes:
        count: how many processes train.
        together: the most trials that one of them trains in one call; None: as many as leave each process
            several calls.
    """

    count: int
    together: int | None

    def known(self, task: Task) -> None:
        """The task is known. A process that only trains does so now, and raises `Served` when it has done."""
        ...

    def place(self, task: Task) -> Place:
        """Where the process that leads has trials trained."""
        ...


class Served(Exception):
    """This process has trained for a search that another one leads."""


_elsewhere: ContextVar[Elsewhere | None] = ContextVar("elsewhere", default=None)


@contextmanager
def trained_elsewhere(elsewhere: Elsewhere) -> Iterator[None]:
    """Searches of this block have their trials trained there."""
    token = _elsewhere.set(elsewhere)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def place_elsewhere() -> Elsewhere | None:
    """Where trials are trained, if not in this process or its own."""
    return _elsewhere.get()


class Here:
    """This process, one group of jobs at a time."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._jobs: list[Job] = []

    @property
    def has_room(self) -> bool:
        """Whether it has no job."""
        return not self._jobs

    @property
    def is_busy(self) -> bool:
        """Whether it has one."""
        return bool(self._jobs)

    def start(self, jobs: Sequence[Job]) -> None:
        """Keep them for `wait`."""
        self._jobs += jobs

    def wait(self, seconds: float | None = None) -> list[tuple[Job, Outcome]]:
        """Train."""
        jobs, self._jobs = self._jobs, []
        return list(zip(jobs, self._task.outcomes(jobs), strict=True))

    def close(self) -> None:
        """Nothing runs."""
