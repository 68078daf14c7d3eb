"""Training on images that are decoded batch by batch: how much of them is in memory at a time."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import magmadnn as md
from magmadnn.ops import philox

IMAGES, SIZE, BATCH = 240, 64, 4
ROW = 4 * 3 * SIZE * SIZE  # bytes


@pytest.fixture
def folder(tmp_path):
    for k in range(IMAGES):
        bits = philox.random_bits(1, k, 3 * SIZE * SIZE)
        pixels = (bits % np.uint32(9 + k)).astype(np.uint8).reshape(SIZE, SIZE, 3)
        place = tmp_path / ("odd" if k % 2 else "even")
        place.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(place / f"{k:03}.png")
    return tmp_path


def network() -> md.Model:
    layers = md.layers
    x = layers.Input((SIZE, SIZE, 3))
    hidden = layers.AveragePooling2D(8)(layers.Conv2D(4, 3, strides=2, activation="relu")(x))
    outputs = layers.Dense(2)(layers.Flatten()(hidden))
    return md.Model(
        inputs=x, outputs=outputs, loss="cross_entropy", optimizer=md.optim.SGD(0.01), seed=1
    )


def fit(folder: Path, decode: Any, **options: Any) -> tuple[dict[str, Any], int]:
    """Parameters after two epochs, and the most bytes that data took meanwhile."""
    tracemalloc.start()
    read = md.data.load(folder, image_size=SIZE, decode=decode, test_split=0.1)
    model = network()
    x, y = read.train()
    model.fit(x, y, batch_size=BATCH, epochs=2, verbose=False, **options)
    model.evaluate(*read.test(), batch_size=BATCH)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {**model.values(), "predictions": model.predict(x, batch_size=BATCH)}, most


@pytest.mark.parametrize("augment", [None, "standard"])
def test_memory_does_not_hold_the_images_and_results_are_the_same(folder, monkeypatch, augment):
    monkeypatch.setattr("magmadnn.training.loop.pieces._RING_BYTES", 2 * BATCH * ROW)
    monkeypatch.setattr("magmadnn.memory.on_demand._READ_BYTES", BATCH * ROW)
    monkeypatch.setattr("magmadnn.data.validation._BLOCK", BATCH * ROW // 4)
    fit(folder, "stream", augment=augment)  # what is loaded and compiled once is not counted
    there, much = fit(folder, "memory", augment=augment)
    made, little = fit(folder, "stream", augment=augment, loader_workers=2)
    assert made.keys() == there.keys()
    for name, value in there.items():
        np.testing.assert_array_equal(made[name], value, strict=True)
    assert much - little > 1.5 * IMAGES * ROW  # raw and prepared images were held there
    assert little < 0.6 * IMAGES * ROW


def test_a_file_that_was_damaged_meanwhile_is_named_by_fit(folder):
    read = md.data.image_folder(folder, decode="stream").train
    read.paths[77].write_bytes(b"")
    words = rf"rows .* cannot be read.*{read.paths[77].name}: is empty"
    with pytest.raises(md.errors.DataError, match=words):
        network().fit(read.x, read.y, batch_size=BATCH, verbose=False)


def test_the_profile_says_how_long_a_fit_waited_for_images(folder):
    read = md.data.image_folder(folder, decode="stream").train
    model = network()
    model.fit(read.x, read.y, batch_size=BATCH, verbose=False)
    found = model.profile(read.x, read.y, batch_size=BATCH)
    waited, seconds = found.waited
    assert 0 < waited <= seconds
    assert "for its data" in str(found)
