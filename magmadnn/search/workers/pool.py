"""A pool of worker processes: jobs go out, outcomes come back in any order, what dies is replaced."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from magmadnn.backends.cuda import is_opened
from magmadnn.errors import ArgumentError
from magmadnn.search.trials.records import FAILED, NO_MEMORY, TIMED_OUT, Job, Outcome
from magmadnn.search.trials.training import Task

from .processes import Forked, Process, Spawned
from .sending import sent
from .worker import serve, shares

_KILLS = 10  # of the process of one job, before it counts as out of memory
_CRASHES = 1
_LONGEST = 86400.0  # seconds of one wait: systems do not count to more than some weeks
_KILLED = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@dataclass
class _Worker:
    number: int
    process: Process
    connection: Connection
    jobs: tuple[Job, ...] = ()
    begun: float = 0.0
    trials: set[int] = field(default_factory=set)


class Pool:
    """Processes that train trials.

    They are forked from this one, so that `build` may be any function and data is not copied. Where this
    process has opened a GPU, which would not work in its forks, they are begun anew, and read a copy of
    the task.

    Args:
        task: what a trial is.
        count: how many.
        limit: seconds after which a training is ended; None for none.
        folder: of the study.

    Raises:
        ArgumentError: the system has no fork.
    """

    def __init__(
        self, task: Task, count: int, limit: float | None = None, folder: Path | None = None
    ) -> None:
        if not hasattr(os, "fork"):
            raise ArgumentError("search: workers need a system with fork, as Linux and macOS are")
        self._task, self._limit, self._folder = task, limit, folder
        self._shares = shares(count)
        self._deaths: Counter[tuple[int, int]] = Counter()
        self._crashes: Counter[tuple[int, int]] = Counter()
        self._again: list[tuple[Job, ...]] = []  # parts of groups whose process has died
        self._retried: Counter[tuple[int, int]] = Counter()
        self._sent = sent(task) if is_opened() else None
        self._workers: list[_Worker] = []
        for number in range(count):
            self._workers.append(self._begun(number))

    @property
    def has_room(self) -> bool:
        """Whether a worker has nothing to do."""
        return not self._again and any(not worker.jobs for worker in self._workers)

    @property
    def is_busy(self) -> bool:
        """Whether a worker has a job."""
        return bool(self._again) or any(worker.jobs for worker in self._workers)

    def start(self, jobs: Sequence[Job]) -> None:
        """Give jobs to a worker that has none; to the one that has trained the first trial, if it is free."""
        free = [worker for worker in self._workers if not worker.jobs]
        self._hand(next((w for w in free if jobs[0].trial in w.trials), free[0]), tuple(jobs))

    def wait(self, seconds: float | None = None) -> list[tuple[Job, Outcome]]:
        """The outcomes that have arrived, at least one unless `seconds` pass."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            for worker in self._workers:
                if self._again and not worker.jobs:
                    self._hand(worker, self._again.pop(0))
            busy = [worker for worker in self._workers if worker.jobs]
            ready = wait([worker.connection for worker in busy], self._patience(busy, end))
            found = [result for w in busy if w.connection in ready for result in self._received(w)]
            found += [r for w in busy if w.connection not in ready for r in self._overdue(w)]
            if found or (end is not None and time.monotonic() >= end):
                return found

    def close(self) -> None:
        """End all of them now."""
        for worker in self._workers:
            self._end(worker)
        self._workers = []
        if self._sent is not None:
            self._sent.close()

    @property
    def processes(self) -> list[int]:
        """The numbers of the processes."""
        return [worker.process.number for worker in self._workers]

    # --- one worker --------------------------------------------------------------------------------

    def _hand(self, worker: _Worker, jobs: tuple[Job, ...]) -> None:
        worker.jobs, worker.begun = jobs, time.monotonic()
        worker.trials.update(job.trial for job in jobs)
        try:
            worker.connection.send(jobs)
        except OSError:  # it has died; `wait` finds that out
            return

    def _received(self, worker: _Worker) -> list[tuple[Job, Outcome]]:
        """What a worker has sent; of one that has died, what is not to be tried again."""
        jobs = worker.jobs
        try:
            outcomes: list[Outcome] = worker.connection.recv()
        except (EOFError, OSError):
            return self._bury(worker, jobs)
        worker.jobs = ()
        return [(job, self._marked(job, one)) for job, one in zip(jobs, outcomes, strict=True)]

    def _marked(self, job: Job, outcome: Outcome) -> Outcome:
        """An outcome that says how often its group was made smaller here."""
        retried = self._retried.pop((job.trial, job.rung), 0)
        return replace(outcome, retried=outcome.retried + retried) if retried else outcome

    def _bury(self, worker: _Worker, jobs: tuple[Job, ...]) -> list[tuple[Job, Outcome]]:
        """Replace a worker that has died; its jobs are done again, each by itself.

        Where it was killed, perhaps by a system that has no more memory, halves of them are.
        """
        code = self._end(worker)
        self._replace(worker)
        if len(jobs) > 1:
            size = (len(jobs) + 1) // 2 if -code in _KILLED else 1
            self._again += [jobs[k : k + size] for k in range(0, len(jobs), size)]
            if -code in _KILLED:
                self._retried.update((job.trial, job.rung) for job in jobs)
            return []
        key = (jobs[0].trial, jobs[0].rung)
        if -code in _KILLED:
            self._deaths[key] += 1
            if self._deaths[key] > _KILLS:
                reason = f"its process was killed {_KILLS + 1} times"
                return [(jobs[0], Outcome(NO_MEMORY, reason=reason))]
        else:
            self._crashes[key] += 1
            if self._crashes[key] > _CRASHES:
                return [(jobs[0], Outcome(FAILED, reason=f"its process ended {_words(code)}"))]
        self._hand(worker, jobs)
        return []

    def _overdue(self, worker: _Worker) -> list[tuple[Job, Outcome]]:
        """The outcome of a job that takes too long; with a limit no jobs are trained together."""
        if not worker.jobs or self._limit is None:
            return []
        if time.monotonic() < worker.begun + self._limit:
            return []
        jobs = worker.jobs
        self._end(worker)
        self._replace(worker)
        outcome = Outcome(TIMED_OUT, reason=f"took longer than {self._limit:g} seconds")
        return [(job, outcome) for job in jobs]

    def _patience(self, busy: list[_Worker], end: float | None) -> float | None:
        """Seconds until something has to be looked at, whatever arrives."""
        ends = [] if end is None else [end]
        if self._limit is not None:
            ends += [worker.begun + self._limit for worker in busy]
        return min(max(0.0, min(ends) - time.monotonic()), _LONGEST) if ends else None

    def _replace(self, worker: _Worker) -> None:
        """A new process in the place of one that has ended."""
        made = self._begun(worker.number)
        worker.process, worker.connection = made.process, made.connection
        worker.jobs, worker.trials = (), set()

    def _begun(self, number: int) -> _Worker:
        ours, theirs = Pipe()
        if self._sent is None:
            process: Process = self._forked(number, ours, theirs)
        else:
            given = (self._sent, theirs, (), self._shares[number], os.getpid(), self._folder)
            process = Spawned(serve, given)
        theirs.close()
        return _Worker(number, process, ours)

    def _forked(self, number: int, ours: Connection, theirs: Connection) -> Forked:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        with warnings.catch_warnings():
            # A parent with threads: those of magmadnn and of BLAS are begun anew in a child.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if process == 0:
            others = [ours, *(worker.connection for worker in self._workers)]
            serve(self._task, theirs, others, self._shares[number], parent, self._folder)
        return Forked(process)

    def _end(self, worker: _Worker) -> int:
        """End a process; its exit code, negative for a signal."""
        worker.connection.close()
        return worker.process.end()


def _words(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by signal {-code} ({signal.strsignal(-code)})"
    except ValueError:
        return f"by signal {-code}"
