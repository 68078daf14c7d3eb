"""ResNets: residual blocks, for photographs and for CIFAR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magmadnn import ops
from magmadnn.layers import Activation, Add, Dense, GlobalAveragePooling2D, MaxPooling2D
from magmadnn.models._calls import network_call
from magmadnn.tensor import Operation
from magmadnn.training import Model

from .blocks import (
    WeightsFile,
    check_outputs,
    conv_norm,
    finished,
    image_input,
    is_papers,
    is_small,
    known_sizes,
)


@network_call
def resnet18(
    input_shape: Sequence[int], outputs: int, *, weights: WeightsFile = None, **options: Any
) -> Model:
    """ResNet with 18 layers with weights.

    He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, table 1; shortcuts that
    change sizes are convolutions of 1 x 1 (option B). 11,689,512 parameters for (224, 224, 3) and 1000.
    Initial kernels are He's (ICCV 2015, eq. (10)). Images of up to 32 x 32 go through a first convolution
    of 3 x 3 with stride 1, without pooling.

    Args:
        input_shape: of one image: (height, width, channels).
        outputs: number of classes.
        weights: torchvision's state dict as safetensors.
        options: of `md.Model`.
    """
    return _resnet("resnet18", (2, 2, 2, 2), False, input_shape, outputs, weights, options)


@network_call
def resnet34(
    input_shape: Sequence[int], outputs: int, *, weights: WeightsFile = None, **options: Any
) -> Model:
    """ResNet with 34 layers with weights: 21,797,672 parameters for (224, 224, 3) and 1000.

    See `resnet18`.

    Args:
        input_shape: of one image: (height, width, channels).
        outputs: number of classes.
        weights: torchvision's state dict as safetensors.
        options: of `md.Model`.
    """
    return _resnet("resnet34", (3, 4, 6, 3), False, input_shape, outputs, weights, options)


@network_call
def resnet50(
    input_shape: Sequence[int],
    outputs: int,
    *,
    variant: str = "torchvision",
    weights: WeightsFile = None,
    **options: Any,
) -> Model:
    """ResNet with 50 layers with weights: 25,557,032 parameters for (224, 224, 3) and 1000.

    See `resnet18`; blocks are bottlenecks. In a block that halves the size the convolution of 3 x 3 has the
    stride, as torchvision has it; in the paper's variant the one of 1 x 1 before.

    Args:
        input_shape: of one image: (height, width, channels).
        outputs: number of classes.
        variant: "torchvision" or "paper".
        weights: torchvision's state dict as safetensors.
        options: of `md.Model`.
    """
    early = is_papers("resnet50", variant)
    return _resnet("resnet50", (3, 4, 6, 3), True, input_shape, outputs, weights, options, early)


@network_call
def resnet20(
    input_shape: Sequence[int],
    outputs: int,
    *,
    variant: str = "torchvision",
    weights: WeightsFile = None,
    **options: Any,
) -> Model:
    """ResNet for CIFAR with 20 layers with weights.

    He, Zhang, Ren, Sun, CVPR 2016, section 4.2, with n = 3: three stages of n blocks with 16, 32 and 64
    filters. 272,474 parameters for (32, 32, 3) and 10. Shortcuts that change sizes are convolutions of 1 x
    1, as in torchvision's networks (option B of the paper); in the paper's variant every second place, and
    zeros for further channels (option A, 269,722 parameters).

    Args:
        input_shape: of one image: (height, width, channels), at least 4 x 4.
        outputs: number of classes.
        variant: "torchvision" or "paper".
        weights: a state dict as safetensors, with torchvision's names of layers.
        options: of `md.Model`.
    """
    return _cifar("resnet20", 3, input_shape, outputs, variant, weights, options)


@network_call
def resnet56(
    input_shape: Sequence[int],
    outputs: int,
    *,
    variant: str = "torchvision",
    weights: WeightsFile = None,
    **options: Any,
) -> Model:
    """ResNet for CIFAR with 56 layers with weights, n = 9: 855,770 parameters for (32, 32, 3) and 10.

    See `resnet20`; the paper's variant has 853,018.

    Args:
        input_shape: of one image: (height, width, channels), at least 4 x 4.
        outputs: number of classes.
        variant: "torchvision" or "paper".
        weights: a state dict as safetensors, with torchvision's names of layers.
        options: of `md.Model`.
    """
    return _cifar("resnet56", 9, input_shape, outputs, variant, weights, options)


def _resnet(
    network: str,
    blocks: Sequence[int],
    bottleneck: bool,
    input_shape: Sequence[int],
    outputs: int,
    weights: WeightsFile,
    options: dict[str, Any],
    early: bool = False,
) -> Model:
    check_outputs(network, outputs)
    inputs = image_input(network, input_shape, 8, options)
    x: Operation = inputs
    if is_small(input_shape):
        x = conv_norm(x, 64, 3, ("conv1", "bn1"), padding=1)
    else:
        x = conv_norm(x, 64, 7, ("conv1", "bn1"), strides=2, padding=3)
        x = MaxPooling2D(3, strides=2, padding=1)(x)
    x = _stages(x, (64, 128, 256, 512), blocks, bottleneck, early=early)
    x = GlobalAveragePooling2D()(x)
    return finished(inputs, Dense(outputs, name="fc")(x), weights, options)


def _cifar(
    network: str,
    n: int,
    input_shape: Sequence[int],
    outputs: int,
    variant: str,
    weights: WeightsFile,
    options: dict[str, Any],
) -> Model:
    check_outputs(network, outputs)
    bare = is_papers(network, variant)
    inputs = image_input(network, input_shape, 4, options)
    x: Operation = inputs
    x = conv_norm(x, 16, 3, ("conv1", "bn1"), padding=1)
    x = _stages(x, (16, 32, 64), (n, n, n), False, bare=bare)
    x = GlobalAveragePooling2D()(x)
    return finished(inputs, Dense(outputs, name="fc")(x), weights, options)


def _stages(
    x: Operation,
    widths: Sequence[int],
    blocks: Sequence[int],
    bottleneck: bool,
    *,
    early: bool = False,
    bare: bool = False,
) -> Operation:
    """Stages of blocks; each but the first halves height and width.

    `early`: by the first convolution of a bottleneck; `bare`: with shortcuts without weights.
    """
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True), 1):
        for k in range(count):
            strides = 2 if stage > 1 and k == 0 else 1
            name = f"layer{stage}.{k}"
            y = _block(x, width, strides, name, bottleneck, early)
            if x.shape[1:] != y.shape[1:]:
                filters = known_sizes(y)[-1]
                around = (f"{name}.downsample.0", f"{name}.downsample.1")
                x = (
                    _every_second(x, filters)
                    if bare
                    else conv_norm(x, filters, 1, around, strides=strides, relu=False)
                )
            x = Activation("relu")(Add()(y, x))
    return x


def _block(
    x: Operation, width: int, strides: int, name: str, bottleneck: bool, early: bool
) -> Operation:
    """F(x) of `relu(F(x) + x)`, or `+ projection(x)`: eq. (1) and (2)."""

    def names(number: int) -> tuple[str, str]:
        return f"{name}.conv{number}", f"{name}.bn{number}"

    if bottleneck:
        first, second = (strides, 1) if early else (1, strides)
        y = conv_norm(x, width, 1, names(1), strides=first)
        y = conv_norm(y, width, 3, names(2), strides=second, padding=1)
        return conv_norm(y, 4 * width, 1, names(3), relu=False)
    y = conv_norm(x, width, 3, names(1), strides=strides, padding=1)
    return conv_norm(y, width, 3, names(2), padding=1, relu=False)


def _every_second(x: Operation, filters: int) -> Operation:
    """Every second row and column, and zeros as further channels: option A of section 4.2."""
    taken = x[:, ::2, ::2]
    more = filters - known_sizes(x)[-1]
    y: Operation = ops.pad(taken, ((0, 0), (0, 0), (0, 0), (0, more)))
    return y
