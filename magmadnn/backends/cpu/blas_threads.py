"""Threads of the BLAS that NumPy and SciPy bring, each its own: one thread for small matrices.

OpenBLAS divides factorisations of a hundred rows among its threads, which takes longer than the arithmetic.
Its threads wait for each other, and for more work, without giving cores up: where those of the other library,
of compiled programs or of other processes want the cores too, a call of a millisecond takes a hundred times
as long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

from .forks import ProcessLock

FEW_ROWS: Final = 512  # below, in all axes of a matrix, one thread is as quick as several
_MODULES: Final = ("numpy.linalg._umath_linalg", "scipy.linalg._fblas")
_NAMES: Final = [
    f"{a}_{{}}_num_threads{b}" for a in ("scipy_openblas", "openblas") for b in ("64_", "")
]
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
        self._calls = 0  # under way on one thread
        self._before: list[int] = []  # threads of each library before the first of these

    def on_one(self, function: Callable[..., Any], *words: Any, **named: Any) -> Any:
        """What a function gives, whose calls of the libraries use one thread.

        Calls of other threads of this process do too in the meantime.
        """
        with self._lock:
            if not self._calls:
                self._before = [read() for read, _ in self._libraries]
                for _, write in self._libraries:
                    write(1)
            self._calls += 1
        try:
            return function(*words, **named)
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    for (_, write), count in zip(self._libraries, self._before, strict=True):
                        write(count)


@cache
def blas_threads() -> BlasThreads | None:
    """Those of NumPy and SciPy; None where neither has OpenBLAS."""
    found = [library for name in _MODULES if (library := _library(name)) is not None]
    return BlasThreads(found) if found else None


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
