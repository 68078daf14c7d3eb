"""GoogLeNet and DenseNet: networks that put channels of several branches side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from magmadnn.layers import (
    Activation,
    AveragePooling2D,
    BatchNorm,
    Concatenate,
    Conv2D,
    Dense,
    Flatten,
    GlobalAveragePooling2D,
    LocalResponseNormalization,
    MaxPooling2D,
)
from magmadnn.models._calls import network_call
from magmadnn.tensor import Operation, init
from magmadnn.training import Model

from .blocks import (
    WeightsFile,
    check_outputs,
    conv_norm,
    dropped,
    finished,
    image_input,
    is_papers,
    is_small,
    known_sizes,
)

# Filters of an inception block: 1 x 1; before and of the first 3 x 3; of the second; behind the pooling.
_INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
_EPSILON = 1e-3  # of GoogLeNet's batch normalisation, as torchvision has it
_GROWTH = 32


@network_call
def googlenet(
    input_shape: Sequence[int],
    outputs: int,
    *,
    aux: bool = False,
    dropout: float = 0.2,
    variant: str = "torchvision",
    weights: WeightsFile = None,
    **options: Any,
) -> Model:
    """GoogLeNet with batch normalisation.

    Szegedy et al., "Going deeper with convolutions", CVPR 2015, table 1, with batch normalisation (Ioffe,
    Szegedy, ICML 2015) in place of local response normalisation and biases, as torchvision has it; also
    from there, branches of 5 x 5 have kernels of 3 x 3. 6,624,904 parameters for (224, 224, 3) and 1000,
    13,004,888 with the auxiliary heads. The paper's variant has all three as in the paper: 6,998,552 and
    13,378,280. Initial kernels are He's. Images of up to 32 x 32 go through a stem
    without strides and pooling.

    Args:
        input_shape: of one image: (height, width, channels); at least 8 x 8, with heads 80 x 80.
        outputs: number of classes.
        aux: whether the auxiliary heads are outputs too, behind the main one: section 5 gives their losses
            the weight 0.3, `loss_weights=[1, 0.3, 0.3]`.
        dropout: before the outputs; 0.2 as torchvision has it, 0.4 in the paper; of the heads 0.7.
        variant: "torchvision" or "paper".
        weights: torchvision's state dict as safetensors; with heads where there are heads.
        options: of `md.Model`.
    """
    check_outputs("googlenet", outputs, dropout)
    small = is_small(input_shape)
    inputs = image_input("googlenet", input_shape, 80 if aux else 8, options)
    x: Operation = inputs
    unit = _plain_unit if is_papers("googlenet", variant) else _unit
    x = unit(x, 64, 3 if small else 7, "conv1", 1 if small else 2)
    x = x if small else _halved(x)
    x = LocalResponseNormalization()(x) if unit is _plain_unit else x
    x = unit(unit(x, 64, 1, "conv2"), 192, 3, "conv3")
    x = LocalResponseNormalization()(x) if unit is _plain_unit else x
    x = x if small else _halved(x)
    heads: list[Operation] = []
    flattened: dict[str, tuple[int, ...]] = {}
    for name, filters in _INCEPTION.items():
        if name == "4a":
            x = _halved(x)
        elif name == "5a":
            x = MaxPooling2D(2, padding="same")(x)
        x = _inception(x, filters, f"inception{name}", unit)
        if aux and name in ("4a", "4d"):
            head = f"aux{len(heads) + 1}"
            made, flattened[f"{head}.fc1"] = _head(x, outputs, head, unit)
            heads.append(made)
    x = dropped(GlobalAveragePooling2D()(x), dropout)
    found = [Dense(outputs, name="fc")(x), *heads]
    return finished(inputs, found if heads else found[0], weights, options, flattened)


def _halved(x: Operation) -> Operation:
    """Max pooling of 3 x 3 with stride 2; the last window may hang over the edge: ceil((n - 3) / 2) + 1."""
    odd = all(n % 2 for n in known_sizes(x)[:2])  # such sizes need no padding for that
    return MaxPooling2D(3, strides=2, padding="valid" if odd else "same")(x)


def _unit(x: Operation, filters: int, size: int, name: str, strides: int = 1) -> Operation:
    names = (f"{name}.conv", f"{name}.bn")
    return conv_norm(x, filters, size, names, strides=strides, padding=size // 2, epsilon=_EPSILON)


def _plain_unit(x: Operation, filters: int, size: int, name: str, strides: int = 1) -> Operation:
    """A convolution with bias and ReLU, as in the paper."""
    return Conv2D(
        filters, size, strides=strides, padding=size // 2, activation="relu",
        kernel_init=init.he_normal(), name=f"{name}.conv",
    )(x)  # fmt: skip


_Unit = Callable[..., Operation]


def _inception(x: Operation, filters: Sequence[int], name: str, unit: _Unit) -> Operation:
    """Four branches side by side: figure 2 (b)."""
    one, before3, three, before5, five, behind = filters
    large = 5 if unit is _plain_unit else 3
    pooled = MaxPooling2D(3, strides=1, padding="same")(x)
    branches = [
        unit(x, one, 1, f"{name}.branch1"),
        unit(unit(x, before3, 1, f"{name}.branch2.0"), three, 3, f"{name}.branch2.1"),
        unit(unit(x, before5, 1, f"{name}.branch3.0"), five, large, f"{name}.branch3.1"),
        unit(pooled, behind, 1, f"{name}.branch4.1"),
    ]
    return Concatenate()(branches)


def _head(x: Operation, outputs: int, name: str, unit: _Unit) -> tuple[Operation, tuple[int, ...]]:
    """An auxiliary head, and the shape before its Flatten: section 5."""
    x = unit(AveragePooling2D(5, strides=3)(x), 128, 1, f"{name}.conv")
    before = known_sizes(x)
    kernel = init.he_normal()
    x = Dense(1024, activation="relu", kernel_init=kernel, name=f"{name}.fc1")(Flatten()(x))
    return Dense(outputs, name=f"{name}.fc2")(dropped(x, 0.7)), before


@network_call
def densenet121(
    input_shape: Sequence[int], outputs: int, *, weights: WeightsFile = None, **options: Any
) -> Model:
    """DenseNet with 121 layers with weights.

    Huang, Liu, van der Maaten, Weinberger, "Densely connected convolutional networks", CVPR 2017, table 1
    (DenseNet-BC with growth rate 32). 7,978,856 parameters for (224, 224, 3) and 1000. Initial kernels are
    He's, as in section 4.2. Images of up to 32 x 32 go through a first convolution of 3 x 3 with stride 1,
    without pooling.

    Args:
        input_shape: of one image: (height, width, channels), at least 8 x 8.
        outputs: number of classes.
        weights: torchvision's state dict as safetensors.
        options: of `md.Model`.
    """
    check_outputs("densenet121", outputs)
    inputs = image_input("densenet121", input_shape, 8, options)
    x: Operation = inputs
    names = ("features.conv0", "features.norm0")
    if is_small(input_shape):
        x = conv_norm(x, 64, 3, names, padding=1)
    else:
        x = conv_norm(x, 64, 7, names, strides=2, padding=3)
        x = MaxPooling2D(3, strides=2, padding=1)(x)
    for block, count in enumerate((6, 12, 24, 16), 1):
        for k in range(1, count + 1):
            name = f"features.denseblock{block}.denselayer{k}"
            x = Concatenate()([x, _dense_layer(x, name)])
        if block < 4:
            name = f"features.transition{block}"
            x = _normed(x, f"{name}.norm")
            x = _convolved(x, known_sizes(x)[-1] // 2, 1, f"{name}.conv")
            x = AveragePooling2D(2)(x)
    x = GlobalAveragePooling2D()(_normed(x, "features.norm5"))
    return finished(inputs, Dense(outputs, name="classifier")(x), weights, options)


def _dense_layer(x: Operation, name: str) -> Operation:
    """BN, ReLU, convolution of 1 x 1 to four times the growth, BN, ReLU, convolution of 3 x 3."""
    x = _convolved(_normed(x, f"{name}.norm1"), 4 * _GROWTH, 1, f"{name}.conv1")
    return _convolved(_normed(x, f"{name}.norm2"), _GROWTH, 3, f"{name}.conv2")


def _normed(x: Operation, name: str) -> Operation:
    return Activation("relu")(BatchNorm(name=name)(x))


def _convolved(x: Operation, filters: int, size: int, name: str) -> Operation:
    return Conv2D(
        filters, size, padding=size // 2, use_bias=False, kernel_init=init.he_normal(), name=name
    )(x)
