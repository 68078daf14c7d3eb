"""100 steps of networks of the zoo against PyTorch's, stored by benchmarks/oracles/zoo_training_torch.py.

Both begin with the same weights and train on the same batches. Rounding is amplified by training, how much is
seen in PyTorch itself: the curve in float32 beside that in float64. Sums in another order may be off by some
times that; a wrong gradient, momentum or statistic by far more within a few steps. Deep networks amplify so
much that float32 tells little: they are compared in float64.
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
# size and channels of images, learning rate, arguments of the network
CASES: dict[str, tuple[int, int, float, dict[str, Any]]] = {
    "lenet5": (28, 1, 0.02, {}), "cifar_cnn": (16, 3, 0.01, {}), "resnet20": (8, 3, 0.02, {}),
    "resnet56": (8, 3, 0.005, {}), "alexnet": (63, 3, 0.003, {"dropout": 0.0}),
    "vgg16": (32, 3, 0.01, {"dropout": 0.0}), "googlenet": (65, 3, 0.002, {"dropout": 0.0}),
    "resnet18": (33, 3, 0.005, {}), "resnet34": (33, 3, 0.005, {}), "resnet50": (33, 3, 2e-4, {}),
    "densenet121": (33, 3, 5e-4, {}),
}  # fmt: skip
SHORT = ("lenet5", "cifar_cnn", "resnet20")
# ResNet-50 on such small images is chaotic: what rounding does grows tenfold in some steps, in float64 too
COMPARED = {"resnet50": 20}  # steps, where not all
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


def curve(name: str, folder: Path, precision: str) -> np.ndarray:
    """The loss before each step."""
    size, channels, rate, more = CASES[name]
    make = getattr(md.models, name)
    with_formula_weights(make((size, size, channels), 10, **more), folder)
    model = make(
        (size, size, channels), 10, **more, weights=folder / "weights.safetensors",
        loss="cross_entropy", optimizer=md.optim.SGD(rate, momentum=0.9), precision=precision,
    )  # fmt: skip
    x, y = images(ROWS, size, channels), classes(ROWS, 10)
    x = x.astype(np.float64) if precision == "float64" else x
    seen = Losses()
    epochs = STEPS * BATCH // ROWS
    model.fit(x, y, batch_size=BATCH, shuffle=False, epochs=epochs, verbose=False, callbacks=[seen])
    return np.array(seen.values)


def check(name: str, found: np.ndarray, eps: float) -> None:
    """Look at a curve of numbers with this rounding."""
    exact, rounded = STORED[f"{name}/float64"], STORED[f"{name}/float32"]
    # what rounding had done until each step, and the rounding of the loss itself
    off = np.maximum.accumulate(np.abs(rounded - exact)) * eps / EPS
    off += 4 * eps * np.maximum(exact, 1)
    assert found.shape == exact.shape
    assert exact[-5:].mean() < 0.8 * exact[:5].mean()  # something was learnt
    worst = (np.abs(found - exact) / off)[: COMPARED.get(name)].max()
    assert worst <= TIMES, f"{worst:.3g} times as far as PyTorch in float32"


@pytest.mark.parametrize("name", SHORT)
def test_100_steps_as_pytorch(name: str, tmp_path: Path) -> None:
    check(name, curve(name, tmp_path, "float32"), EPS)


@pytest.mark.parametrize(
    "name", [n if n in SHORT else pytest.param(n, marks=pytest.mark.long) for n in CASES]
)
def test_100_steps_as_pytorch_in_float64(name: str, tmp_path: Path) -> None:
    """Every network: what rounding is amplified to stays far below anything else."""
    check(name, curve(name, tmp_path, "float64"), float(np.finfo(np.float64).eps))
