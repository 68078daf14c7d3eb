"""The driver: runs a program of kernels for many batches in one call, on parked worker threads.

A program is a list of phases, each a list of tasks that do not depend on each other. Which thread does a
task never matters: kernels keep nothing between calls, so results are equal for any number of threads.
The workers are Python threads that enter native code once and stay there without the interpreter lock.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import ArgumentError

from .cache import Cache, key_of
from .driver_code import LINE, RUN, TASK_WORDS, WORK, Control, can_use_futex, driver_text
from .kernel import Loaded, scratch
from .target import Library, host, object_code

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
# Looks at a word before sleeping: some 100 microseconds; next to nothing if cores are fewer than threads.
_SPINS, _SPINS_CROWDED = 4000, 20


@dataclass(frozen=True)
class Task:
    """A call of a kernel.

    Attributes:
        kernel: what is called.
        arguments: its argument block; what its addresses point to must outlive the driver.
        holds: what of that nobody else keeps alive.
    """

    kernel: Loaded
    arguments: NDArray[np.int64]
    holds: tuple[Any, ...] = ()


_libraries: dict[tuple[bool, bool], Library] = {}


def _library(futex: bool, timed: bool, cache: Cache | None) -> Library:
    """The native code, once per process."""
    if (futex, timed) not in _libraries:

        def compiled() -> bytes:
            return object_code(driver_text(host(), futex, timed), host())

        key = key_of(f"driver futex={futex} timed={timed}", host())
        code = cache.code(key, compiled) if cache else compiled()
        _libraries[futex, timed] = Library(code)
    return _libraries[futex, timed]


class Driver:
    """A program loaded for running; a context manager that ends its threads.

    Args:
        phases: tasks by phase.
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
        phases: Sequence[Sequence[Task]],
        threads: int = 1,
        scratch_bytes: int = 0,
        timed: bool = False,
        futex: bool | None = None,
        cache: Cache | None = None,
    ) -> None:
        if threads < 1:
            raise ArgumentError(f"driver: threads must be at least 1, got {threads}")
        futex = can_use_futex(host()) if futex is None else futex
        library = _library(futex, timed, cache)
        self._kept = [task for phase in phases for task in phase]
        self._phases, self._tasks = _tables(phases)
        self._control = _shared(int(Control.WORDS))
        self._scratch = [scratch(scratch_bytes) for _ in range(threads)]
        self._addresses = (self._control.ctypes.data, self._scratch[0].ctypes.data)
        self._batches = self._control.data[Control.FIRST_BATCH : Control.BATCHES + 1]
        self._lock = threading.Lock()
        self._run = _ENTRY(library.address(RUN))
        crowded = threads > cores()
        libc = ctypes.CDLL(None)
        for place, number in (
            (Control.THREADS, threads),
            (Control.SPINS, _SPINS_CROWDED if crowded else _SPINS),
            (Control.PHASES, self._phases.ctypes.data),
            (Control.PHASE_COUNT, len(phases)),
            (Control.TASKS, self._tasks.ctypes.data),
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

    def run(self, first_batch: int, batches: int) -> None:
        """Run the program for `batches` batches from number `first_batch` on."""
        if batches <= 0 or not self._kept:
            return  # a slice without a barrier would let the caller run ahead of the workers
        with self._lock:
            self._batches[0], self._batches[1] = first_batch, batches
            self._run(*self._addresses)

    def ticks(self) -> NDArray[np.int64]:
        """Of each task, in the order of the phases: the CPU's ticks and the calls so far, [tasks, 2]."""
        return self._tasks.reshape(-1, TASK_WORDS)[:, 2:].copy()

    def close(self) -> None:
        """End the worker threads."""
        self._end()

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _tables(
    phases: Sequence[Sequence[Task]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tables of phases and of tasks that native code walks."""
    lines, words = _shared(max(1, len(phases)) * LINE), list[int]()
    for number, phase in enumerate(phases):
        first = len(words) // TASK_WORDS
        lines[number * LINE : number * LINE + 2] = first, first + len(phase)
        for task in phase:
            words += [task.kernel.address, task.arguments.ctypes.data, 0, 0]
    tasks = _shared(max(TASK_WORDS, len(words)))
    tasks[: len(words)] = words
    return lines, tasks


def _shared(words: int) -> NDArray[np.int64]:
    """Words that begin with a cache line, all 0."""
    made = scratch(words * 8).view(np.int64)
    made[:] = 0
    return made


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
