"""Random networks of layers of images, wide ones too, in native code and in NumPy: trained, they agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers
from magmadnn.errors import ArgumentError, ShapeError

Rng = np.random.Generator
CLASSES = 3
EXACT = 1e-9  # float64: some thousand roundings, grown by two steps of training


def pair(rng: Rng, most: int) -> tuple[int, int]:
    return int(rng.integers(1, most + 1)), int(rng.integers(1, most + 1))


def padding(rng: Rng) -> Any:
    uneven = (int(rng.integers(0, 2)), int(rng.integers(0, 3))), (0, 1)
    return ["valid", "same", int(rng.integers(0, 3)), uneven][rng.integers(0, 4)]


def divisor(rng: Rng, channels: int) -> int:
    return int(rng.choice([n for n in (1, 2, 3, 4, 8) if channels % n == 0]))


def drawn_layer(rng: Rng, channels: int) -> tuple[layers.Layer, int]:
    """A layer, and how many channels it leaves."""
    size, strides, dilation = pair(rng, 4), pair(rng, 3), pair(rng, 2)
    pooled: dict[str, Any] = {"strides": [None, strides][rng.integers(0, 2)]}
    pooled["padding"] = padding(rng)
    kind = rng.integers(0, 12)
    if kind < 3:
        groups = divisor(rng, channels)
        filters = groups * int(rng.choice([1, 3, 8, 33]))
        if dilation != (1, 1) and rng.random() < 0.5:
            strides = (1, 1)
        shared: dict[str, Any] = {"padding": padding(rng), "dilation": dilation, "groups": groups}
        activation = [None, "relu", "tanh"][rng.integers(0, 3)]
        made = layers.Conv2D(filters, size, strides=strides, activation=activation, **shared)
        return made, filters
    if kind == 3:
        filters = int(rng.choice([1, 3, 8, 36]))
        shared = {"strides": strides, "padding": padding(rng), "dilation": dilation}
        return layers.Conv2DTranspose(filters, size, **shared), filters
    if kind == 4:
        counts = bool(rng.random() < 0.5)
        return layers.AveragePooling2D(size, **pooled, count_padding=counts), channels
    other: list[layers.Layer] = [
        layers.MaxPooling2D(size, **pooled),
        layers.BatchNorm(),
        layers.GroupNorm(divisor(rng, channels)),
        layers.LocalResponseNormalization(),
        layers.UpSampling2D(2, ["nearest", "bilinear"][rng.integers(0, 2)]),
        layers.SpatialDropout2D(0.3),
        layers.ZeroPadding2D((1, 2)),
    ]
    return other[kind - 5], channels


def drawn_network(rng: Rng, executor: str, seed: int) -> md.Model:
    channels = int(rng.choice([1, 3, 4, 8, 16, 32, 33, 48]))
    parts: list[Any] = [layers.Input((*pair(rng, 13), channels))]
    for _ in range(rng.integers(2, 5)):
        layer, channels = drawn_layer(rng, channels)
        parts.append(layer)
    return md.Model(
        [*parts, layers.Flatten(), layers.Dense(CLASSES)],
        loss="cross_entropy",
        optimizer=md.optim.SGD(0.05),
        precision="float64",
        executor=executor,
        seed=seed,
    )


@pytest.mark.parametrize(
    "seeds",
    [range(10, 17), pytest.param(range(17, 400), marks=pytest.mark.long)],
    ids=["few", "many"],
)
def test_random_networks_agree_with_numpy(seeds: range) -> None:
    count = 0
    for seed in seeds:
        try:
            one, other = (
                drawn_network(np.random.default_rng(seed), executor, seed)
                for executor in ("native", "reference")
            )
        except (ShapeError, ArgumentError):  # a window larger than what is left, or all in a pad
            continue
        rng = np.random.default_rng(seed + 10**6)
        x, y = rng.normal(size=(7, *one.inputs[0].shape[1:])), rng.integers(0, CLASSES, 7)
        before = one.predict(x), other.predict(x)
        np.testing.assert_allclose(*before, rtol=EXACT, atol=EXACT, err_msg=f"seed {seed}")
        for model in (one, other):
            model.fit(x, y, batch_size=4, verbose=False)
        values = other.values()
        for name, found in one.values().items():
            what = f"seed {seed}: {name}"
            np.testing.assert_allclose(found, values[name], rtol=EXACT, atol=EXACT, err_msg=what)
        count += 1
    assert count > len(seeds) // 4
