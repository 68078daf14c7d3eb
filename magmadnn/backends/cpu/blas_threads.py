"""Threads of the BLAS that NumPy and SciPy bring, each its own: one thread for small matrices.

OpenBLAS divides factorisations of a hundred rows among its threads, which takes longer than the arithmetic.
Its threads wait for each other, and for more work, without giving cores up: where those of the other library,
of compiled programs or of other processes want the cores too, a call of a millisecond takes a hundred times
as long.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from threading import get_ident
from typing import Any, Final

from .forks import ProcessLock

FEW_ROWS: Final = (
    320  # below, in all axes of a matrix, one thread is as quick as two, or up to twice
)
_MODULES: Final = ("numpy.linalg._umath_linalg", "scipy.linalg._fblas")
_NAMES: Final = [
    f"{a}_{{}}_num_threads{b}" for a in ("scipy_openblas", "openblas") for b in ("64_", "")
]
_VARIABLE: Final = "OPENBLAS_NUM_THREADS"
Library = tuple[Callable[[], int], Callable[[int], object]]
"""Functions that read and write a library's number of threads."""


class BlasThreads:
    """The number of threads of some libraries.

    Args:
        libraries: of this process.
    """

    def __init__(self, libraries: Sequence[Library]) -> None:
        self._libraries = libraries
        self._lock = ProcessLock()
        self._calls: dict[object, int] = {}  # under way on one thread, and the thread of each
        self._before: list[int] = []  # threads of each library before the first of these

    def on_one(self, function: Callable[..., Any], *words: Any, **named: Any) -> Any:
        """What a function gives, whose calls of the libraries use one thread.

        Calls of other threads of this process do too in the meantime. A KeyboardInterrupt may come anywhere:
        what it breaks off, in what puts the numbers back too, is done again.
        """
        call = object()
        try:
            try:
                self._enter(call)
                return function(*words, **named)
            finally:
                self._leave(call)
        except BaseException:
            self._leave(call)
            raise

    def _enter(self, call: object) -> None:
        with self._lock:
            if not self._before:
                self._before = [read() for read, _ in self._libraries]
                for _, write in self._libraries:
                    write(1)
            self._calls[call] = get_ident()

    def _leave(self, call: object) -> None:
        """Put the numbers back behind the last call; more than once does no harm."""
        with self._lock:
            self._calls.pop(call, None)
            if self._before and not self._calls:
                for (_, write), count in zip(self._libraries, self._before, strict=True):
                    write(count)
                self._before = []

    def forked(self) -> None:
        """In a forked child: calls of threads that it does not have are over."""
        own = get_ident()
        self._calls = {call: thread for call, thread in self._calls.items() if thread == own}
        self._leave(None)


@cache
def blas_threads() -> BlasThreads | None:
    """Those of NumPy and SciPy; None where neither has OpenBLAS."""
    found = [library for name in _MODULES if (library := _library(name)) is not None]
    if not found:
        return None
    threads = BlasThreads(found)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=threads.forked)
    return threads


def limit_blas(count: int) -> None:
    """Let NumPy's and SciPy's calls use at most so many threads in this process from now on.

    A library that is loaded later finds the number in the environment.
    """
    for library in (_library(name) for name in _MODULES if name in sys.modules):
        if library is not None and library[0]() > count:
            library[1](count)
    given = os.environ.get(_VARIABLE, "")
    if not (given.isdecimal() and 1 <= int(given) <= count):
        os.environ[_VARIABLE] = str(count)


def _library(name: str) -> Library | None:
    """The one that a module calls; None where it is another library, or the module is not installed."""
    try:
        module = import_module(name)
        library = ctypes.CDLL(
            str(module.__file__)
        )  # its symbols, and those of what it is linked to
    except (ImportError, OSError):
        return None
    for pattern in _NAMES:
        if hasattr(library, pattern.format("set")):
            return getattr(library, pattern.format("get")), getattr(library, pattern.format("set"))
    return None
