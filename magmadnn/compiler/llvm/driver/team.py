"""Teams of threads that run programs of kernels, each program on whichever team is free.

The workers are Python threads that enter native code once and stay there without the interpreter lock.
Programs with as many threads share teams: a worker that has just ended one program is awake for the next,
while one of its own would have to be woken, and might wait for the core on which the other still looks for
work. A second team is made only where two programs run at the same time.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.llvm.ir.target import cores, host, object_code
from magmadnn.compiler.llvm.kernel import scratch
from magmadnn.compiler.llvm.object.cache import Cache, key_of
from magmadnn.compiler.llvm.object.library import Library

from .code import FINISH, HALF, LOW, NESTED, RUN, START, WORK, Control, can_use_futex, driver_text

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
