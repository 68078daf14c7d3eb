"""The driver: runs a program of kernels for many batches in one call, on parked worker threads.

A program is a list of phases, each a list of tasks that do not depend on each other. Which thread does a
task never matters: kernels keep nothing between calls, so results are equal for any number of threads.

Programs run on teams of threads, each program on whichever team is free. The workers are Python threads that
enter native code once and stay there without the interpreter lock. Programs with as many threads share teams:
a worker that has just ended one program is awake for the next, while one of its own would have to be woken,
and might wait for the core on which the other still looks for work. A second team is made only where two
programs run at the same time.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.llvm.ir.target import can_use_futex, cores, host, object_code
from magmadnn.compiler.llvm.kernel import scratch
from magmadnn.compiler.llvm.object.cache import Cache, key_of
from magmadnn.compiler.llvm.object.library import Library
from magmadnn.errors import ArgumentError

from .code import (
    FINISH,
    HALF,
    LOW,
    NESTED,
    PHASE_END,
    RUN,
    START,
    TASK_WORDS,
    WORK,
    Control,
    driver_text,
)

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
# Looks at a word before sleeping: some 100 microseconds; next to nothing if cores are fewer than threads.
_SPINS, _SPINS_CROWDED = 4000, 20
_ROOM = 64 << 10  # scratch memory of a thread at least, so that few programs ask for more

_libraries: dict[tuple[bool, bool], Library] = {}
_making = ProcessLock()


def _library(futex: bool, timed: bool, cache: Cache | None) -> Library:
    """The native code, once per process."""
    with _making:
        if (futex, timed) not in _libraries:

            def compiled() -> bytes:
                return object_code(driver_text(host(), futex, timed), host())

            key = key_of(f"driver futex={futex} timed={timed}", host())
            code = cache.code(key, compiled) if cache else compiled()
            _libraries[futex, timed] = Library([code], (RUN, START, FINISH, WORK, NESTED))
        return _libraries[futex, timed]


def prepare(cache: Cache | None) -> None:
    """Have a thread compile the native code, the same for all programs, while the first one is planned."""
    futex = can_use_futex(host())
    if (futex, False) not in _libraries:
        threading.Thread(target=_library, args=(futex, False, cache)).start()


class Team:
    """Threads with scratch memory; the caller of `run` is one of them.

    Args:
        threads: how many, the caller included.
        room: scratch memory of each in bytes.
        library: the native code.
        futex: whether waiting threads sleep in a futex.
    """

    def __init__(self, threads: int, room: int, library: Library, futex: bool) -> None:
        self.room = room
        self._control = shared_words(int(Control.WORDS))
        self._program = self._control.data[Control.FIRST_BATCH : Control.TASK_COUNT + 1]
        self._scratch = [scratch(room, zeros=False) for _ in range(threads)]
        self._addresses = (self._control.ctypes.data, self._scratch[0].ctypes.data)
        self._run, self._start, self._finish = (
            _ENTRY(library.address(name)) for name in (RUN, START, FINISH)
        )
        libc = ctypes.CDLL(None)
        for place, number in (
            (Control.THREADS, threads),
            (Control.SPINS, _SPINS_CROWDED if threads > cores() else _SPINS),
            (Control.SLEEP, _address(libc.syscall if futex else libc.usleep)),
        ):
            self._control[place] = number
        work = _ENTRY(library.address(WORK))
        self._workers = [
            threading.Thread(target=_work, args=(work, self._control, own), daemon=True)
            for own in self._scratch[1:]
        ]
        for worker in self._workers:
            worker.start()
        self._end = weakref.finalize(self, _stop, self._run, self._control, self._workers)
        _made.add(self)

    def run(self, program: memoryview[int]) -> None:
        """Run a program: the words of `Control` from FIRST_BATCH to TASK_COUNT."""
        self._program[:] = program
        self._run(*self._addresses)

    def start(self, program: memoryview[int]) -> None:
        """Let the workers begin with a program; `finish` has to follow."""
        self._program[:] = program
        self._start(*self._addresses)

    @property
    def begun(self) -> int:
        """How many programs the workers have begun; 0 where there are none."""
        return int(self._control[Control.COMMAND])

    @property
    def is_done(self) -> bool:
        """Whether the workers have done all of what was started."""
        gate, part = int(self._control[Control.GATE]), int(self._control[Control.SLICE])
        return (gate - part) & LOW > (part >> HALF) & LOW

    def finish(self) -> None:
        """Take part until all is done."""
        self._finish(*self._addresses)

    def close(self) -> None:
        """End the worker threads."""
        self._end()

    def forget(self) -> None:
        """In a forked child, which has none of the workers, and may have half of what they did."""
        self._end.detach()


class Teams:
    """The teams of one number of threads; their threads end with the last program that holds this."""

    def __init__(self, threads: int, timed: bool, futex: bool, cache: Cache | None) -> None:
        self._threads, self._futex = threads, futex
        self._library = _library(futex, timed, cache)
        self._idle: deque[Team] = deque()

    def take(self, room: int) -> Team:
        """A team that nobody uses, with so much scratch memory for each thread."""
        try:
            team = self._idle.pop()
        except IndexError:
            return Team(self._threads, max(room, _ROOM), self._library, self._futex)
        if team.room >= room:
            return team
        team.close()
        return Team(self._threads, room, self._library, self._futex)

    def give(self, team: Team) -> None:
        """Take a team back."""
        self._idle.append(team)

    def renew(self) -> None:
        """In a forked child: make teams of its own."""
        self._idle.clear()


_teams: weakref.WeakValueDictionary[tuple[int, ...], Teams] = weakref.WeakValueDictionary()
_made: weakref.WeakSet[Team] = weakref.WeakSet()
_lock = ProcessLock(keep=True)


def _renew() -> None:
    """In a forked child: no program has threads, until it runs."""
    for team in list(_made):
        team.forget()
    for found in list(_teams.values()):
        found.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def teams(threads: int, timed: bool, futex: bool, cache: Cache | None) -> Teams:
    """The teams of so many threads."""
    key = (threads, timed, futex)
    found = _teams.get(key)
    if found is None:
        with _lock:
            found = _teams.get(key) or Teams(threads, timed, futex, cache)
            _teams[key] = found
    return found


def nested_address(cache: Cache | None) -> int:
    """Of the function that runs a program as a task of another one."""
    return _library(can_use_futex(host()), False, cache).address(NESTED)


def shared_words(words: int) -> NDArray[np.int64]:
    """Words that begin with a cache line, all 0."""
    made = scratch(words * 8).view(np.int64)
    made[:] = 0
    return made


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _work(enter: Any, control: NDArray[np.int64], own: NDArray[np.uint8]) -> None:
    """A worker thread: in native code until stopped."""
    enter(control.ctypes.data, own.ctypes.data)


def _stop(run: Any, control: NDArray[np.int64], workers: list[threading.Thread]) -> None:
    """An empty slice that tells the workers to stop."""
    control[Control.STOP] = 1
    control[Control.BATCHES] = 0
    run(control.ctypes.data, None)
    for worker in workers:
        worker.join()


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
        with self._lock.held:
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
