"""The values in the file of a space, looked at before a search: each parameter takes only some."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from magmadnn.cli.training_options import OPTIMIZERS
from magmadnn.errors import ArgumentError, UnknownNameError, quoted
from magmadnn.layers.activations import ACTIVATIONS
from magmadnn.search.spaces.dimensions import Dimension, is_number
from magmadnn.search.spaces.space import Space

_MOST = 10_000  # values that are looked at one by one; of more, the first and the last
_LAST = 1 - 2**-53  # the largest position


def check_values(space: Space, file: str) -> None:
    """Look whether parameters have only values that a training can have.

    Args:
        space: of parameters of `magmadnn search`.
        file: how messages name it.

    Raises:
        UnknownNameError: there is no such optimiser or activation; says the nearest name.
        ArgumentError: a number is none, or out of range.
    """
    for name, one in space.dimensions.items():
        for value in _values(one):
            _check_value(f"--space {file}: {name}", name, value)


def _values(one: Dimension) -> Iterable[Any]:
    if one.count is not None and one.count <= _MOST:
        return one.values()
    return one.at(0.0), one.at(_LAST)


def _check_value(where: str, name: str, value: Any) -> None:
    if name in _NAMES:
        what, known, spelled = _NAMES[name]
        if not isinstance(value, str) or spelled(value) not in known:
            raise UnknownNameError.of(f"{where}: {what}", value, known)
        return
    words, fits = _NUMBERS[name]
    if not fits(value):
        raise ArgumentError(f"{where} must be {words}, got {quoted(value)}")


def _whole(least: int) -> tuple[str, Callable[[Any], bool]]:
    return f"a whole number of at least {least}", lambda value: _is_whole(value, least)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_sizes(value: Any) -> bool:
    sizes = value if isinstance(value, tuple) else (value,)
    return all(_is_whole(size, 1) for size in sizes)


_NAMES: dict[str, tuple[str, list[str], Callable[[str], str]]] = {
    "optimizer": ("optimiser", OPTIMIZERS, str.lower),
    "activation": ("activation", [*ACTIVATIONS, "prelu"], str),
}
_NUMBERS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "lr": ("a number above 0", lambda value: is_number(value) and value > 0),
    "weight_decay": ("a number of at least 0", lambda value: is_number(value) and value >= 0),
    "batch_size": _whole(1),
    "epochs": _whole(1),
    "units": _whole(1),
    "layers": _whole(0),
    "hidden": ("sizes of layers, such as [64, 32]", _are_sizes),
}
