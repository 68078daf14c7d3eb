"""Calls of libraries that are taken down, to be made later and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from magmadnn.errors import DeviceError


class Taken(NamedTuple):
    """A call.

    Attributes:
        name: of the function, for errors.
        function: gives 0, or None, if all went well.
        arguments: as ctypes has them.
    """

    name: str
    function: Callable[..., int | None]
    arguments: tuple[Any, ...] = ()


class Caller:
    """Calls functions of libraries that give 0 if all went well; or takes down what would be called."""

    def __init__(self) -> None:
        self._taken: list[Taken] | None = None

    def ask(self, library: Any, name: str, *arguments: Any) -> None:
        """Call a function now, in any case.

        Raises:
            DeviceError: if it fails.
        """
        status: int = getattr(library, name)(*arguments)
        if status:
            raise DeviceError(f"the device failed: {name} gives status {status}")

    def begin(self, library: Any, name: str, *arguments: Any) -> None:
        """Call a function that gives a stream something to do, or take the call down."""
        if self._taken is None:
            self.ask(library, name, *arguments)
        else:
            self._taken.append(Taken(name, getattr(library, name), arguments))

    @contextmanager
    def taking(self) -> Iterator[list[Taken]]:
        """Take down what is begun meanwhile, in order; one thread at a time."""
        self._taken = found = list[Taken]()
        try:
            yield found
        finally:
            self._taken = None
