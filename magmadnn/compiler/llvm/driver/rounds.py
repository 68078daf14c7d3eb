"""Programs that run beside each other, each from its begin to its end on one thread.

A program that is nested is a task like any other: the thread that draws it runs all its batches, without a
barrier. A round has many such tasks; while it runs, the thread that started it may do something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.compiler.llvm.ir.target import can_use_futex, host
from magmadnn.compiler.llvm.object.cache import Cache

from .code import PHASE_END, TASK_WORDS, Control
from .driver import Table, Task, Team, nested_address, shared_words, table_of, teams

Words = NDArray[np.int64]

_TICKS = 2  # place in a line of the table


@dataclass(frozen=True)
class _Entry:
    """The function that runs a nested program."""

    address: int


class Nested:
    """A program as a task of another one.

    Args:
        tasks: in their order, or the table of some; they run one after the other.
        cache: where object code is kept between processes.

    Attributes:
        task: all of it: batch n of the outer program runs `batches` batches, from n * `batches` on.
    """

    def __init__(self, tasks: Sequence[Task] | Table, cache: Cache | None = None) -> None:
        table = tasks if isinstance(tasks, Table) else table_of([tasks])
        self._control = shared_words(int(Control.WORDS))
        self._control[Control.TASKS] = table.lines.ctypes.data
        self._control[Control.TASK_COUNT] = len(table.lines)
        self.batches = 1
        self.task = Task(_Entry(nested_address(cache)), self._control, (table,))

    @property
    def batches(self) -> int:
        """How many of its batches a batch of the outer program has."""
        return int(self._control[Control.BATCHES])

    @batches.setter
    def batches(self, count: int) -> None:
        self._control[Control.BATCHES] = count


def nested_tables(tables: Words, batches: int) -> Words:
    """The control words of many programs, which stay alive with their tables while these are nested.

    Args:
        tables: of the tasks of each, [programs, tasks, TASK_WORDS].
        batches: that each runs in a batch of the outer program.
    """
    count, tasks, _ = tables.shape
    controls = shared_words(count * int(Control.WORDS)).reshape(count, Control.WORDS)
    controls[:, Control.TASKS] = addresses_of(tables)
    controls[:, Control.TASK_COUNT] = tasks
    controls[:, Control.BATCHES] = batches
    return controls


def outer_tables(controls: Sequence[Words], cache: Cache | None = None) -> Words:
    """Tables of programs of as many nested ones each as there are controls, [programs, tasks, TASK_WORDS]."""
    count, tasks = len(controls[0]), len(controls)
    tables = shared_words(count * tasks * TASK_WORDS).reshape(count, tasks, TASK_WORDS)
    tables[:, :, 0] = nested_address(cache)
    for number, own in enumerate(controls):
        tables[:, number, 1] = addresses_of(own)
    tables[:, :, PHASE_END] = tasks
    return tables


def addresses_of(rows: NDArray[Any]) -> Words:
    """Where the rows of an array lie, along its first axis."""
    found: Words = rows.ctypes.data + rows.strides[0] * np.arange(len(rows))
    return found


def tasks_of(address: int, arguments: Words) -> Words:
    """The table of tasks of one function, [tasks, TASK_WORDS]; the argument blocks stay alive meanwhile."""
    table = shared_words(len(arguments) * TASK_WORDS).reshape(-1, TASK_WORDS)
    table[:, 0], table[:, 1] = address, addresses_of(arguments)
    return table


class Beside:
    """Runs many tasks that do not wait for each other; its threads are kept meanwhile.

    Args:
        threads: how many run them, the caller included.
        cache: where object code is kept between processes.

    Attributes:
        threads: as given.
        cache: as given.
    """

    def __init__(self, threads: int, cache: Cache | None = None) -> None:
        self.threads, self.cache = threads, cache
        self._teams = teams(threads, True, can_use_futex(host()), cache)

    def run(self, table: Words, scratch_bytes: int = 0) -> Words:
        """Run the tasks of a table once; the CPU's ticks that each has taken.

        Args:
            table: of the tasks, [tasks, TASK_WORDS].
            scratch_bytes: scratch memory of each thread.
        """
        table[:, PHASE_END] = len(table)
        team = self._teams.take(scratch_bytes)
        try:
            team.run(np.array([0, 1, table.ctypes.data, len(table)], np.int64).data)
        finally:
            self._teams.give(team)
        return table[:, _TICKS].copy()

    def run_nested(self, controls: Words, scratch_bytes: int) -> Words:
        """Run programs whose control words `nested_tables` gave, each on one thread; likewise."""
        table = outer_tables([controls], self.cache).reshape(-1, TASK_WORDS)
        return self.run(table, scratch_bytes)


class Round:
    """Runs nested programs beside each other, again and again.

    Args:
        threads: how many run them, the caller of `finish` included.
        most: programs of a round.
        cache: where object code is kept between processes.
    """

    def __init__(self, threads: int, most: int, cache: Cache | None = None) -> None:
        self._teams = teams(threads, True, can_use_futex(host()), cache)
        self._table = shared_words(most * TASK_WORDS).reshape(-1, TASK_WORDS)
        self._team: Team | None = None
        self._kept: list[Task] = []
        self._before = 0  # programs that the team had begun before this

    def start(self, programs: Sequence[Nested], scratch_bytes: int) -> None:
        """Let the other threads begin; `finish` has to follow, or `end` where Ctrl-C comes in between.

        Args:
            programs: at least one, and no more than was said.
            scratch_bytes: scratch memory of each thread.
        """
        self._kept = [program.task for program in programs]
        count = len(self._kept)
        self._table[:count] = table_of([self._kept]).lines
        words = np.array([0, 1, self._table.ctypes.data, count], np.int64).data
        team = self._teams.take(scratch_bytes)
        self._before, self._team = team.begun, team
        team.start(words)

    @property
    def has_run(self) -> bool:
        """Whether what was started last has run, since `clear`; to be asked behind `finish` or `end`."""
        return bool(self._table[0, _TICKS])

    def clear(self) -> None:
        """Know of nothing that has run."""
        self._table[0, _TICKS] = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do in `finish`."""
        return self._team is not None and self._team.is_done

    def finish(self) -> NDArray[np.int64]:
        """Take part until all is done; the CPU's ticks that each program has taken."""
        assert self._team is not None
        self._team.finish()
        self._give()
        count, self._kept = len(self._kept), []
        return self._table[:count, _TICKS].copy()

    def end(self) -> None:
        """See that nothing runs any more, wherever `start` or `finish` was interrupted."""
        team = self._team
        if team is not None:
            if team.begun != self._before and not team.is_done:
                team.finish()
            self._give()

    def _give(self) -> None:
        team, self._team = self._team, None
        if team is not None:
            self._teams.give(team)
