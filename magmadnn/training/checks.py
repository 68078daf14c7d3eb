"""Checks of what a model is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.data._structure import is_mapped
from magmadnn.errors import ArgumentError
from magmadnn.graph.op import Array
from magmadnn.graph.spec import is_floating
from magmadnn.layers.layer import Layer, number_layers
from magmadnn.tensor import Operation, Placeholder


def chained(layers: Sequence[Any], precision: str) -> tuple[Placeholder, Operation]:
    """Input and output of layers in a row; in float64 where that is asked for."""
    if not layers or not isinstance(layers[0], Placeholder):
        raise ArgumentError("Model: the first of the layers must be md.layers.Input(shape)")
    following = list(layers[1:])
    for layer in following:
        if not isinstance(layer, Layer):
            raise ArgumentError(f"Model: expected layers, got {layer!r}; wrap it in a Layer")
    number_layers(list(dict.fromkeys(following)))  # first, so that errors tell which layer it is
    x: Operation = layers[0]
    if precision == "float64" and is_floating(x.dtype) and x.dtype != np.float64:
        x = ops.cast(x, "float64")
    for layer in following:
        x = layer(x)
    return layers[0], x


def looks(targets: Iterable[Array]) -> tuple[Any, ...]:
    """Equal for targets that one compiled step can take."""
    return tuple((t.shape[1:], t.dtype) for t in targets)


def as_iterable(x: Any) -> Any:
    """An iterable of batches, or a function that makes one.

    Raises:
        ArgumentError: if it is an array, or nothing to iterate over.
    """
    if isinstance(x, np.ndarray) or is_mapped(x) or not (hasattr(x, "__iter__") or callable(x)):
        raise ArgumentError("y is missing: give x and y, or an iterable of batches (x, y)")
    return x


def at_least(what: str, value: Any, least: int) -> None:
    """Look whether an argument is an integer of at least `least`.

    Raises:
        ArgumentError: if not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(f"{what} must be an integer of at least {least}, got {value!r}")
