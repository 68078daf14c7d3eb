"""What the networks are made of: a convolution with what follows it, and the model at the end.

Layers have the names that torchvision gives its modules, so that weights go by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, ShapeError, UnknownNameError
from magmadnn.graph.signature import is_integer
from magmadnn.layers import Activation, BatchNorm, Conv2D, Dropout, Input
from magmadnn.tensor import Operation, Placeholder, init
from magmadnn.tensor.init import Initializer
from magmadnn.training import Model

from .torch_weights import load_torch_weights

_COLOURS = 4  # channels of an image, at most
SMALL = 32  # pixels: up to here images go through the stem for small ones

VARIANTS = ("torchvision", "paper")
WeightsFile = str | os.PathLike[str] | None


def image_input(
    network: str, input_shape: Sequence[int], least: int, options: Mapping[str, Any]
) -> Placeholder:
    """The input for images, in the dtype that a model with these options computes in.

    Raises:
        ShapeError: if the shape is none of images, or these are too small for the network.
    """
    sized = isinstance(input_shape, Sequence | np.ndarray) and not isinstance(input_shape, str)
    given = tuple(input_shape) if sized else ()
    if len(given) != 3 or not all(is_integer(n) and n >= 1 for n in given):
        raise ShapeError(
            f"{network}: expected images, input_shape (height, width, channels), got {input_shape!r}"
        )
    shape = tuple(map(int, given))
    if min(shape[:2]) < least:
        way = "scale them up, or choose a smaller network"
        if shape[0] <= _COLOURS < least <= min(shape[1:]):
            way = f"channels come last: write {(*shape[1:], shape[0])}, and np.moveaxis(x, 1, -1) of images"
        raise ShapeError(
            f"{network}: needs images of at least {least} x {least}, got {shape[0]} x {shape[1]}: {way}"
        )
    made: Placeholder = Input(
        shape, "float64" if options.get("precision") == "float64" else "float32"
    )
    return made


def known_sizes(x: Operation) -> tuple[int, ...]:
    """The shape of a sample, all of which is known for images."""
    return tuple(int(n) for n in x.shape[1:] if isinstance(n, int))


def is_small(input_shape: Sequence[int]) -> bool:
    """Whether images go through the stem for small ones."""
    return max(input_shape[:2]) <= SMALL


def check_outputs(network: str, outputs: int, dropout: float = 0.0) -> None:
    """Look at what every network is given.

    Raises:
        ArgumentError: if a number is out of range.
    """
    if not is_integer(outputs) or outputs < 1:
        raise ArgumentError(
            f"{network}: outputs must be a whole number of at least 1, got {outputs!r}"
        )
    if not 0.0 <= dropout < 1.0:
        raise ArgumentError(f"{network}: dropout must be at least 0 and below 1, got {dropout!r}")


def is_papers(network: str, variant: str) -> bool:
    """Whether the network of the paper is wanted, where torchvision's differs.

    Raises:
        UnknownNameError: if the variant is neither.
    """
    if variant not in VARIANTS:
        raise UnknownNameError.of(f"{network}: variant", variant, VARIANTS)
    return variant == "paper"


def conv_norm(
    x: Operation,
    filters: int,
    size: int,
    names: tuple[str, str],
    *,
    strides: int = 1,
    padding: int = 0,
    epsilon: float = 1e-5,
    kernel_init: Initializer | None = None,
    relu: bool = True,
) -> Operation:
    """Convolution without bias, batch normalisation, and ReLU unless not wanted."""
    x = Conv2D(
        filters,
        size,
        strides=strides,
        padding=padding,
        use_bias=False,
        kernel_init=kernel_init or init.he_normal(),
        name=names[0],
    )(x)
    x = BatchNorm(epsilon=epsilon, name=names[1])(x)
    return Activation("relu")(x) if relu else x


def dropped(x: Operation, rate: float) -> Operation:
    """With dropout, where there is some."""
    return Dropout(rate)(x) if rate else x


def finished(
    inputs: Placeholder,
    outputs: Operation | list[Operation],
    weights: WeightsFile,
    options: Mapping[str, Any],
    flattened: Mapping[str, tuple[int, ...]] | None = None,
) -> Model:
    """The model, with the weights in a file where there is one.

    Args:
        inputs: of the model.
        outputs: likewise.
        weights: a torchvision state dict as safetensors.
        options: of `Model`.
        flattened: dense layers behind a Flatten, with the shape [height, width, channels] before it.
    """
    model = Model(inputs=inputs, outputs=outputs, **options)
    if weights is not None:
        load_torch_weights(model, weights, flattened or {})
    return model
