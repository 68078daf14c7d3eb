"""Max pooling of the papers' networks within a training step, forward and its gradient, beside a copy.

python -m benchmarks.cpu.pooling [--batch 16]

Each row: microseconds of core time of a layer's steps, and how many GB/s that is of what has to move at
least: image, results and a byte for each result's number, once forward and once backward. Padding is copied
first and counts as time, not as bytes. The last line is a copy of the largest image by NumPy on one core.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import magmadnn as md


@dataclass(frozen=True)
class Pooling:
    """Max pooling of one layer.

    Attributes:
        name: whose it is.
        places: of square images,
        channels: and their channels.
        geometry: of the windows.
    """

    name: str
    places: int
    channels: int
    geometry: dict[str, Any]


POOLINGS = [
    Pooling("LeNet-5, first", 28, 6, {"pool_size": 2}),
    Pooling("LeNet-5, second", 10, 16, {"pool_size": 2}),
    Pooling("VGG16, second", 112, 128, {"pool_size": 2}),
    Pooling("AlexNet, first", 55, 64, {"pool_size": 3, "strides": 2}),
    Pooling("ResNet-50", 112, 64, {"pool_size": 3, "strides": 2, "padding": 1}),
    Pooling("GoogLeNet, inception 3a", 28, 192, {"pool_size": 3, "strides": 1, "padding": "same"}),
]


def row(pooling: Pooling, batch: int) -> str:
    """The times of one layer, between others that keep its gradient from being left out."""
    shape = (pooling.places, pooling.places, pooling.channels)
    pool = md.layers.MaxPooling2D(**pooling.geometry, name="pooling")
    model = md.Model(
        [md.layers.Input(shape), md.layers.PReLU(), pool, md.layers.GlobalAveragePooling2D()],
        loss="mse",
        optimizer="sgd",
    )
    x = np.random.default_rng(0).normal(size=(batch, *shape)).astype(np.float32)
    y = np.zeros((batch, pooling.channels), np.float32)
    steps = model.profile(x, y, batch_size=batch).layers()["pooling"]
    seconds = sum(step.seconds for step in steps)
    results = int(np.prod(pool(md.layers.Input(shape)).shape[1:])) * batch
    nbytes = 2 * (x.nbytes + 5 * results)
    return f"{pooling.name:26} {1e6 * seconds:10.0f} {nbytes / seconds / 1e9:6.1f}"


def copy(batch: int) -> str:
    """The time of a copy."""
    source = np.ones((batch, 112, 112, 128), np.float32)
    goal, best = np.zeros_like(source), float("inf")
    for _ in range(9):
        begin = time.perf_counter()
        np.copyto(goal, source)
        best = min(best, time.perf_counter() - begin)
    return f"{'a copy':26} {1e6 * best:10.0f} {2 * source.nbytes / best / 1e9:6.1f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Max pooling, forward and backward.")
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()
    print(f"{'':26} {'us':>10} {'GB/s':>6}")
    for pooling in POOLINGS:
        print(row(pooling, given.batch))
    print(copy(given.batch))


if __name__ == "__main__":
    main()
