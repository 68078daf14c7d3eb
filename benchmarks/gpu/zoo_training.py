"""100 steps of the zoo's networks at full size on a GPU, beside PyTorch's from the same weights.

    python -m benchmarks.gpu.zoo_training [resnet50 ...]

In float32, TF32 off in both, or with the word float64 also in that. How much training amplifies rounding is
seen in PyTorch: its float32 curve beside its float64 one. Ours may be 20 times as far from it, scaled by the
dtype's epsilon, as long as PyTorch's own curves are within 1 % of each other: what comes after is chaos in
both.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import magmadnn as md
from benchmarks.oracles.torchvision_networks import (
    DenseNet,
    GoogLeNet,
    ResNet,
    alexnet,
    vgg16,
)
from benchmarks.oracles.zoo_training_torch import BATCH, ROWS, STEPS, losses_of
from benchmarks.oracles.zoo_training_torch import (
    with_formula_weights as with_formula_weights_in_torch,
)
from tests.models.formula_weights import classes, images
from tests.models.test_zoo_training import Losses, with_formula_weights

SIZE, CLASSES, TIMES = 224, 10, 20
CHAOS = 0.01  # of the loss: PyTorch's own float32 is that far off


def _alexnet() -> nn.Module:
    made = alexnet(CLASSES)
    made.classifier[1] = nn.Linear(256 * 36, 4096)
    return made


def _vgg16() -> nn.Module:
    made = vgg16(CLASSES)
    made.classifier[0] = nn.Linear(512 * 49, 4096)
    return made


# how PyTorch makes it, learning rate, our arguments
CASES: dict[str, tuple[Any, float, dict[str, Any]]] = {
    "alexnet": (_alexnet, 1e-5, {"dropout": 0.0}),
    "vgg16": (_vgg16, 2e-6, {"dropout": 0.0}),
    "googlenet": (lambda: GoogLeNet(CLASSES), 1e-4, {"dropout": 0.0}),
    "resnet18": (lambda: ResNet([2, 2, 2, 2], False, CLASSES), 1e-4, {}),
    "resnet34": (lambda: ResNet([3, 4, 6, 3], False, CLASSES), 1e-4, {}),
    "resnet50": (lambda: ResNet([3, 4, 6, 3], True, CLASSES), 1e-6, {}),
    "densenet121": (lambda: DenseNet(CLASSES), 1e-4, {}),
}


def torch_curve(name: str, dtype: torch.dtype) -> np.ndarray:
    """The loss before each step of SGD with momentum 0.9."""
    make, rate, _ = CASES[name]
    model = with_formula_weights_in_torch(make()).to("cuda", dtype)
    model = model.to(memory_format=torch.channels_last).train()
    return torch.stack(losses_of(model, SIZE, 3, rate)).double().cpu().numpy()


def our_curve(name: str, precision: str) -> np.ndarray:
    """The same losses."""
    _, rate, more = CASES[name]
    make = getattr(md.models, name)
    with tempfile.TemporaryDirectory() as folder:
        with_formula_weights(make((SIZE, SIZE, 3), CLASSES, **more), Path(folder))
        model = make(
            (SIZE, SIZE, 3), CLASSES, **more, weights=Path(folder) / "weights.safetensors",
            loss="cross_entropy", optimizer=md.optim.SGD(rate, momentum=0.9), precision=precision,
            device="cuda",
        )  # fmt: skip
    x, y = images(ROWS, SIZE, 3), classes(ROWS, CLASSES)
    x = x.astype(np.float64) if precision == "float64" else x
    seen, epochs = Losses(), STEPS * BATCH // ROWS
    model.fit(x, y, batch_size=BATCH, shuffle=False, epochs=epochs, verbose=False, callbacks=[seen])
    return np.array(seen.values)


def compare(name: str, precisions: tuple[str, ...]) -> bool:
    """Print how far ours are, in units of what PyTorch's rounding does."""
    begun = time.perf_counter()
    exact, rounded = (torch_curve(name, dtype) for dtype in (torch.float64, torch.float32))
    apart = np.abs(rounded - exact)
    chaotic = np.flatnonzero(apart > CHAOS * exact)
    steps = int(chaotic[0]) if len(chaotic) else STEPS
    off = np.maximum.accumulate(apart)
    worst = {}
    for precision in precisions:
        eps = float(np.finfo(precision).eps)
        allowed = off * eps / 2.0**-23 + 4 * eps * np.maximum(exact, 1)
        found = our_curve(name, precision)
        worst[precision] = (np.abs(found - exact) / allowed)[: max(steps, 1)].max()
    good = (
        max(worst.values()) <= TIMES and steps >= 5 and exact[-5:].mean() < 0.9 * exact[:5].mean()
    )
    print(
        f"{name:<12} loss {exact[0]:.4f} to {exact[-1]:.4f}; {steps} steps compared; times PyTorch's "
        f"rounding: {', '.join(f'{k} {v:.2f}' for k, v in worst.items())}; {'agrees' if good else 'DIFFERS'};"
        f" {time.perf_counter() - begun:.0f} s",
        flush=True,
    )
    return good


def main(*names: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    precisions = ("float32", "float64") if "float64" in names else ("float32",)
    agreed = [compare(n, precisions) for n in [n for n in names if n in CASES] or CASES]
    if not all(agreed):
        raise SystemExit("a network does not train as PyTorch's")


if __name__ == "__main__":
    main(*sys.argv[1:])
