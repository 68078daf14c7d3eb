"""Images that augmentation gives in a second: `python benchmarks/augmentation.py`."""

from __future__ import annotations

import time

import numpy as np

import magmadnn as md
from magmadnn.data import augment
from magmadnn.data.augment.pipeline import Pipeline
from magmadnn.training.loop.augmented_source import AugmentedSource

LISTS = {
    "crop and flip (standard)": augment.standard((32, 32, 3)),
    "rotation": (augment.RandomRotation(),),
    "brightness, contrast, saturation": (
        augment.RandomBrightness(),
        augment.RandomContrast(),
        augment.RandomSaturation(),
    ),
    "cut-out": (augment.Cutout(),),
    "mix-up": (augment.Mixup(),),
}


def seconds(source: AugmentedSource, batch: int) -> float:
    start = time.perf_counter()
    for _ in source.epoch(0, batch, 0):
        pass
    return time.perf_counter() - start


def main(rows: int = 8192, batch: int = 128) -> None:
    x = np.random.default_rng(0).random((rows, 32, 32, 3), np.float32)
    y = np.arange(rows) % 10
    for name, transforms in LISTS.items():
        for workers in (1, 2):
            pipeline = Pipeline(transforms, 0, classes=10)
            source = AugmentedSource(x, y, None, pipeline=pipeline, workers=workers, seed=0)
            best = min(seconds(source, batch) for _ in range(3))
            print(f"{name}, {workers} threads: {rows / best:,.0f} images/s of 32 x 32 x 3")
    print(md.__version__)


if __name__ == "__main__":
    main()
