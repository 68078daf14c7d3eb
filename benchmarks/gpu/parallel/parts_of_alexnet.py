"""What a rank computes of AlexNet by `Hybrid`, without any exchange, on one GPU.

    python benchmarks/gpu/parallel/parts_of_alexnet.py

A rank of P has the convolutions of 1/P of the rows, and 1/P of the units of two of the three dense layers for
all rows. Both parts are trained apart here, in mixed_bf16: the sum of their steps is a floor for a step on P
GPUs, whatever is sent and however well it is hidden. Microseconds of a step, the best epoch behind the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import magmadnn as md

STEPS = 24
DENSE = (9216, 4096, 4096, 1000)


def given() -> dict[str, Any]:
    """What all models here are trained with."""
    return {
        "loss": "cross_entropy",
        "optimizer": md.optim.SGD(0.01),
        "device": "cuda",
        "precision": "mixed_bf16",
        "seed": 1,
    }


def alexnet() -> md.Model:
    """The whole network."""
    return md.models.alexnet((224, 224, 3), 1000, dropout=0.0, **given())


def convolutions() -> md.Model:
    """Its convolutions and pooling, with a dense layer of 8 units for a loss."""
    wide = [(64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1)]
    layers: list[Any] = [md.layers.Input((224, 224, 3))]
    for number, (channels, size, strides, padding) in enumerate(wide):
        layers.append(
            md.layers.Conv2D(channels, size, strides=strides, padding=padding, activation="relu")
        )
        if number in (0, 1, 4):
            layers.append(md.layers.MaxPooling2D(3, strides=2))
    return md.Model([*layers, md.layers.Flatten(), md.layers.Dense(8)], **given())


def dense(ranks: int) -> md.Model:
    """The dense layers of one of `ranks`: columns of the first and the last, rows of the second."""
    inputs, first, second, classes = DENSE
    layers: list[Any] = [md.layers.Input((inputs,))]
    layers += [md.layers.Dense(n, activation="relu") for n in (first // ranks, second)]
    return md.Model([*layers, md.layers.Dense(classes // ranks)], **given())


def microseconds(model: md.Model, shape: tuple[int, ...], classes: int, rows: int) -> float:
    """A step with so many rows."""
    draw = np.random.default_rng(0)
    some = draw.standard_normal((min(rows * STEPS, 512), *shape), np.float32)
    x = np.resize(some, (rows * STEPS, *shape))
    y = draw.integers(0, classes, rows * STEPS)
    history = model.fit(x, y, batch_size=rows, epochs=5, shuffle=False, verbose=False)
    return 1e6 * rows / max(float(row["samples_per_second"]) for row in history.rows[1:])


def main() -> None:
    """Print the parts for one, two and four ranks."""
    images = (224, 224, 3)
    for batch in (256, 1024):
        alone = microseconds(alexnet(), images, 1000, batch)
        print(f"AlexNet, {batch} rows: {alone:.0f} us a step")
        for ranks in (2, 4):
            parts = (
                microseconds(convolutions(), images, 8, batch // ranks),
                microseconds(dense(ranks), DENSE[:1], DENSE[-1] // ranks, batch),
            )
            print(
                f"  one of {ranks} ranks: convolutions {parts[0]:.0f}, dense layers {parts[1]:.0f}, "
                f"{alone / ranks / sum(parts):.2f} of {ranks} times one GPU"
            )


if __name__ == "__main__":
    main()
