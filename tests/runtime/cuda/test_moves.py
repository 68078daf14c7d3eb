"""Checkpoints and saved models do not depend on where a model was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples

EPS = float(np.finfo(np.float32).eps)
SIZES = (13, 17, 5)
SETTINGS: dict[str, Any] = {"batch_size": 8, "verbose": 0}


def trained(place: str, epochs: int, folder: Path | None = None) -> Any:
    x, y = samples(43, 13, 5)
    model = network(SIZES, md.optim.Adam(0.01), device=place)
    keep = [] if folder is None else [md.callbacks.Checkpoint(folder, signals=False)]
    model.fit(x, y, epochs=epochs, callbacks=keep, **SETTINGS)
    return model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("first", "then"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_training_goes_on_elsewhere(device: str, first: str, then: str, tmp_path: Path) -> None:
    """Two epochs there, two more here: as four there, but for the rounding of 24 updates."""
    with on(device):
        begun = trained(first, 2, tmp_path)
        moved = trained(then, 4, tmp_path)
        assert distance(begun, moved) > 1e-3  # it went on
        assert distance(moved, trained(first, 4)) < 24 * 64 * EPS
        assert distance(moved, trained(then, 2)) > 1e-3  # from what was there


@pytest.mark.parametrize("device", DEVICES)
def test_a_saved_model_has_no_place(device: str, tmp_path: Path) -> None:
    x, _ = samples(43, 13, 5)
    with on(device):
        there = trained("cuda", 1)
        there.save(tmp_path / "model")
        here, again = md.load(tmp_path / "model"), md.load(tmp_path / "model", device="cuda")
        assert (here.device, again.device) == ("cpu", "cuda:0")
        assert distance(there, here) == distance(there, again) == 0
        np.testing.assert_array_equal(again.predict(x), there.predict(x))
        np.testing.assert_allclose(here.predict(x), there.predict(x), rtol=0, atol=64 * EPS)
