"""Calls of functions that make networks, whose further arguments are those of `Model`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from magmadnn.calls import checked_call
from magmadnn.errors import UnknownArgumentError
from magmadnn.hints import hint
from magmadnn.training import Model

F = TypeVar("F", bound=Callable[..., Any])

_GIVEN = ("layers", "inputs", "outputs")  # to Model, by the function


def network_call(function: F) -> F:
    """The function; an argument that neither it nor `Model` has raises ours, with the names of both."""
    checked, name = checked_call(function), function.__name__

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return checked(*args, **named)
        except UnknownArgumentError:
            own = signature(function).parameters.values()
            known = {p.name for p in own if p.kind is not Parameter.VAR_KEYWORD}
            known |= signature(Model).parameters.keys() - {*_GIVEN}
            wrong = next((key for key in named if key not in known), None)
            if wrong is None:
                raise
            way = hint(("Model argument", "argument"), wrong, sorted(known))
        raise UnknownArgumentError.of(f"{name}: argument", wrong, known, way)

    return call  # type: ignore[return-value]  # of the same signature
