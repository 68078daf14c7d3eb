"""Makes the curves that `tests/training/test_curves.py` compares with: PyTorch on given weights and batches.

Run in an environment with PyTorch (2.13.0, CPU build, was used):

    python benchmarks/oracles/training_torch.py

Each case is a network, an optimiser and 100 steps in float64 on batches of 17 rows of fixed random data. The
file keeps data, initial weights, the loss before each step and the weights after the last.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

OUT = Path(__file__).parents[2] / "tests" / "training" / "data" / "curves.npz"
ROWS, INPUTS, CLASSES, BATCH, STEPS = 101, 7, 5, 17, 100


def dense(inputs: int, outputs: int) -> torch.nn.Linear:
    return torch.nn.Linear(inputs, outputs, dtype=torch.float64)


def classifier(activation: type[torch.nn.Module]) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        dense(INPUTS, 13), activation(), dense(13, 11), activation(), dense(11, CLASSES)
    )


def normalised() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        dense(INPUTS, 13),
        torch.nn.BatchNorm1d(13, eps=1e-3, momentum=0.01, dtype=torch.float64),
        torch.nn.GELU(),
        torch.nn.LayerNorm(13, eps=1e-3, dtype=torch.float64),
        dense(13, CLASSES),
    )


def regressor() -> torch.nn.Sequential:
    return torch.nn.Sequential(dense(INPUTS, 13), torch.nn.Tanh(), dense(13, 1))


Optimiser = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
CASES: dict[str, tuple[Callable[[], torch.nn.Sequential], torch.nn.Module, Optimiser]] = {
    "sigmoid_sgd": (
        lambda: classifier(torch.nn.Sigmoid),
        torch.nn.CrossEntropyLoss(),
        lambda p: torch.optim.SGD(p, lr=0.5, weight_decay=1e-3),
    ),
    "relu_momentum": (
        lambda: classifier(torch.nn.ReLU),
        torch.nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    ),
    "tanh_adam": (
        lambda: classifier(torch.nn.Tanh),
        torch.nn.CrossEntropyLoss(),
        lambda p: torch.optim.Adam(p, lr=0.01),
    ),
    "normalised_adamw": (
        normalised,
        torch.nn.CrossEntropyLoss(),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    ),
    "regression_huber": (
        regressor,
        torch.nn.HuberLoss(delta=0.7),
        lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9),
    ),
}


def main() -> None:
    rng = np.random.default_rng(20)
    x = rng.normal(size=(ROWS, INPUTS))
    y = rng.integers(0, CLASSES, ROWS)
    t = np.sin(x.sum(1, keepdims=True)) + 0.1 * rng.normal(size=(ROWS, 1))
    order = np.stack([rng.permutation(ROWS)[:BATCH] for _ in range(STEPS)])
    kept: dict[str, np.ndarray] = {"x": x, "y": y, "t": t, "order": order}
    for name, (make, loss_of, optimise) in CASES.items():
        torch.manual_seed(3)
        model = make()
        optimiser = optimise(list(model.parameters()))
        for k, p in enumerate(model.parameters()):
            kept[f"{name}/initial/{k}"] = p.detach().numpy().T.copy()
        losses = []
        for rows in order:
            target = torch.from_numpy(t[rows] if "regression" in name else y[rows])
            loss = loss_of(model(torch.from_numpy(x[rows])), target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        kept[f"{name}/losses"] = np.array(losses)
        for k, p in enumerate(model.parameters()):
            kept[f"{name}/final/{k}"] = p.detach().numpy().T.copy()
        model.eval()
        kept[f"{name}/predicted"] = model(torch.from_numpy(x)).detach().numpy()
    np.savez_compressed(OUT, torch_version=torch.__version__, **kept)
    print(f"wrote {OUT} ({OUT.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
