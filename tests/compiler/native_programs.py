"""Training steps of small networks, whose native plans are kept under `tests/plans/native_*.txt`."""

from __future__ import annotations

from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.graph.program import Program


def _step(
    layers: list[Any], loss: str, optimizer: Any, targets: Any, shape: tuple[int, ...] = (7,)
) -> Program:
    """The program of a training step."""
    model = md.Model([md.layers.Input(shape), *layers], loss=loss, optimizer=optimizer, seed=3)
    x = model.inputs[0]
    y = md.placeholder("target", (None, *targets.shape[1:]), targets.dtype)
    value = md.losses.as_loss(loss)(model.outputs[0], y)
    step = optimizer.step(value, model.parameters())
    assert x.node in step._executable.program.nodes()
    return step._executable.program  # type: ignore[no-any-return]


CLASSES = np.zeros(4, np.int64)
NUMBERS = np.zeros((4, 1), np.float32)


def _mlp(optimizer: Any) -> Program:
    layers = [md.layers.Dense(5, activation="sigmoid"), md.layers.Dense(3)]
    return _step(layers, "cross_entropy", optimizer, CLASSES)


PROGRAMS = {
    "mlp_sgd": lambda: _mlp(md.optim.SGD(0.1)),
    "mlp_momentum": lambda: _mlp(md.optim.SGD(0.1, momentum=0.9)),
    "mlp_adam": lambda: _mlp(md.optim.Adam(0.01)),
    "batch_norm": lambda: _step(
        [md.layers.Dense(5), md.layers.BatchNorm(), md.layers.Dense(3)],
        "cross_entropy", md.optim.SGD(0.1), CLASSES,
    ),
    "layer_norm": lambda: _step(
        [md.layers.Dense(5), md.layers.LayerNorm(), md.layers.Dense(3)],
        "cross_entropy", md.optim.SGD(0.1), CLASSES,
    ),
    "dropout": lambda: _step(
        [md.layers.Dense(5, activation="relu"), md.layers.Dropout(0.5), md.layers.Dense(3)],
        "cross_entropy", md.optim.SGD(0.1), CLASSES,
    ),
    "regression": lambda: _step(
        [md.layers.Dense(5, activation="tanh"), md.layers.Dense(1)], "mse", md.optim.SGD(0.1), NUMBERS
    ),
}  # fmt: skip


def _of_images(*layers: Any) -> Program:
    parts = [*layers, md.layers.GlobalAveragePooling2D(), md.layers.Dense(3)]
    return _step(parts, "cross_entropy", md.optim.SGD(0.1), CLASSES, (8, 8, 4))


# Their inputs are images of 8 x 8 places and 4 channels.
CONVOLUTIONS = {
    "convolutions": lambda: _of_images(
        md.layers.Conv2D(6, 3, padding="same", activation="relu"),
        md.layers.MaxPooling2D(2),
        md.layers.Conv2D(8, 3, strides=2, padding=1, groups=2, use_bias=False),
        md.layers.BatchNorm(),
        md.layers.Activation("relu"),
        md.layers.Conv2D(8, 2, groups=8),
    ),
    "winograd_2x2": lambda: _of_images(md.layers.Conv2D(5, 3, padding=1, algorithm="winograd_2x2")),
    "winograd": lambda: _of_images(md.layers.Conv2D(5, 3, padding=1, algorithm="winograd")),
}
