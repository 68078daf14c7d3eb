"""A rank is kept on its cores, and libraries are told its threads, while it runs a module."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from magmadnn.runtime.threads import MOST, on_threads

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "MAGMADNN_NUM_THREADS",
)
_told: list[int] = []  # threads that libraries of OpenMP were last told
_OPENMP = ("libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so")


@contextlib.contextmanager
def pinned(cores: Sequence[int], threads: int) -> Iterator[None]:
    """Keep all threads of this process on some cores, and let libraries use so many threads.

    Args:
        cores: empty: all that the process has.
        threads: of programs that this library compiles, of OpenMP and of BLAS. A library of BLAS that was
            loaded before keeps the threads that it has, on these cores.
    """
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    for name in VARIABLES:
        os.environ[name] = str(threads)
    if _told != [threads]:
        _told[:] = [threads]
        _tell_openmp(threads)
    if cores and before:
        _keep_on(set(cores))
    try:
        with on_threads(min(threads, MOST)):
            yield
    finally:
        if cores and before:
            _keep_on(before)


def _keep_on(cores: set[int]) -> None:
    """All threads of this process; where the machine has no such cores it stays where it is."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended, or a container has fewer cores
            os.sched_setaffinity(int(task.name), cores)


def _tell_openmp(threads: int) -> None:
    """Libraries of OpenMP that are loaded have read the variable already."""
    for name in _OPENMP:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            library.omp_set_num_threads(ctypes.c_int(threads))
