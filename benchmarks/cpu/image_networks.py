"""Convolutional networks beside PyTorch, eager and compiled: whole fits of small ones, ResNet-50 forward.

LeNet-5 on images as MNIST's and the small network of CIFAR-10, batches of 128, SGD with momentum; PyTorch has
channels last. Before anything is timed the losses of the first epoch are compared, from the same weights.
"""

from __future__ import annotations

from importlib.util import find_spec
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
ONNX = "onnxruntime"  # where that and `onnx` are installed
FORWARD_TOLERANCE = 1e-3  # of the outputs: 50 layers of sums in float32 in other orders
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


def forward(rows: int) -> Case:
    arguments: dict[str, Any] = {"rows": rows}
    module = "benchmarks.contenders.resnet_forward"
    entries = [
        Entry(OURS, f"{module}:Ours", arguments),
        Entry(EAGER, f"{module}:Torch", {**arguments, "compiled": False}),
        Entry(COMPILED, f"{module}:Torch", {**arguments, "compiled": True}),
    ]
    if find_spec("onnxruntime") is not None and find_spec("onnx") is not None:
        entries.append(Entry(ONNX, f"{module}:Onnx", arguments))
    peers = tuple(entry.name for entry in entries[1:])
    return Case(
        f"ResNet-50 forward, batch {rows}",
        tuple(entries),
        (Goal("ratio", 1.0, peers),),
        checks=(Check(FORWARD_TOLERANCE),),
    )


def forward_claim(settings: Settings) -> Claim:
    batches = (1,) if settings.quick else (1, 16)
    return Claim("forward of ResNet-50", [forward(rows) for rows in batches])


if __name__ == "__main__":
    main({"image_networks": claim, "image_forward": forward_claim})
