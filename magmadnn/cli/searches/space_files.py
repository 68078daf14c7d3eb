"""The file of a space, and the networks that its points are."""

from __future__ import annotations

import tomllib
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError, DataError, FileError, UnknownNameError, quoted, shown
from magmadnn.search.spaces.space import Space, space_of_plain
from magmadnn.storage.disk import is_there
from magmadnn.storage.durable import read_file
from magmadnn.storage.places import expanded

from .space_values import check_values

PARAMETERS = (
    *("lr", "weight_decay", "batch_size", "epochs", "optimizer"),
    *("activation", "hidden", "units", "layers"),
)
_ALIASES = {"learning_rate": "lr"}
_MOST = 1 << 20  # bytes


def read_space(name: str) -> Space:
    """The space in a TOML file: `lr = {log_uniform = [1e-4, 1e-1]}`.

    Raises:
        FileError: it is not there, or cannot be read.
        DataError: it is no TOML.
        ArgumentError, UnknownNameError: it is no space of these parameters, or has values that they cannot
            have.
    """
    path: Path = expanded(name)
    if not is_there(path):
        raise FileError(
            f"--space {shown(name)}: there is no such file; check the path, or write the file: "
            "lr = {log_uniform = [1e-4, 1e-1]}"
        )
    try:
        found = tomllib.loads(read_file(path, _MOST).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"--space {shown(name)}: is no TOML: {error}") from error
    named = {}
    for key, value in found.items():
        parameter = key.replace("-", "_")
        parameter = _ALIASES.get(parameter, parameter)
        if parameter not in PARAMETERS:
            raise UnknownNameError.of(f"--space {shown(name)}: parameter", key, PARAMETERS)
        if parameter in named:
            raise ArgumentError(f"--space {shown(name)}: {parameter} is there twice")
        named[parameter] = value
        _check_list(name, parameter, value)
    if "hidden" in named and ("units" in named or "layers" in named):
        raise ArgumentError(
            f"--space {shown(name)}: hidden gives all sizes, so units and layers say it twice; leave one out"
        )
    if not any(isinstance(value, Mapping) for value in named.values()):
        raise ArgumentError(_nothing_to_search(name, named.get("hidden")))
    space = space_of_plain(named)
    check_values(space, shown(name))
    return space


def _check_list(file: str, parameter: str, value: Any) -> None:
    """Refuse a list in place of a dimension; sizes of the hidden layers are one value.

    Raises:
        ArgumentError: if it is one.
    """
    if not isinstance(value, list):
        return
    if parameter != "hidden" or any(isinstance(one, list) for one in value):
        raise ArgumentError(
            f"--space {shown(file)}: {parameter}: a list is not a dimension; write "
            f"{parameter} = {{choice = {quoted(value)}}}"
        )


def _nothing_to_search(file: str, hidden: Any) -> str:
    text = f"--space {shown(file)}: there is nothing to search"
    if isinstance(hidden, list):
        sizes = ", ".join(f"[{size}]" for size in hidden[:3])
        return (
            f"{text}: hidden = {quoted(hidden)} are the sizes of one network; write hidden = {{choice = "
            f"[{sizes}]}} for several"
        )
    return f"{text}; give a parameter several values: lr = {{log_uniform = [1e-4, 1e-1]}}"


def options_of(point: Mapping[str, Any], hidden: tuple[int, ...]) -> Namespace:
    """A point as options of `train`.

    Args:
        point: parameters of the space.
        hidden: sizes where the point has none.
    """
    values = dict(point)
    if "units" in values or "layers" in values:
        units = values.pop("units", hidden[0] if hidden else 1)
        values["hidden"] = (units,) * values.pop("layers", len(hidden))
    if isinstance(values.get("hidden"), int):
        values["hidden"] = (values["hidden"],)
    return Namespace(**values)
