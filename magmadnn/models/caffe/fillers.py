"""Caffe's fillers as initialisers."""

from __future__ import annotations

from math import sqrt

from magmadnn.errors import UnknownNameError
from magmadnn.tensor import init
from magmadnn.tensor.init import Initializer

from .fields import Fields

_NORMS = ("FAN_IN", "FAN_OUT", "AVERAGE")
_PLAIN = ("constant", "gaussian", "uniform")
_BY_FANS = ("xavier", "msra")


def filler(
    options: Fields, name: str, default: Initializer, fans: tuple[int, int] | None = None
) -> Initializer:
    """The initialiser that a message says.

    Caffe's `xavier` is uniform in +-sqrt(3 / fan), its `msra` normal with variance 2 / fan, where fan is
    fan_in, fan_out or their mean. A message that is left out means zeros in Caffe, as values are then loaded;
    here it means `default`, with which a network can be trained.

    Args:
        options: of the layer.
        name: of the message, such as "weight_filler".
        default: where it is left out.
        fans: fan_in and fan_out of a weight; None for what has none.

    Raises:
        UnknownNameError: for a filler that is not known.
        DataError: for settings that cannot be had.
    """
    there = name in options
    read = options.part(name)
    kind = read.text("type", "constant")
    value, low, high = read.number("value", 0.0), read.number("min", 0.0), read.number("max", 1.0)
    mean, std = read.number("mean", 0.0), read.number("std", 1.0)
    norm = read.word("variance_norm", _NORMS, "FAN_IN")
    read.fixed("sparse", read.number("sparse", -1.0), -1.0, why="weights are dense")
    if not there:
        return default
    known = _PLAIN if fans is None else (*_PLAIN, *_BY_FANS)
    if kind not in known:
        line = (read.lines("type") or [read.line])[0]
        raise UnknownNameError.of(f"{read.place.at(line)}: type", kind, known)
    if kind == "constant":
        return init.constant(value)
    if kind == "gaussian":
        if std < 0:
            raise read.refuse("std", f"std must be at least 0, got {std:g}")
        return init.normal(mean, std)
    if kind == "uniform":
        if low > high:
            raise read.refuse("min", f"min must not be above max, got {low:g} and {high:g}")
        return init.uniform(low, high)
    return _by_fans(kind, norm, fans or (1, 1))


def _by_fans(kind: str, norm: str, fans: tuple[int, int]) -> Initializer:
    if norm == "FAN_IN":
        return init.lecun_uniform() if kind == "xavier" else init.he_normal()
    fan = float(fans[1]) if norm == "FAN_OUT" else sum(fans) / 2
    if kind == "xavier":
        return init.uniform(-sqrt(3 / fan), sqrt(3 / fan))
    return init.normal(0.0, sqrt(2 / fan))
