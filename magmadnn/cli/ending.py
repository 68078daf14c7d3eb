"""How a command ends when a signal asks it to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """SIGTERM came while nothing was trained; like KeyboardInterrupt, no handler of errors takes it.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


@contextmanager
def terminated_by_signals() -> Iterator[None]:
    """SIGTERM raises `Terminated` in this block, as Ctrl-C raises KeyboardInterrupt.

    While a training runs it listens itself, saves, and ends in order.
    """
    try:
        before = signal.signal(signal.SIGTERM, _terminate)
    except ValueError:  # not the main thread: Python sets no handlers there
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
