"""Processes of workers, forked or begun anew: their numbers, and ending them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any, Protocol


class Process(Protocol):
    """A process that this one began."""

    @property
    def number(self) -> int:
        """Of the process."""
        ...

    def end(self) -> int:
        """End it, if it has not ended; its exit code, negative for a signal."""
        ...


class Forked:
    """One that was forked.

    Args:
        number: of the process.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def end(self) -> int:
        """End it, if it has not ended; its exit code, negative for a signal."""
        done, status = os.waitpid(self.number, os.WNOHANG)
        if not done:
            os.kill(self.number, signal.SIGKILL)
            _, status = os.waitpid(self.number, 0)
        return os.waitstatus_to_exitcode(status)


class Spawned:
    """One that is begun anew, with nothing of this one but what it is given.

    Args:
        call: what it does, a function of a module.
        given: its arguments.
    """

    def __init__(self, call: Callable[..., None], given: tuple[Any, ...]) -> None:
        self._process = get_context("spawn").Process(target=call, args=given)
        self._process.start()
        self.number = self._process.pid or 0

    def end(self) -> int:
        """End it, if it has not ended; its exit code, negative for a signal."""
        if self._process.exitcode is None:
            self._process.kill()
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        return 1 if code is None else code
