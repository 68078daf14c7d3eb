"""Small convolutional networks, a whole `fit` of images in memory, beside PyTorch, eager and compiled.

LeNet-5 on images as MNIST's and the small network of CIFAR-10, batches of 128, SGD with momentum; PyTorch has
channels last. Before anything is timed the losses of the first epoch are compared, from the same weights.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.cases import OURS, Case, Check, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import COMPILED, EAGER

BATCH = 128
# name, network, size and channels of images, batches of an epoch, share of PyTorch's time to reach
NETWORKS = [
    ("LeNet-5, batch 128", "lenet5", 28, 1, 40, 0.25),
    ("CIFAR network, batch 128", "cifar_cnn", 32, 3, 8, 0.5),
]
TOLERANCE = 1e-3  # of the mean loss of an epoch in float32, whose steps amplify rounding


def case(row: tuple[str, str, int, int, int, float], settings: Settings) -> Case:
    name, network, size, channels, batches, limit = row
    batches = 2 if settings.quick else batches
    arguments: dict[str, Any] = {
        "network": network, "size": size, "channels": channels, "rows": batches * BATCH, "batch": BATCH,
    }  # fmt: skip
    theirs = "benchmarks.contenders.torch_image_fits:Training"
    return Case(
        name,
        (
            Entry(OURS, "benchmarks.contenders.image_fits:Training", arguments),
            Entry(EAGER, theirs, {**arguments, "compiled": False}),
            Entry(COMPILED, theirs, {**arguments, "compiled": True}),
        ),
        (Goal("ratio", limit, (EAGER, COMPILED)),),
        checks=(Check(TOLERANCE),),
        steps=batches,
    )


def claim(settings: Settings) -> Claim:
    return Claim("whole fit of small image networks", [case(row, settings) for row in NETWORKS])


if __name__ == "__main__":
    main({"image_networks": claim})
