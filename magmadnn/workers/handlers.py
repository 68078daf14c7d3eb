"""What workers can be asked for: functions by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from magmadnn.comm import Communicator
from magmadnn.comm.launching.importing import importing
from magmadnn.errors import ArgumentError, UnknownNameError


@dataclass
class Worker:
    """What a handler works with.

    Args:
        communicator: of all workers.
        objects: what handlers keep from call to call, by names of their own choice.
    """

    communicator: Communicator
    objects: dict[str, Any] = field(default_factory=dict)


class Answer(NamedTuple):
    """What one worker answers: a value that JSON can hold, and arrays."""

    value: Any = None
    arrays: Sequence[Any] = ()


Handler: TypeAlias = Callable[[Worker, Any, list[Any]], Answer | None]
_handlers: Final[dict[str, Handler]] = {}


def handler(name: str) -> Callable[[Handler], Handler]:
    """A decorator: workers call the function when a client calls `name`.

    The function must be at the top of a module that can be imported, since workers import it; its name
    begins with that of its folder, such as "dmath.multiply". It is called on all workers, in the order of
    the client's calls.

    Raises:
        ArgumentError: if the name is taken by another function.

    >>> from magmadnn.workers import Answer, handler
    >>> @handler("example.add")
    ... def add(worker, arguments, arrays):
    ...     return Answer(sum(arguments))
    """

    def register(function: Handler) -> Handler:
        known = _handlers.get(name)
        if known is not None and where(known) != where(function):
            raise ArgumentError(f"handler: {name!r} is the name of {where(known)}: choose another")
        _handlers[name] = function
        return function

    return register


def where(function: Handler) -> str:
    """Module and name of a function."""
    return f"{function.__module__}.{function.__qualname__}"


def find_handler(name: str, module: str | None = None) -> Handler:
    """The handler of this name; `module` is imported if it is not known yet.

    Raises:
        UnknownNameError: if there is none.
    """
    if name not in _handlers and module is not None:
        with importing(module):
            importlib.import_module(module)
    if name not in _handlers:
        raise UnknownNameError.of("workers: call", name, _handlers)
    return _handlers[name]
