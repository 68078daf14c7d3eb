"""mlp, the multi-layer perceptron: dense layers in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magmadnn.errors import ArgumentError
from magmadnn.graph.signature import is_integer
from magmadnn.layers import Dense, Dropout, Flatten, Input
from magmadnn.tensor import init
from magmadnn.training import Model

from ._calls import network_call
from .network import Network, Preset

_LIKE_RELU = ("relu", "leaky_relu", "elu", "gelu", "swish", "softplus")


@network_call
def mlp(
    input_shape: Sequence[int],
    outputs: int,
    *,
    hidden: Sequence[int] = (512, 512),
    activation: str = "relu",
    dropout: float = 0.0,
    **options: Any,
) -> Model:
    """A perceptron: `md.models.mlp((28, 28, 1), 10, loss="cross_entropy", optimizer="adam")`.

    h_0 = the inputs of a sample in a row, h_i = dropout(activation(h_(i-1) @ W_i + b_i)), and the outputs
    are h_n @ W + b: logits of classes, or numbers. Kernels start as Glorot, Bengio, AISTATS 2010, eq. (16)
    propose; for images, where the activation is like a rectifier, as He et al., ICCV 2015, eq. (10).

    Args:
        input_shape: of one sample, without the batch.
        outputs: number of classes or targets.
        hidden: size of each hidden layer.
        activation: of the hidden layers.
        dropout: share of the hidden outputs that is dropped in training; at least 0, below 1.
        options: of `md.Model`: loss, optimizer, metrics, seed, ...

    Raises:
        ArgumentError, ShapeError: if a size is below 1 or the dropout is out of range.
        UnknownNameError: if the activation is not known, when the layers are applied.
    """
    layers = mlp_layers(input_shape, outputs, hidden=hidden, activation=activation, dropout=dropout)
    return Model(layers, **options)


def mlp_layers(
    input_shape: Sequence[int],
    outputs: int,
    *,
    hidden: Sequence[int],
    activation: str,
    dropout: float,
) -> list[Any]:
    """The layers of `mlp`, the Input first."""
    if not 0.0 <= dropout < 1.0:
        raise ArgumentError(f"mlp: dropout must be at least 0 and below 1, got {dropout!r}")
    for k, size in enumerate(hidden):
        if not is_integer(size) or size < 1:
            raise ArgumentError(
                f"mlp: hidden layer {k + 1} must have a whole number of at least 1 units, got {size!r}"
            )
    is_image = len(input_shape) > 1
    he = is_image and activation in _LIKE_RELU
    kernel = init.he_normal() if he else init.glorot_uniform()
    layers: list[Any] = [Input(tuple(input_shape))]
    if is_image:
        layers.append(Flatten())
    for size in hidden:
        layers.append(Dense(size, activation=activation, kernel_init=kernel))
        if dropout:
            layers.append(Dropout(dropout))
    return [*layers, Dense(outputs)]


MLP = Network(
    name="mlp",
    about="multi-layer perceptron: dense layers in a row",
    build=mlp,
    image_preset="image",
    table_preset="table",
    options=("hidden", "activation", "dropout"),
    presets={
        "image": Preset(
            about="images such as MNIST: at least 98 % of its test set in 5 epochs",
            hidden=(512, 512),
            dropout=0.2,
            learning_rate=2e-3,
        ),
        "table": Preset(
            about="tables of some hundred to some ten thousand rows",
            hidden=(128, 128),
            optimizer="adamw",
            learning_rate=2e-3,
            weight_decay=1.2,
            batch_size=32,
            steps=1500,
            rows=1000,
            validation_split=0.0,
        ),
        "paper": Preset(
            about="the timing test of the MagmaDNN papers; hardly learns",
            hidden=(528, 528, 528),
            activation="sigmoid",
            optimizer="sgd",
            learning_rate=0.05,
            cosine=False,
            weight_decay=0.001,
            batch_size=100,
            validation_split=0.0,
            note=(
                "preset paper is the timing test of the MagmaDNN papers and hardly learns: in 5 epochs, "
                "three sigmoid layers under plain SGD stay far below what the default reaches; look at the "
                "samples per second"
            ),
        ),
    },
)
