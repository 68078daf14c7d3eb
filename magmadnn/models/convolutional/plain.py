"""AlexNet and VGG16: convolutions and pooling in a row, large dense layers at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magmadnn.errors import UnknownNameError
from magmadnn.layers import (
    AdaptiveAveragePooling2D,
    Conv2D,
    Dense,
    Flatten,
    LocalResponseNormalization,
    MaxPooling2D,
)
from magmadnn.models._calls import network_call
from magmadnn.tensor import Operation, Placeholder, init
from magmadnn.training import Model

from .blocks import (
    WeightsFile,
    check_outputs,
    dropped,
    finished,
    image_input,
    is_small,
    known_sizes,
)

_VGG16 = (
    64,
    64,
    0,
    128,
    128,
    0,
    256,
    256,
    256,
    0,
    512,
    512,
    512,
    0,
    512,
    512,
    512,
    0,
)  # 0: pooling


@network_call
def alexnet(
    input_shape: Sequence[int],
    outputs: int,
    *,
    dropout: float = 0.5,
    normalization: str = "none",
    weights: WeightsFile = None,
    **options: Any,
) -> Model:
    """AlexNet on one device.

    Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014, footnote 1: the
    network of Krizhevsky, Sutskever, Hinton, NIPS 2012, without its two halves, and without local response
    normalisation unless asked for, as torchvision has it. 61,100,840 parameters for (224, 224, 3) and 1000.
    Initial weights are those of 2012, section 5: normal with standard deviation 0.01; biases of the second,
    fourth and fifth convolution and of the hidden dense layers 1, others 0. Images of up to 32 x 32 go
    through a first convolution of 5 x 5 with stride 1. Where more than 6 x 6 places are left, as of images
    above 224 x 224, means of 6 x 6 bins go into the dense layers, as in torchvision.

    Args:
        input_shape: of one image: (height, width, channels), at least 15 x 15, or 63 x 63 above 32.
        outputs: number of classes.
        dropout: before both hidden dense layers.
        normalization: "none", or "local_response" before the first two poolings, as in 2012, section 3.3.
        weights: torchvision's state dict as safetensors.
        options: of `md.Model`.
    """
    check_outputs("alexnet", outputs, dropout)
    ways = ("none", "local_response")
    if normalization not in ways:
        raise UnknownNameError.of("alexnet: normalization", normalization, ways)
    small = is_small(input_shape)
    inputs = image_input("alexnet", input_shape, 15 if small else 63, options)
    x: Operation = inputs
    first = (64, 5, 1, 2, 0.0) if small else (64, 11, 4, 2, 0.0)
    rest = ((192, 5, 1, 2, 1.0), (384, 3, 1, 1, 0.0), (256, 3, 1, 1, 1.0), (256, 3, 1, 1, 1.0))
    for place, (filters, size, strides, padding, bias) in zip(
        (0, 3, 6, 8, 10), (first, *rest), strict=True
    ):
        x = Conv2D(
            filters, size, strides=strides, padding=padding, activation="relu",
            kernel_init=init.normal(0.0, 0.01), bias_init=init.constant(bias), name=f"features.{place}",
        )(x)  # fmt: skip
        if place in (0, 3) and normalization == "local_response":
            x = LocalResponseNormalization()(x)
        if place in (0, 3, 10):
            x = MaxPooling2D(3, strides=2)(x)
    x = _at_most(x, 6)
    dense = {"kernel_init": init.normal(0.0, 0.01), "bias_init": init.constant(1.0)}
    names = ("classifier.1", "classifier.4", "classifier.6")
    return _classified(inputs, x, outputs, names, dropout, (True, False), dense, weights, options)


@network_call
def vgg16(
    input_shape: Sequence[int],
    outputs: int,
    *,
    dropout: float = 0.5,
    weights: WeightsFile = None,
    **options: Any,
) -> Model:
    """VGG with 16 layers with weights.

    Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015,
    table 1, column D. 138,357,544 parameters for (224, 224, 3) and 1000. Initial weights are He's (He et
    al., ICCV 2015, eq. (10)), with which such a network can be trained at once; the paper began with a
    shallower one. Where more than 7 x 7 places are left, as of images above 224 x 224, means of 7 x 7 bins go
    into the dense layers, as in torchvision.

    Args:
        input_shape: of one image: (height, width, channels), at least 32 x 32.
        outputs: number of classes.
        dropout: behind both hidden dense layers.
        weights: torchvision's state dict as safetensors.
        options: of `md.Model`.
    """
    check_outputs("vgg16", outputs, dropout)
    inputs = image_input("vgg16", input_shape, 32, options)
    x: Operation = inputs
    place = 0  # of torchvision's list, in which each ReLU and pooling counts
    for filters in _VGG16:
        if filters:
            x = Conv2D(
                filters, 3, padding=1, activation="relu", kernel_init=init.he_normal(),
                name=f"features.{place}",
            )(x)  # fmt: skip
            place += 2
        else:
            x = MaxPooling2D(2)(x)
            place += 1
    x = _at_most(x, 7)
    names = ("classifier.0", "classifier.3", "classifier.6")
    dense = {"kernel_init": init.he_normal()}
    return _classified(inputs, x, outputs, names, dropout, (False, True), dense, weights, options)


def _at_most(x: Operation, size: int) -> Operation:
    """Images that are larger than size x size as means of so many bins; smaller ones as they are."""
    larger = min(known_sizes(x)[:2]) >= size and max(known_sizes(x)[:2]) > size
    return AdaptiveAveragePooling2D(size)(x) if larger else x


def _classified(
    inputs: Placeholder,
    x: Operation,
    outputs: int,
    names: tuple[str, str, str],
    dropout: float,
    around: tuple[bool, bool],
    dense: Mapping[str, Any],
    weights: WeightsFile,
    options: Mapping[str, Any],
) -> Model:
    """Two dense layers of 4096 and the outputs; dropout before or behind each of the two."""
    before = known_sizes(x)
    x = Flatten()(x)
    for name in names[:2]:
        x = dropped(x, dropout if around[0] else 0.0)
        x = Dense(4096, activation="relu", name=name, **dense)(x)
        x = dropped(x, dropout if around[1] else 0.0)
    x = Dense(outputs, kernel_init=init.normal(0.0, 0.01), name=names[2])(x)
    return finished(inputs, x, weights, options, {names[0]: before})
