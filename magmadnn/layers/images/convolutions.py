"""Convolutions of sequences, images and volumes, channels last."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

from magmadnn import ops
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.signature import OpWords, is_integer
from magmadnn.layers.activations import ActivationLike, as_activation, settled
from magmadnn.layers.checks import check_places, positive
from magmadnn.layers.layer import Layer, Regularizer
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops.images.convolutions import ALGORITHMS
from magmadnn.ops.images.windows import counts_of, one_of, pairs_of
from magmadnn.tensor import Operation, init
from magmadnn.tensor.init import Initializer

Count = int | tuple[int, ...] | list[int]
Padding = str | Count | tuple[tuple[int, int], ...] | list[tuple[int, int]]


class _Convolution(Layer):
    """What the convolutions share: settings, kernel and bias."""

    filters: int
    kernel_size: Count
    _: KW_ONLY
    strides: Count = 1
    padding: Padding = "valid"
    dilation: Count = 1
    groups: int = 1
    activation: ActivationLike = None
    use_bias: bool = True
    kernel_init: Initializer | str = init.glorot_uniform()
    bias_init: Initializer | str = init.zeros()
    kernel_regularizer: Regularizer | None = None
    bias_regularizer: Regularizer | None = None

    _PLACES: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        self.activation = settled(self.activation)
        axes, words = len(self._PLACES), OpWords(str(self), ("x",), "")
        for what in ("kernel_size", "strides", "dilation"):
            counts_of(words, what, getattr(self, what), axes)
        if self.padding not in ("valid", "same"):
            pairs_of(words, self.padding, axes)

    def build(self, x: Operation) -> None:
        """Kernel and bias, in the dtype of x."""
        filters = positive(self, "filters", self.filters)
        check_places(self, x, self._PLACES)
        channels = x.shape[-1]
        if not is_integer(self.groups) or self.groups < 1:
            raise ArgumentError(f"{self}: groups must be an integer from 1, got {self.groups!r}")
        for what, count in (("channels", channels), ("filters", filters)):
            if isinstance(count, int) and count % self.groups:
                raise ShapeError(f"{self}: {count} {what} do not divide into {self.groups} groups")
        size = counts_of(
            OpWords(str(self), ("x",), ""), "kernel_size", self.kernel_size, len(self._PLACES)
        )
        dtype = x.dtype if is_floating(x.dtype) else "float32"
        self.kernel = self.parameter(
            "kernel",
            (*size, *self._sides(channels // self.groups, filters // self.groups)),
            self.kernel_init,
            dtype,
            regularizer=self.kernel_regularizer,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.parameter(
                "bias", (filters,), self.bias_init, dtype, regularizer=self.bias_regularizer
            )

    def _sides(self, channels: Any, filters: int) -> tuple[Any, ...]:
        """The last two sizes of the kernel, for the channels and filters of one group."""
        return channels, filters * self.groups

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        y = self._product(x)
        if self.bias is not None:
            y = ops.add(y, self.bias)
        activated: Operation = as_activation(self.activation)(y)
        return activated

    def _product(self, x: Operation) -> Operation:
        y: Operation = ops.convolution(x, self.kernel, **self._geometry())
        return y

    def _geometry(self) -> dict[str, Any]:
        return {
            "strides": self.strides,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }


class _Transposed(_Convolution):
    """The transpose of a convolution, which makes images larger."""

    def _sides(self, channels: Any, filters: int) -> tuple[Any, ...]:
        return filters, channels * self.groups

    def _product(self, x: Operation) -> Operation:
        y: Operation = ops.convolution_transposed(x, self.kernel, **self._geometry())
        return y


class Conv1D(_Convolution):
    """Convolution of sequences: x [n, time, c], kernel [size, c / groups, filters] -> [n, windows, filters].

    `activation(sum over t and i of x[n, p stride + t dilation - pad, i] kernel[t, i, o] + bias[o])`

    Attributes:
        filters: channels of the result.
        kernel_size: places of a window.
        strides: from one window to the next.
        padding: "valid" for none, "same" for as many windows as places divided by the stride, rounded up (as
            TensorFlow defines it), or places that are added at both ends.
        dilation: from one place of a window to the next.
        groups: equal parts of channels and filters, each of which sees its own.
        activation: name or function; None for none.
        use_bias: whether there is a bias.
        kernel_init: initial kernel; Glorot uniform.
        bias_init: initial bias; zeros.
        kernel_regularizer: adds to the loss, for instance `md.layers.L2(1e-4)`.
        bias_regularizer: likewise.
    """

    _PLACES = ("time",)


class Conv2D(_Convolution):
    """Convolution of images: x [n, height, width, c], kernel [kh, kw, c / groups, filters].

    Gives `[n, rows, columns, filters]`; settings as of `Conv1D`, sizes as one number or (height, width).

    Attributes:
        filters: channels of the result.
        kernel_size: places of a window.
        strides: from one window to the next.
        padding: "valid" for none, "same" for as many windows as places divided by the stride, rounded up (as
            TensorFlow defines it), or places that are added on all sides: a number, one for each axis, or
            pairs (before, after).
        dilation: from one place of a window to the next.
        groups: equal parts of channels and filters, each of which sees its own; as many as channels and
            filters make a depthwise convolution.
        activation: name or function; None for none.
        use_bias: whether there is a bias.
        kernel_init: initial kernel; Glorot uniform.
        bias_init: initial bias; zeros.
        kernel_regularizer: adds to the loss, for instance `md.layers.L2(1e-4)`.
        bias_regularizer: likewise.
        algorithm: on a processor, "direct", "winograd" (3 x 3 filters in float32, without strides, dilation
            or groups: a quarter of the multiplications, errors of some 1e-5 of the largest result),
            "winograd_2x2" (likewise: 4 of 9 multiplications, errors as of "direct"), "fft" (likewise without,
            for large filters: some 20 x 20 or more), or "auto", which takes "winograd" where there are many
            channels. On a GPU cuDNN chooses.
    """

    _: KW_ONLY
    algorithm: str = "auto"

    _PLACES = ("height", "width")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(OpWords(str(self), ("x",), ""), "algorithm", self.algorithm, ALGORITHMS)

    def _geometry(self) -> dict[str, Any]:
        return {**super()._geometry(), "algorithm": self.algorithm}


class Conv3D(_Convolution):
    """Convolution of volumes: x [n, depth, height, width, c], kernel [kd, kh, kw, c / groups, filters].

    Settings as of `Conv2D`.
    """

    _PLACES = ("depth", "height", "width")


class Conv1DTranspose(_Transposed):
    """Transposed convolution of sequences: x [n, time, c], kernel [size, filters / groups, c].

    Every place of x adds its multiple of the kernel to the result, `strides` apart: see
    `md.ops.convolution_transposed` for the sizes. Settings as of `Conv1D`.
    """

    _PLACES = ("time",)


class Conv2DTranspose(_Transposed):
    """Transposed convolution of images: x [n, height, width, c], kernel [kh, kw, filters / groups, c].

    Every place of x adds its multiple of the kernel to the result, `strides` apart: see
    `md.ops.convolution_transposed` for the sizes. Settings as of `Conv2D`.
    """

    _PLACES = ("height", "width")


class Conv3DTranspose(_Transposed):
    """Transposed convolution of volumes: x [n, depth, height, width, c].

    The kernel is [kd, kh, kw, filters / groups, c]. Every place of x adds its multiple of the kernel to the
    result, `strides` apart: see `md.ops.convolution_transposed` for the sizes. Settings as of `Conv2D`.
    """

    _PLACES = ("depth", "height", "width")
