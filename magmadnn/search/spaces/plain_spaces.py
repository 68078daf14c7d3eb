"""Dimensions from plain data: JSON of a study's folder, and TOML that users write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from magmadnn.errors import ArgumentError, MagmaDNNError, UnknownNameError, quoted

from .dimensions import Dimension, choice, grid, integer, log_integer, log_uniform, uniform

_ENDS: dict[str, Callable[..., Dimension]] = {
    "uniform": uniform,
    "log_uniform": log_uniform,
    "integer": integer,
    "log_integer": log_integer,
}
_KINDS = (*_ENDS, "choice", "grid", "start")


def dimension_of_plain(name: str, value: Any) -> Any:
    """The dimension that plain data describes; a plain value stays one.

    `{"log_uniform": [1e-4, 1e-1]}`, `{"choice": [32, 64]}`, `{"start": 0.0, "stop": 0.01, "step": 0.002}` or
    `{"grid": [0.0, 0.01], "step": 0.002}`; each may have `"when": {"optimizer": "sgd"}` beside it.

    Raises:
        ArgumentError: if it is something else, naming the parameter.
    """
    if not isinstance(value, Mapping):
        return tuple(value) if isinstance(value, list) else value
    given = dict(value)
    conditions = given.pop("when", {})
    try:
        made = _made(given)
        if not isinstance(conditions, Mapping):
            raise ArgumentError(f"when: expected names with values, got {quoted(conditions)}")
        return made.when(**conditions) if conditions else made
    except MagmaDNNError as error:
        raise ArgumentError(f"space: {name}: {error}") from error


def _made(given: dict[str, Any]) -> Dimension:
    kind = next((k for k in given if k in _KINDS), None)
    if kind is None:
        raise UnknownNameError.of("kind of dimension", next(iter(given), ""), _KINDS)
    if kind == "start":
        _only(given, "start", "stop", "step")
        return grid(given["start"], given["stop"], step=given["step"])
    if kind == "grid":
        _only(given, "grid", "step")
        return grid(*_pair("grid", given["grid"]), step=given["step"])
    _only(given, kind)
    if kind == "choice":
        return choice(given["choice"])
    return _ENDS[kind](*_pair(kind, given[kind]))


def _pair(kind: str, ends: Any) -> list[Any]:
    if not isinstance(ends, (list, tuple)) or len(ends) != 2:
        raise ArgumentError(f"{kind}: expected two numbers, [low, high], got {quoted(ends)}")
    return list(ends)


def _only(given: Mapping[str, Any], *names: str) -> None:
    for name in given:
        if name not in names:
            raise UnknownNameError.of("entry", name, names)
    for name in names:
        if name not in given:
            raise ArgumentError(f"{name} is missing beside {names[0]}")
