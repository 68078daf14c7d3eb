"""The file of a space, and the networks that its points are."""

from __future__ import annotations

import tomllib
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError, DataError, UnknownNameError, shown
from magmadnn.search.spaces.space import Space, space_of_plain
from magmadnn.storage.durable import read_file
from magmadnn.storage.places import expanded

PARAMETERS = (
    *("lr", "weight_decay", "batch_size", "epochs", "optimizer"),
    *("activation", "hidden", "units", "layers"),
)
_ALIASES = {"learning_rate": "lr"}
_MOST = 1 << 20  # bytes


def read_space(name: str) -> Space:
    """The space in a TOML file: `lr = {log_uniform = [1e-4, 1e-1]}`.

    Raises:
        FileError: it cannot be read.
        DataError: it is no TOML.
        ArgumentError, UnknownNameError: it is no space of these parameters.
    """
    path: Path = expanded(name)
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
    if "hidden" in named and ("units" in named or "layers" in named):
        raise ArgumentError(
            f"--space {shown(name)}: hidden gives all sizes, so units and layers say it twice; leave one out"
        )
    return space_of_plain(named)


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
