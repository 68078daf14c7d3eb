"""Calls of libraries that are recorded, to be made later and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from magmadnn.errors import DeviceError


class RecordedCall(NamedTuple):
    """A call.

    Attributes:
        name: of the function, for errors.
        function: gives 0, or None, if all went well.
        arguments: as ctypes has them.
    """

    name: str
    function: Callable[..., int | None]
    arguments: tuple[Any, ...] = ()


def fail(name: str, status: int) -> NoReturn:
    """Say that a function of a library failed.

    Raises:
        DeviceError: always.
    """
    raise DeviceError(f"the device failed: {name} gives status {status}")


class Caller:
    """Calls functions of libraries that give 0 if all went well; or records what would be called."""

    def __init__(self) -> None:
        self._recorded: list[RecordedCall] | None = None

    def ask(self, library: Any, name: str, *arguments: Any) -> None:
        """Call a function now, in any case.

        Raises:
            DeviceError: if it fails.
        """
        status: int = getattr(library, name)(*arguments)
        if status:
            fail(name, status)

    def begin(self, library: Any, name: str, *arguments: Any) -> None:
        """Call a function that gives a stream something to do, or record the call."""
        if self._recorded is None:
            self.ask(library, name, *arguments)
        else:
            self._recorded.append(RecordedCall(name, getattr(library, name), arguments))

    @contextmanager
    def recording(self) -> Iterator[list[RecordedCall]]:
        """Record what is begun meanwhile, in order; one thread at a time."""
        self._recorded = found = list[RecordedCall]()
        try:
            yield found
        finally:
            self._recorded = None
