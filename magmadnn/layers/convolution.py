"""Conv2D: every output is a weighted sum over a window of the image."""

from __future__ import annotations

from typing import Any

from magmadnn import ops
from magmadnn.errors import ShapeError
from magmadnn.graph.signature import shape_text
from magmadnn.graph.spec import is_floating
from magmadnn.tensor import Operation, init
from magmadnn.tensor.init import Initializer

from .activations import ActivationLike, as_activation, settled
from .layer import Layer, Regularizer, positive
from .windows import Padding, Pair, as_pair, check_padding, shifted


class Conv2D(Layer):
    """`activation(sum over u, v of x[i s + u - p, j s + v - p] @ kernel[u, v] + bias)`.

    x [batch, height, width, channels] and kernel [kernel height, kernel width, channels, filters] give
    [batch, height', width', filters], with `height' = floor((height + padding - kernel height) / stride) +
    1`. Beyond the edge x is 0. The kernel is not mirrored. The windows of x are put side by side, and one
    matrix product takes them all (Chellapilla, Puri, Simard, IWFHR 2006, section 3.1), which needs kernel
    height * kernel width times the memory of x.

    Attributes:
        filters: channels of the output. kernel_size: height and width of the window; one number for both.
        strides: pixels between windows, likewise. padding: "valid" for none; "same" for as much as gives
        `height' = ceil(height / stride)`, one row more at
            the end where it is odd, as TensorFlow has it; or pixels on each side, one number or two.
        activation: name or function; None for none.
        use_bias: whether there is a bias.
        kernel_init: initial kernel; Glorot uniform.
        bias_init: initial bias; zeros.
        kernel_regularizer: adds to the loss.
        bias_regularizer: likewise.
    """

    filters: int
    kernel_size: Pair
    strides: Pair = 1
    padding: Padding = "valid"
    activation: ActivationLike = None
    use_bias: bool = True
    kernel_init: Initializer | str = init.glorot_uniform()
    bias_init: Initializer | str = init.zeros()
    kernel_regularizer: Regularizer | None = None
    bias_regularizer: Regularizer | None = None

    def __post_init__(self) -> None:
        self.activation = settled(self.activation)
        as_pair(self, "kernel_size", self.kernel_size)
        as_pair(self, "strides", self.strides)
        check_padding(self, self.padding)

    def build(self, x: Operation) -> None:
        """Kernel and bias, in the dtype of x."""
        filters = positive(self, "filters", self.filters)
        if x.ndim != 4:
            raise ShapeError(
                f"{self}: x must be images [batch, height, width, channels], got {shape_text(x.shape)}"
            )
        dtype: Any = x.dtype if is_floating(x.dtype) else "float32"
        shape = (*as_pair(self, "kernel_size", self.kernel_size), x.shape[-1], filters)
        self.kernel = self.parameter(
            "kernel", shape, self.kernel_init, dtype, regularizer=self.kernel_regularizer
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.parameter(
                "bias", (filters,), self.bias_init, dtype, regularizer=self.bias_regularizer
            )

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        windows = shifted(self, x, self.kernel_size, self.strides, self.padding, 0.0)
        joined = ops.concat(windows, axis=-1) if len(windows) > 1 else windows[0]
        flat = ops.reshape(self.kernel, (-1, self.filters))  # [window * channels, filters]
        y: Operation = ops.linear(joined, flat, self.bias)
        activated: Operation = as_activation(self.activation)(y)
        return activated
