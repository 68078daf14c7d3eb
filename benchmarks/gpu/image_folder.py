"""ResNet-50 from a folder of JPEG files, beside training on arrays in the device's memory.

    python -m benchmarks.gpu.image_folder [images] [epochs]

Writes random smooth JPEG files of 256 x 256 pixels in 8 classes, reads them scaled to 224, and trains in
mixed_bf16 with batches of 256: from the device's memory; from the arrays of the folder; and with the standard
augmentation by threads of the host. Images a second, the best of three fits; `profile` says how long the
device waited for data.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import magmadnn as md

CLASSES, SIDE, SIZE, BATCH, ROUNDS = 8, 256, 224, 256, 3


def write_folder(place: Path, images: int) -> None:
    """JPEG files of smooth noise, about as large as photographs of that size."""
    from PIL import Image

    def write(number: int) -> None:
        rng = np.random.default_rng(number)
        small = Image.fromarray(rng.integers(0, 256, (48, 48, 3), np.uint8))
        folder = place / "train" / f"class{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / f"{number:06}.jpg")

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(images)))


def rate(model: Any, x: Any, y: Any, epochs: int, **named: Any) -> float:
    """Images a second of a fit, the best of three; the first fit is not counted."""
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, **named)
    best = 0.0
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, **named)
        best = max(best, epochs * len(y) / (time.perf_counter() - begun))
    return best


def main(images: int = 4096, epochs: int = 5) -> None:
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), images)
        begun = time.perf_counter()
        read = md.data.image_folder(folder, image_size=SIZE, loader_workers=cores).train
        seconds = time.perf_counter() - begun
    print(
        f"{images} JPEG files decoded by {cores} cores: {images / seconds:.0f} images/s", flush=True
    )

    def model() -> Any:
        return md.models.resnet50(
            (SIZE, SIZE, 3), CLASSES, device="cuda", precision="mixed_bf16",
            loss="cross_entropy", optimizer=md.optim.SGD(0.01, momentum=0.9),
        )  # fmt: skip

    there = rate(
        model(), md.asarray(read.x, kind="device"), md.asarray(read.y, kind="device"), epochs
    )
    host = rate(model(), read.x, read.y, epochs)
    workers = max(cores - 1, 1)
    changed = rate(model(), read.x, read.y, epochs, augment="standard", loader_workers=workers)
    print(
        f"images/s: device memory {there:.0f}; the folder's arrays {host:.0f} ({host / there:.3f}); "
        f"standard augmentation by {workers} threads {changed:.0f} ({changed / there:.3f})",
        flush=True,
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
