"""Activation functions by name, and as layers; those with a trained parameter are layers of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magmadnn import ops
from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.memory.dtypes import is_floating
from magmadnn.tensor import Operation, init
from magmadnn.tensor.init import Initializer

from .checks import above_zero
from .layer import Layer, Regularizer

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
    "gaussian_rbf": lambda x: ops.gaussian_rbf(x, 1.0),
}


def settled(activation: ActivationLike) -> ActivationLike:
    """What a layer keeps for the activation that it was given: "prelu" becomes a layer with its own slope.

    Raises:
        UnknownNameError: for a name that is not known.
        ArgumentError: for something that cannot be called.
    """
    if isinstance(activation, str) and activation == "prelu":
        return PReLU()
    as_activation(activation)
    return activation


def as_activation(activation: ActivationLike) -> Callable[[Any], Any]:
    """The function for a name; a function (a layer, say) is itself, None does nothing.

    Raises:
        UnknownNameError: for a name that is not known.
        ArgumentError: for something that cannot be called.
    """
    if activation is None:
        return ACTIVATIONS["linear"]
    if callable(activation):
        return activation
    if not isinstance(activation, str):
        raise ArgumentError(
            f"activation: expected a name or a function, got {activation!r}; a layer is given the number of "
            "its outputs only: Dense(units, activation)"
        )
    if activation not in ACTIVATIONS:
        raise UnknownNameError.of("activation", activation, [*ACTIVATIONS, "prelu"])
    return ACTIVATIONS[activation]


class Activation(Layer):
    """A function of every element (softmax: of the last axis); the shape stays.

    Attributes:
        activation: name or function: linear, relu, leaky_relu, prelu, elu, sigmoid, tanh, softmax, softplus,
            softsign, swish, gelu, gaussian_rbf (with epsilon 1).
    """

    activation: ActivationLike = "relu"

    def __post_init__(self) -> None:
        self.activation = settled(self.activation)

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        y: Operation = as_activation(self.activation)(x)
        return y


class PReLU(Layer):
    """`x where x > 0, slope * x elsewhere`: x [..., k], slope [k], trained; the shape stays.

    He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015, eq. (1), with a slope per channel.

    Attributes:
        slope_init: initial slope; 0.25, as in the paper.
        slope_regularizer: adds to the loss; the paper advises against one, for it makes slopes 0.
    """

    slope_init: Initializer | str = init.constant(0.25)
    slope_regularizer: Regularizer | None = None

    def build(self, x: Operation) -> None:
        """The slopes, in the dtype of x."""
        dtype = x.dtype if is_floating(x.dtype) else "float32"
        self.slope = self.parameter(
            "slope", x.shape[-1:], self.slope_init, dtype, regularizer=self.slope_regularizer
        )

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        y: Operation = ops.prelu(x, self.slope)
        return y


class GaussianRBF(Layer):
    """`exp(-(epsilon * x)**2)`: a Gaussian radial basis function of every element; the shape stays.

    Nichols et al., "MagmaDNN: towards high-performance deep learning using Magma", 2019, eq. (5).

    Attributes:
        epsilon: above 0; the initial value where it is trained.
        trained: whether epsilon is a parameter of the layer.
    """

    epsilon: float = 1.0
    trained: bool = False

    def __post_init__(self) -> None:
        above_zero(self, "epsilon", self.epsilon)

    def build(self, x: Operation) -> None:
        """The scale, if it is trained, in the dtype of x."""
        self.scale: Any = self.epsilon
        if self.trained:
            dtype = x.dtype if is_floating(x.dtype) else "float32"
            self.scale = self.parameter("epsilon", (), init.constant(self.epsilon), dtype)

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        y: Operation = ops.gaussian_rbf(x, self.scale)
        return y
