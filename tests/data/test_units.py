"""Images in other units than those of training, which would give nonsense without a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import DataError

RNG = np.random.default_rng(11)
LEVELS = RNG.integers(0, 256, (37, 5, 4, 3), np.uint8)
SHARES = (LEVELS / 255).astype(np.float32)
CLASSES = np.arange(37) % 2


def fitted(x: np.ndarray) -> md.data.Preparation:
    return md.data.Preparation.fit(x, CLASSES)


def test_bytes_for_values_from_0_to_1() -> None:
    made = fitted(SHARES)
    words = "look like levels up to 255 where training had values from 0 to 1: divide them by 255"
    for given in (LEVELS, LEVELS.astype(np.float64), LEVELS[:1], (LEVELS // 20)[:1]):
        with pytest.raises(DataError, match=words):
            made.apply_inputs(given)
    assert made.apply_inputs(SHARES[:0]).shape == (0, 5, 4, 3)


def test_values_from_0_to_1_for_bytes() -> None:
    made = fitted(LEVELS)
    for given in (SHARES, SHARES[3:4].astype(np.float64)):
        with pytest.raises(
            DataError, match="from 0 to 1 where training had levels up to 255: mult"
        ):
            made.apply_inputs(given)
    # an image that is black, or all but black, may be
    made.apply_inputs(np.zeros((1, 5, 4, 3), np.float32))
    made.apply_inputs((LEVELS[:3] > 200).astype(np.float32))


def test_every_row_of_a_few_is_looked_at() -> None:
    """A mean over sixteen rows or fewer, wherever among them the bytes are."""
    made = fitted(SHARES)
    mixed = SHARES[:5].copy()
    mixed[4] = LEVELS[4]
    with pytest.raises(DataError, match="divide them by 255"):
        made.apply_inputs(mixed)


def test_data_of_other_kinds_is_not_taken_for_images_from_0_to_1() -> None:
    rare = np.zeros((37, 5, 4, 1), np.float32)  # such as energies of cells that were hit
    rare[::9, 2, 1] = 7.0
    fitted(rare).apply_inputs(np.full((1, 5, 4, 1), 30.0, np.float32))
    counts = RNG.poisson(0.5, (37, 5, 4, 1)).astype(np.uint8)
    fitted(counts).apply_inputs(np.full((1, 5, 4, 1), 9, np.uint8))
    columns = md.data.Preparation.fit(SHARES.reshape(37, 60), CLASSES)
    columns.apply_inputs(LEVELS.reshape(37, 60))
    degrees = RNG.normal(15, 8, (37, 5, 4, 1))
    fitted(degrees).apply_inputs(RNG.random((1, 5, 4, 1)))
    fitted(SHARES - 0.5).apply_inputs(LEVELS)  # standardised by somebody else: nothing is known


def test_images_that_were_prepared_already() -> None:
    for x in (SHARES, LEVELS):
        made = fitted(x)
        prepared = made.apply_inputs(x)
        for given in (prepared, prepared[5:13]):
            with pytest.raises(DataError, match=r"look prepared already.* prepared=True"):
                made.apply_inputs(given)
        made.apply_inputs(prepared[:3])  # too few to tell
    standardised = (SHARES - SHARES.mean()) / SHARES.std()
    fitted(standardised).apply_inputs(standardised)
    fitted(3 * standardised).apply_inputs(2 * standardised)  # other images are not refused
    constant = np.concatenate([SHARES, np.zeros_like(SHARES[..., :1])], axis=-1)
    made = fitted(constant)
    with pytest.raises(DataError, match="look prepared already"):
        made.apply_inputs(made.apply_inputs(constant))


def test_a_model_refuses_them_wherever_they_come_in(tmp_path: Path) -> None:
    layers = md.layers
    model = md.Model(
        [layers.Input((5, 4, 3)), layers.Flatten(), layers.Dense(2)],
        loss="cross_entropy",
        optimizer="sgd",
        preparation=md.data.Standardize(),
    )
    wrong = {"x": LEVELS, "y": CLASSES}
    with pytest.raises(DataError, match=r"^fit: validation_data: x: images have a mean of "):
        model.fit(SHARES, CLASSES, validation_data=(LEVELS, CLASSES), epochs=1, verbose=False)
    model.fit(SHARES, CLASSES, epochs=1, verbose=False)
    for name, call in (
        ("predict", lambda: model.predict(LEVELS)),
        ("evaluate", lambda: model.evaluate(LEVELS, CLASSES)),
        ("fit", lambda: model.fit(LEVELS, CLASSES, epochs=1, verbose=False)),
    ):
        with pytest.raises(DataError, match=rf"^{name}: x: images have a mean of "):
            call()
    np.savez(tmp_path / "levels.npz", x=LEVELS.astype(np.float32), y=CLASSES)
    with pytest.raises(DataError, match="divide them by 255"):
        md.data.load_for(model.preparation, tmp_path / "levels.npz")
    np.savez(tmp_path / "bytes.npz", **wrong)  # files of bytes are scaled as they are read
    assert md.data.load_for(model.preparation, tmp_path / "bytes.npz").x.shape == LEVELS.shape
