"""Training curves of PyTorch's optimisers, which magmadnn's are compared with.

Writes tests/optim/data/optim_torch.npz (the problem, losses and final parameters of 100 steps) and
optim_torch.json (the settings). Run it with an interpreter that has PyTorch:

    python benchmarks/oracles/optim_torch.py

The problem: a network 5-6-3 with tanh, mean squared error, seven batches of eleven rows in turn, float64.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "optim" / "data"
STEPS = 100
NAMES = ("w1", "b1", "w2", "b2")

# name: settings in magmadnn, class in PyTorch, its settings, what to do with gradients, schedule
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "sgd": ({"name": "SGD", "learning_rate": 0.1}, "SGD", {"lr": 0.1}, (), ()),
    "sgd momentum": (
        {"name": "SGD", "learning_rate": 0.05, "momentum": 0.9},
        "SGD", {"lr": 0.05, "momentum": 0.9}, (), (),
    ),
    "sgd nesterov": (
        {"name": "SGD", "learning_rate": 0.05, "momentum": 0.9, "nesterov": True},
        "SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}, (), (),
    ),
    "sgd momentum weight decay": (
        {"name": "SGD", "learning_rate": 0.05, "momentum": 0.8, "weight_decay": 0.03},
        "SGD", {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.03}, (), (),
    ),
    "sgd clip value": (
        {"name": "SGD", "learning_rate": 0.3, "clip_value": 0.02},
        "SGD", {"lr": 0.3}, ("clip_grad_value_", 0.02), (),
    ),
    "sgd clip norm": (
        {"name": "SGD", "learning_rate": 0.3, "clip_norm": 0.07},
        "SGD", {"lr": 0.3}, ("clip_grad_norm_", 0.07), (),
    ),
    "adagrad": ({"name": "AdaGrad", "learning_rate": 0.1}, "Adagrad", {"lr": 0.1}, (), ()),
    "adagrad weight decay": (
        {"name": "AdaGrad", "learning_rate": 0.1, "weight_decay": 0.02, "eps": 1e-6},
        "Adagrad", {"lr": 0.1, "weight_decay": 0.02, "eps": 1e-6}, (), (),
    ),
    "rmsprop": (
        {"name": "RMSProp", "learning_rate": 0.01}, "RMSprop", {"lr": 0.01, "alpha": 0.9}, (), (),
    ),
    "rmsprop momentum": (
        {"name": "RMSProp", "learning_rate": 0.002, "decay": 0.99, "momentum": 0.7, "eps": 1e-5},
        "RMSprop", {"lr": 0.002, "momentum": 0.7, "eps": 1e-5}, (), (),
    ),
    "adam": ({"name": "Adam", "learning_rate": 0.02}, "Adam", {"lr": 0.02}, (), ()),
    "adam weight decay": (
        {"name": "Adam", "learning_rate": 0.02, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.01},
        "Adam", {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.01}, (), (),
    ),
    "adamw": ({"name": "AdamW", "learning_rate": 0.02}, "AdamW", {"lr": 0.02}, (), ()),
    "adamw strong decay": (
        {"name": "AdamW", "learning_rate": 0.02, "weight_decay": 0.7, "eps": 1e-4},
        "AdamW", {"lr": 0.02, "weight_decay": 0.7, "eps": 1e-4}, (), (),
    ),
    "step decay": (
        {
            "name": "SGD", "momentum": 0.9,
            "learning_rate": {"name": "step_decay", "initial": 0.1, "every": 30, "factor": 0.3},
        },
        "SGD", {"lr": 0.1, "momentum": 0.9}, (), ("StepLR", {"step_size": 30, "gamma": 0.3}),
    ),
    "exponential": (
        {"name": "Adam", "learning_rate": {"name": "exponential", "initial": 0.05, "factor": 0.97}},
        "Adam", {"lr": 0.05}, (), ("ExponentialLR", {"gamma": 0.97}),
    ),
    "cosine": (
        {
            "name": "AdamW",
            "learning_rate": {"name": "cosine", "initial": 0.05, "steps": 100, "final": 0.001},
        },
        "AdamW", {"lr": 0.05}, (), ("CosineAnnealingLR", {"T_max": 100, "eta_min": 0.001}),
    ),
}  # fmt: skip


def problem() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(20261121)
    x = draw.normal(size=(7, 11, 5))
    target = np.sin(x @ draw.normal(size=(5, 3))) + 0.1 * draw.normal(size=(7, 11, 3))
    weights = {"w1": (5, 6), "b1": (6,), "w2": (6, 3), "b2": (3,)}
    return {
        "x": x,
        "target": target,
        **{n: 0.5 * draw.normal(size=shape) for n, shape in weights.items()},
    }


def train(
    data: dict[str, np.ndarray],
    name: str,
    settings: dict[str, Any],
    clipping: tuple[Any, ...],
    schedule: tuple[Any, ...],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Losses before each step, and the parameters after the last."""
    w1, b1, w2, b2 = ws = [torch.tensor(data[n], requires_grad=True) for n in NAMES]
    x, target = torch.tensor(data["x"]), torch.tensor(data["target"])
    optimizer = getattr(torch.optim, name)(ws, **settings)
    scheduler = None
    if schedule:
        scheduler = getattr(torch.optim.lr_scheduler, schedule[0])(optimizer, **schedule[1])
    losses = []
    for t in range(STEPS):
        k = t % len(x)
        optimizer.zero_grad()
        loss = ((torch.tanh(x[k] @ w1 + b1) @ w2 + b2 - target[k]) ** 2).mean()
        loss.backward()
        if clipping:
            getattr(torch.nn.utils, clipping[0])(ws, clipping[1])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return np.array(losses), {n: w.detach().numpy() for n, w in zip(NAMES, ws, strict=True)}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = problem()
    arrays = dict(data)
    for case, (_, name, settings, clipping, schedule) in CASES.items():
        losses, weights = train(data, name, settings, clipping, schedule)
        arrays[f"{case}/losses"] = losses
        arrays |= {f"{case}/{n}": w for n, w in weights.items()}
    FOLDER.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(FOLDER / "optim_torch.npz", **arrays)
    table = {
        "made_by": "benchmarks/oracles/optim_torch.py",
        "torch": torch.__version__,
        "steps": STEPS,
        "cases": {
            case: {"magmadnn": ours, "torch": [name, settings, *clipping, *schedule]}
            for case, (ours, name, settings, clipping, schedule) in CASES.items()
        },
    }
    text = json.dumps(table, indent=1) + "\n"
    (FOLDER / "optim_torch.json").write_text(text, encoding="utf-8")
    for case in CASES:
        losses = arrays[f"{case}/losses"]
        print(f"{case:28} {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
