"""100 steps of networks of the zoo against PyTorch's, stored by benchmarks/oracles/zoo_training_torch.py.

Both begin with the same weights and train on the same batches in float32. Rounding is amplified by training,
how much is seen in PyTorch itself: the curve in float32 beside that in float64. Sums in another order may
be off by some times that; a wrong gradient, momentum or statistic by far more within a few steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from tests.models.formula_weights import classes, images, weight

STORED = np.load(Path(__file__).parent / "data" / "zoo_training.npz")
ROWS, BATCH, STEPS = 40, 8, 100
CASES: dict[str, tuple[int, int, float]] = {
    "lenet5": (28, 1, 0.02), "cifar_cnn": (16, 3, 0.01), "resnet20": (8, 3, 0.02),
}  # fmt: skip
TIMES = 20  # as far from the curve in float64 as PyTorch's in float32
EPS = float(np.finfo(np.float32).eps)


class Losses(md.callbacks.Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def batches(self, fit: Any) -> int:
        return 1

    def on_batch_end(self, fit: Any) -> None:
        self.values.append(fit.last_loss)


def torch_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]


def with_formula_weights(model: md.Model, folder: Path) -> None:
    """The weights of the script, by way of a state dict as PyTorch writes it."""
    from safetensors.numpy import save_file

    from magmadnn.models.convolutional.torch_weights import _ENDINGS

    state = {}
    for name, value in model.values().items():
        layer, _, local = name.rpartition("/")
        key = f"{layer.replace('/', '.')}.{_ENDINGS[local]}"
        state[key] = weight(key, torch_shape(key, value.shape))
    save_file(
        {k: np.ascontiguousarray(v) for k, v in state.items()}, folder / "weights.safetensors"
    )


@pytest.mark.parametrize("name", CASES)
def test_100_steps_as_pytorch(name: str, tmp_path: Path) -> None:
    size, channels, rate = CASES[name]
    make = getattr(md.models, name)
    with_formula_weights(make((size, size, channels), 10), tmp_path)
    model = make(
        (size, size, channels), 10, weights=tmp_path / "weights.safetensors",
        loss="cross_entropy", optimizer=md.optim.SGD(rate, momentum=0.9),
    )  # fmt: skip
    x, y = images(ROWS, size, channels), classes(ROWS, 10)
    seen = Losses()
    epochs = STEPS * BATCH // ROWS
    model.fit(x, y, batch_size=BATCH, shuffle=False, epochs=epochs, verbose=False, callbacks=[seen])
    exact, rounded = STORED[f"{name}/float64"], STORED[f"{name}/float32"]
    # what rounding had done until each step, and the rounding of the loss itself
    off = np.maximum.accumulate(np.abs(rounded - exact)) + 4 * EPS * np.maximum(exact, 1)
    found = np.array(seen.values)
    assert found.shape == exact.shape
    assert exact[-5:].mean() < 0.5 * exact[:5].mean()  # something was learnt
    worst = (np.abs(found - exact) / off).max()
    assert worst <= TIMES, f"{worst:.3g} times as far as PyTorch in float32"
