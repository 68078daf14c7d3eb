"""The driver: runs a program of kernels for many batches in one call, on parked worker threads.

A program is a list of phases, each a list of tasks that do not depend on each other. Which thread does a
task never matters: kernels keep nothing between calls, so results are equal for any number of threads.
`team.py` has the threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.object.cache import Cache
from magmadnn.errors import ArgumentError

from .code import PHASE_END, TASK_WORDS, can_use_futex
from .team import Teams, shared_words, teams


class Callee(Protocol):
    """What native code can call with a block of arguments: a kernel, or a function of Python."""

    @property
    def address(self) -> int:
        """Of the function, whose signature is that of kernels."""
        ...


@dataclass(frozen=True)
class Task:
    """A call of a kernel, or of what is called like one.

    Attributes:
        kernel: what is called.
        arguments: its argument block; what its addresses point to must outlive the driver.
        holds: what of that nobody else keeps alive.
    """

    kernel: Callee
    arguments: NDArray[np.int64]
    holds: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Table:
    """The table of tasks that native code walks.

    Attributes:
        lines: a task each, [tasks, TASK_WORDS].
        held: what they have addresses of.
    """

    lines: NDArray[np.int64]
    held: tuple[Any, ...]


class Driver:
    """A program loaded for running; a context manager that lets go of its threads.

    Args:
        program: tasks by phase, or the table of some.
        threads: how many threads run it, the caller's included.
        scratch_bytes: scratch memory of each thread: the most that any of the kernels needs.
        timed: whether to count the CPU's ticks and the calls of each task.
        futex: whether waiting threads sleep in a futex; None: where the system has it.
        cache: where object code is kept between processes.

    Raises:
        ArgumentError: fewer than one thread.
    """

    def __init__(
        self,
        program: Sequence[Sequence[Task]] | Table,
        threads: int = 1,
        scratch_bytes: int = 0,
        timed: bool = False,
        futex: bool | None = None,
        cache: Cache | None = None,
    ) -> None:
        if threads < 1:
            raise ArgumentError(f"driver: threads must be at least 1, got {threads}")
        futex = can_use_futex(host()) if futex is None else futex
        table = program if isinstance(program, Table) else table_of(program)
        self._tasks, self._held = table.lines, table.held
        self._program = np.array([0, 0, self._tasks.ctypes.data, len(self._tasks)], np.int64).data
        self._scratch_bytes = scratch_bytes
        self._lock = ProcessLock()
        self._teams: Teams | None = teams(threads, timed, futex, cache)
        self._teams.give(self._teams.take(scratch_bytes))  # threads start now, not in the first run

    def run(self, first_batch: int, batches: int) -> None:
        """Run the program for `batches` batches from number `first_batch` on.

        Raises:
            ArgumentError: it is closed.
        """
        if self._teams is None:
            raise ArgumentError("driver: it is closed; make another one")
        if batches <= 0 or not len(self._tasks):
            return
        with self._lock:
            self._program[0], self._program[1] = first_batch, batches
            team = self._teams.take(self._scratch_bytes)
            try:
                team.run(self._program)
            finally:
                self._teams.give(team)

    def ticks(self) -> NDArray[np.int64]:
        """Of each task, in the order of the phases: the CPU's ticks and the calls so far, [tasks, 2]."""
        return self._tasks[:, 2:4].copy()

    def spans(self) -> NDArray[np.int64]:
        """Of the last call of each task, if timed: ticks at begin and end, and the thread, [tasks, 3]."""
        return self._tasks[:, 4:7].copy()

    def close(self) -> None:
        """Let go of the threads, which end where no other program has as many; it does not run again."""
        self._teams = None

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def table_of(phases: Sequence[Sequence[Task]]) -> Table:
    """The table of these tasks."""
    lines = shared_words(sum(map(len, phases)) * TASK_WORDS).reshape(-1, TASK_WORDS)
    at = 0
    for phase in phases:
        lines[at : at + len(phase), PHASE_END] = at + len(phase)
        for task in phase:
            lines[at, :2] = task.kernel.address, task.arguments.ctypes.data
            at += 1
    return Table(lines, tuple(task for phase in phases for task in phase))
