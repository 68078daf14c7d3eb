"""Threads of the BLAS that SciPy brings: one thread for matrices that further ones make slower.

OpenBLAS divides factorisations of a hundred rows among its threads, which takes longer than the arithmetic;
where other programs use the cores too, a thousand times as long, as its threads wait for each other without
giving cores up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from .forks import ProcessLock

_PREFIXES = ("scipy_openblas", "openblas")


class BlasThreads:
    """The number of threads of one library.

    Args:
        read, write: its functions for the number.
    """

    def __init__(self, read: Callable[[], int], write: Callable[[int], object]) -> None:
        self._read, self._write = read, write
        self._lock = ProcessLock()
        self._calls = self._before = (
            0  # calls under way on one thread, and threads before the first
        )

    def on_one(self, function: Callable[..., Any], *words: Any, **named: Any) -> Any:
        """What a function gives, whose calls of the library use one thread.

        Calls of other threads of this process do too in the meantime.
        """
        with self._lock:
            if not self._calls:
                self._before = self._read()
                self._write(1)
            self._calls += 1
        try:
            return function(*words, **named)
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    self._write(self._before)


@cache
def blas_threads() -> BlasThreads | None:
    """SciPy's; None where it is not installed, or has another library than OpenBLAS."""
    try:
        module = import_module("scipy.linalg._fblas")
        library = ctypes.CDLL(
            str(module.__file__)
        )  # its symbols, and those of what it is linked to
    except (ImportError, OSError):
        return None
    for prefix in _PREFIXES:
        if hasattr(library, f"{prefix}_set_num_threads"):
            return BlasThreads(
                getattr(library, f"{prefix}_get_num_threads"),
                getattr(library, f"{prefix}_set_num_threads"),
            )
    return None
