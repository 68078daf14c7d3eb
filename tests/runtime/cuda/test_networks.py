"""Layers, losses and optimisers of every kind: training on a device is what it is on the processor.

The emulated device compiles with g++, which takes its time: the usual run has few networks there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.runtime.cuda.schedule import small
from tests.runtime.cuda.devices import DEVICES, distance, on

layers, optim = md.layers, md.optim
ROWS, BATCH, EPOCHS = 43, 8, 2
STEPS = EPOCHS * -(-ROWS // BATCH)
RNG = np.random.default_rng(11)
X = RNG.standard_normal((ROWS, 13)).astype(np.float32)
Y = RNG.integers(0, 5, ROWS)
REAL = RNG.standard_normal((ROWS, 5)).astype(np.float32)


def network(*middle: Any, optimizer: Any = None, loss: Any = "cross_entropy", **more: Any) -> Any:
    made = [layers.Input((13,)), layers.Dense(17), *middle, layers.Dense(5)]
    return md.Model(made, loss=loss, optimizer=optimizer or optim.SGD(0.1), seed=5, **more)


def two_inputs(**where: Any) -> Any:
    """Most at once: two inputs, both normalisations, dropout, weights that are held down, smoothed labels."""
    a, b = layers.Input((13,)), layers.Input((3,))
    first = layers.Dense(11, kernel_regularizer=layers.L2(0.01))(a)
    h = layers.BatchNorm()(ops.concat([first, b], axis=1))
    h = layers.Dropout(0.3)(layers.LayerNorm()(ops.gelu(h)))
    return md.Model(
        inputs=[a, b], outputs=layers.Dense(5)(h), seed=5,
        optimizer=optim.SGD(0.1, momentum=0.9),  # others: the bias before BatchNorm has noise as gradient
        loss=md.losses.CrossEntropy(label_smoothing=0.1), **where,
    )  # fmt: skip


def frozen(**where: Any) -> Any:
    model = network(layers.Activation("relu"), **where)
    model.freeze("dense_1")
    return model


def kept_small(**where: Any) -> Any:
    rate = optim.SGD(0.05, momentum=0.9, nesterov=True, clip_norm=0.5, weight_decay=1e-3)
    return network(layers.Activation("relu"), optimizer=rate, **where)


def with_layers(*made: Callable[[], Any], **more: Any) -> Callable[..., Any]:
    return lambda **where: network(*(m() for m in made), **more, **where)


def tanh() -> Any:
    return layers.Activation("tanh")


NETWORKS: dict[str, Callable[..., Any]] = {
    "two_inputs": two_inputs,
    "nesterov_clip": kept_small,
    "frozen": frozen,
    "batch_norm": with_layers(layers.BatchNorm, tanh),
    "layer_norm": with_layers(layers.LayerNorm, lambda: layers.Activation("gelu")),
    "float64": with_layers(tanh, precision="float64"),
    "mse": with_layers(tanh, loss="mse"),
    "huber": with_layers(tanh, loss=md.losses.Huber(0.7)),
    **{
        kind.__name__: with_layers(tanh, optimizer=kind())
        for kind in (optim.RMSProp, optim.AdaGrad, optim.AdamW, optim.LARS, optim.LAMB)
    },
}
USUAL = {("two_inputs", "launches"), ("nesterov_clip", "one kernel")}
EMULATED, GPU = DEVICES
EACH = [
    pytest.param(
        name,
        way,
        *device.values,
        id=f"{name}-{way}-{device.values[0]}",
        marks=[*device.marks, *([pytest.mark.long] if later else [])],
    )
    for name in NETWORKS
    for way in ("launches", "one kernel")
    for device, later in ((EMULATED, (name, way) not in USUAL), (GPU, False))
]


@pytest.mark.parametrize(("name", "way", "device"), EACH)
def test_training_is_what_it_is_on_the_processor(
    name: str, way: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "launches":
        monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    x: Any = [X, np.ascontiguousarray(X[:, :3])] if name == "two_inputs" else X
    y = REAL if name in ("mse", "huber") else Y
    # Each update is rounded a few dozen times, of values near 1
    allowed = 64 * float(np.finfo(np.float64 if name == "float64" else np.float32).eps)
    with on(device):
        there, here = NETWORKS[name](device="cuda"), NETWORKS[name](device="cpu")
        before = here.values()
        losses = [
            [row["loss"] for row in m.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0).rows]
            for m in (there, here)
        ]
        assert losses[0] == pytest.approx(losses[1], rel=STEPS * allowed)
        assert distance(there, here) <= STEPS * allowed
        assert max(np.abs(here.values()[k] - v).max() for k, v in before.items()) > 1e-3
        np.testing.assert_allclose(there.predict(x), here.predict(x), rtol=0, atol=STEPS * allowed)
        assert ", 0 calls of NumPy" in there.plan(x, y)
