"""How many threads compiled programs run on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from magmadnn.errors import ArgumentError

MOST = 1024  # threads: starting very many takes minutes, in which no signal is heard

_chosen: list[int] = []


def set_threads(count: int) -> None:
    """Let compiled programs run on `count` threads from their next run on; a `fit` under way keeps its own.

    Results do not depend on it, bit for bit. Without a call it is the environment variable
    MAGMADNN_NUM_THREADS, else one for each core that the process may use.

    Args:
        count: from 1 to 1,024; more than there are cores gains nothing.

    Raises:
        ArgumentError: if it is another number.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
        raise ArgumentError(
            f"set_threads: count must be an integer from 1 to {MOST}, got {count!r}"
        )
    _chosen[:] = [count]


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Let compiled programs run on `count` threads within a block.

    Raises:
        ArgumentError: as `set_threads`.
    """
    before = list(_chosen)
    set_threads(count)
    try:
        yield
    finally:
        _chosen[:] = before


def thread_count() -> int:
    """The number that was set; else MAGMADNN_NUM_THREADS; else one for each core.

    Raises:
        ArgumentError: if the environment variable is no such number.
    """
    if not _chosen:
        from magmadnn.compiler.llvm.ir.target import cores

        text = os.environ.get("MAGMADNN_NUM_THREADS", "")
        if text and not (text.isdecimal() and len(text) < 9 and 1 <= int(text) <= MOST):
            raise ArgumentError(
                f"MAGMADNN_NUM_THREADS must be an integer from 1 to {MOST}, got {text!r}"
            )
        _chosen[:] = [int(text) if text else cores()]
    return _chosen[0]
