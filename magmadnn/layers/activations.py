"""Activation functions by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magmadnn import ops
from magmadnn.errors import UnknownNameError

ActivationLike = str | Callable[[Any], Any] | None

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: x,
    "relu": ops.relu,
    "leaky_relu": ops.leaky_relu,
    "elu": ops.elu,
    "sigmoid": ops.sigmoid,
    "tanh": ops.tanh,
    "softmax": ops.softmax,
    "softplus": ops.softplus,
    "softsign": ops.softsign,
    "swish": ops.swish,
    "gelu": ops.gelu,
}


def as_activation(activation: ActivationLike) -> Callable[[Any], Any]:
    """The function for a name; a function is itself, None does nothing.

    Raises:
        UnknownNameError: for a name that is not known.
    """
    if activation is None:
        return ACTIVATIONS["linear"]
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise UnknownNameError.of("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]
