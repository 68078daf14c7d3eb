"""Dense: every output is a weighted sum of all inputs."""

from __future__ import annotations

from magmadnn import ops
from magmadnn.errors import ShapeError
from magmadnn.memory.dtypes import is_floating
from magmadnn.tensor import Operation, init
from magmadnn.tensor.init import Initializer

from .activations import ActivationLike, as_activation, settled
from .checks import positive
from .layer import Layer, Regularizer


class Dense(Layer):
    """`activation(x @ kernel + bias)`: x [..., k], kernel [k, units], bias [units] -> [..., units].

    Attributes:
        units: number of outputs.
        activation: name or function; None for none.
        use_bias: whether there is a bias.
        kernel_init: initial kernel; Glorot uniform.
        bias_init: initial bias; zeros.
        kernel_regularizer: adds to the loss, for instance `md.layers.L2(1e-4)`.
        bias_regularizer: likewise.
    """

    units: int
    activation: ActivationLike = None
    use_bias: bool = True
    kernel_init: Initializer | str = init.glorot_uniform()
    bias_init: Initializer | str = init.zeros()
    kernel_regularizer: Regularizer | None = None
    bias_regularizer: Regularizer | None = None

    def __post_init__(self) -> None:
        self.activation = settled(self.activation)

    def build(self, x: Operation) -> None:
        """Kernel and bias, in the dtype of x."""
        units = positive(self, "units", self.units)
        if not x.shape:
            raise ShapeError(f"{self}: x needs at least one axis, got a scalar")
        dtype = x.dtype if is_floating(x.dtype) else "float32"
        self.kernel = self.parameter(
            "kernel",
            (x.shape[-1], units),
            self.kernel_init,
            dtype,
            regularizer=self.kernel_regularizer,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.parameter(
                "bias", (units,), self.bias_init, dtype, regularizer=self.bias_regularizer
            )

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        y: Operation = ops.linear(x, self.kernel, self.bias)
        activated: Operation = as_activation(self.activation)(y)
        return activated
