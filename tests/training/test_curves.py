"""Training curves against PyTorch's, stored by benchmarks/oracles/training_torch.py.

Both compute in float64 from the same weights on the same batches, so they differ by rounding only: 100 steps
of a smooth problem, each of some 100 roundings that the steps before have amplified.

The emulated device compiles with g++, which takes its time: the usual run has one case there.
"""

from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from tests.runtime.cuda.devices import DEVICES, on

STORED = np.load(Path(__file__).parent / "data" / "curves.npz")
TOLERANCE = 1e-9


def dense_stack(activation):
    return [
        md.layers.Dense(13, activation=activation),
        md.layers.Dense(11, activation=activation),
        md.layers.Dense(5),
    ]


def normalised():
    return [
        md.layers.Dense(13),
        md.layers.BatchNorm(epsilon=1e-3, momentum=0.99),
        md.layers.Activation("gelu"),
        md.layers.LayerNorm(epsilon=1e-3),
        md.layers.Dense(5),
    ]


CASES = {
    "sigmoid_sgd": (
        lambda: dense_stack("sigmoid"),
        "cross_entropy",
        md.optim.SGD(0.5, weight_decay=1e-3),
    ),
    "relu_momentum": (
        lambda: dense_stack("relu"),
        md.losses.CrossEntropy(label_smoothing=0.1),
        md.optim.SGD(0.05, momentum=0.9, nesterov=True),
    ),
    "tanh_adam": (lambda: dense_stack("tanh"), "cross_entropy", md.optim.Adam(0.01)),
    "normalised_adamw": (normalised, "cross_entropy", md.optim.AdamW(0.01, weight_decay=0.1)),
    "regression_huber": (
        lambda: [md.layers.Dense(13, activation="tanh"), md.layers.Dense(1)],
        md.losses.Huber(delta=0.7),
        md.optim.RMSProp(0.01, decay=0.9),
    ),
}


class Losses(md.callbacks.Callback):
    def __init__(self):
        self.values = []

    def on_batch_end(self, fit):
        self.values.append(fit.last_loss)


EMULATED, GPU = DEVICES
USUAL = "regression_huber"


@pytest.mark.parametrize("name", CASES)
def test_100_steps_as_pytorch(name):
    compare(name, "cpu")


@pytest.mark.parametrize(
    ("name", "device"),
    [
        pytest.param(name, *device.values, id=f"{name}-{device.values[0]}", marks=[
            *device.marks, *([] if name == USUAL or device is GPU else [pytest.mark.long])])
        for name in CASES
        for device in DEVICES
    ],
)  # fmt: skip
def test_100_steps_on_a_device_as_pytorch(name, device):
    with on(device):
        compare(name, "cuda")


def compare(name, device):
    layers, loss, optimizer = CASES[name]
    model = md.Model(
        [md.layers.Input((7,), dtype="float64"), *layers()],
        loss=loss,
        optimizer=optimizer,
        device=device,
    )
    assert len(model.parameters()) == sum(k.startswith(f"{name}/initial") for k in STORED)
    for k, parameter in enumerate(model.parameters()):
        parameter.assign(STORED[f"{name}/initial/{k}"])
    targets = STORED["t"] if "regression" in name else STORED["y"]
    batches = [(STORED["x"][rows], targets[rows]) for rows in STORED["order"]]
    losses = Losses()
    model.fit(batches, epochs=1, verbose=False, callbacks=[losses])
    np.testing.assert_allclose(losses.values, STORED[f"{name}/losses"], rtol=TOLERANCE)
    for k, parameter in enumerate(model.parameters()):
        np.testing.assert_allclose(
            parameter.value.read(), STORED[f"{name}/final/{k}"], rtol=TOLERANCE, atol=TOLERANCE
        )
    predicted = model.predict(STORED["x"])
    np.testing.assert_allclose(predicted, STORED[f"{name}/predicted"], rtol=1e-8, atol=1e-8)
