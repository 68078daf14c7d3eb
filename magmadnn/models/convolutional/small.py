"""Small networks for small images: LeNet-5, MagmaDNN's cnn_2d, and a network for CIFAR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magmadnn.errors import UnknownNameError
from magmadnn.layers import AveragePooling2D, Conv2D, Dense, Flatten, MaxPooling2D
from magmadnn.models._calls import network_call
from magmadnn.tensor import Operation, init
from magmadnn.training import Model

from .blocks import WeightsFile, check_outputs, dropped, finished, image_input, known_sizes


@network_call
def lenet5(
    input_shape: Sequence[int],
    outputs: int,
    *,
    filters: Sequence[int] = (6, 16),
    activation: str = "relu",
    pooling: str = "max",
    weights: WeightsFile = None,
    **options: Any,
) -> Model:
    """LeNet-5.

    LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", Proc. IEEE 86
    (1998), figure 2: convolutions of 5 x 5 with 6 and 16 filters, each followed by pooling of 2 x 2, dense
    layers of 120 and 84. It departs from the paper in what is usual by now: each filter sees all channels,
    pooling has no weights, the outputs are logits; activation and pooling are the paper's where they are
    asked for. The first convolution keeps the size, as if images of 28 x 28 were padded to 32 x 32. 61,706
    parameters for (28, 28, 1) and 10.

    Initial weights are uniform around 0 with variance 1 / fan-in, as `init.lecun_uniform` says.

    Args:
        input_shape: of one image: (height, width, channels), at least 12 x 12.
        outputs: number of classes.
        filters: of both convolutions; (32, 32) are MagmaDNN's.
        activation: of all layers but the last; "tanh" is the paper's.
        pooling: "average", the paper's, or "max".
        weights: a state dict as safetensors, with layers conv1, conv2, fc1, fc2, fc3.
        options: of `md.Model`: loss, optimizer, metrics, seed, ...
    """
    check_outputs("lenet5", outputs)
    inputs = image_input("lenet5", input_shape, 12, options)
    x: Operation = inputs
    kernel = init.lecun_uniform()
    pool = {"average": AveragePooling2D, "max": MaxPooling2D}
    if pooling not in pool:
        raise UnknownNameError.of("lenet5: pooling", pooling, pool)
    first, second = filters
    for name, count, padding in (("conv1", first, 2), ("conv2", second, 0)):
        x = Conv2D(count, 5, padding=padding, activation=activation, kernel_init=kernel, name=name)(
            x
        )
        x = pool[pooling](2)(x)
    before = known_sizes(x)
    x = Flatten()(x)
    for name, units in (("fc1", 120), ("fc2", 84)):
        x = Dense(units, activation=activation, kernel_init=kernel, name=name)(x)
    x = Dense(outputs, name="fc3")(x)
    return finished(inputs, x, weights, options, {"fc1": before})


@network_call
def cnn_2d(
    input_shape: Sequence[int], outputs: int, *, weights: WeightsFile = None, **options: Any
) -> Model:
    """MagmaDNN's example cnn_2d.

    Two convolutions of 5 x 5 with 32 filters and ReLU, each followed by max pooling of 2 x 2, dense layers
    of 768 and 500. (In MagmaDNN the dense layers have no activation; without one two of them make one
    linear map, so here they have ReLU.) Initial weights are He's.

    Args:
        input_shape: of one image: (height, width, channels), at least 16 x 16.
        outputs: number of classes.
        weights: a state dict as safetensors, with layers conv1, conv2, fc1, fc2, fc3.
        options: of `md.Model`.
    """
    check_outputs("cnn_2d", outputs)
    inputs = image_input("cnn_2d", input_shape, 16, options)
    x: Operation = inputs
    for name in ("conv1", "conv2"):
        x = Conv2D(32, 5, activation="relu", kernel_init=init.he_normal(), name=name)(x)
        x = MaxPooling2D(2)(x)
    return _dense(inputs, x, (768, 500), outputs, 0.0, weights, options)


@network_call
def cifar_cnn(
    input_shape: Sequence[int],
    outputs: int,
    *,
    dropout: float = 0.0,
    weights: WeightsFile = None,
    **options: Any,
) -> Model:
    """A small network for CIFAR: convolutions of 3 x 3, 32-32 and 64-64, and a dense layer of 256.

    All keep the size and have ReLU; max pooling of 2 x 2 follows each pair, in the manner of Simonyan,
    Zisserman, ICLR 2015. 1,116,970 parameters for (32, 32, 3) and 10. Initial weights are He's: He et al.,
    ICCV 2015, eq. (10).

    Args:
        input_shape: of one image: (height, width, channels), at least 4 x 4.
        outputs: number of classes.
        dropout: behind each pooling half of it, behind the dense layer all.
        weights: a state dict as safetensors, with layers conv1 to conv4, fc1, fc2.
        options: of `md.Model`.
    """
    check_outputs("cifar_cnn", outputs, dropout)
    inputs = image_input("cifar_cnn", input_shape, 4, options)
    x: Operation = inputs
    kernel = init.he_normal()
    for number, filters in enumerate((32, 32, 64, 64), 1):
        x = Conv2D(
            filters, 3, padding=1, activation="relu", kernel_init=kernel, name=f"conv{number}"
        )(x)
        if number % 2 == 0:
            x = dropped(MaxPooling2D(2)(x), dropout / 2)
    return _dense(inputs, x, (256,), outputs, dropout, weights, options)


def _dense(
    inputs: Any,
    x: Operation,
    sizes: Sequence[int],
    outputs: int,
    dropout: float,
    weights: WeightsFile,
    options: dict[str, Any],
) -> Model:
    """Dense layers behind a Flatten."""
    before = known_sizes(x)
    x = Flatten()(x)
    for number, units in enumerate(sizes, 1):
        x = Dense(units, activation="relu", kernel_init=init.he_normal(), name=f"fc{number}")(x)
        x = dropped(x, dropout)
    x = Dense(outputs, name=f"fc{len(sizes) + 1}")(x)
    return finished(inputs, x, weights, options, {"fc1": before})
