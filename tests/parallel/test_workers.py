"""A fit in `with md.workers(...)`: by processes of its own, with the bits of simulated ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, DataError, MagmaDNNError

ROOT = Path(__file__).resolve().parents[2]
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(75, 6)).astype(np.float32)
Y = DRAW.integers(0, 3, 75)
WEIGHTS = DRAW.uniform(0, 2, 75)


@pytest.fixture(autouse=True)
def package_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """By the workers, which have the client's environment."""
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{before}" if before else str(ROOT))
    yield


def network(*more: Any) -> md.Model:
    layers = [
        md.layers.Input((6,)), md.layers.Dense(9), *more, md.layers.BatchNorm(), md.layers.Dropout(0.2),
        md.layers.Dense(3),
    ]  # fmt: skip
    return md.Model(layers, loss="cross_entropy", optimizer="adam", metrics=["accuracy"])


@pytest.mark.parametrize("count", [0, 2])
def test_fits_follow_each_other_with_the_same_bits(count: int) -> None:
    """Moments, counters and the order of the data go on in the client between two fits."""
    if count:
        pytest.importorskip("mpi4py")
    given: dict[str, Any] = {"batch_size": 16, "sample_weight": WEIGHTS, "verbose": False}
    whole, parts = network(), network()
    rows = whole.fit(X, Y, epochs=3, parallel=md.parallel.DataParallel(), **given).rows
    with md.workers(count):
        first = parts.fit(X, Y, epochs=2, validation_data=(X[:9], Y[:9]), **given)
        second = parts.fit(X, Y, **given)
    assert [r["loss"] for r in (*first.rows, *second.rows)] == [r["loss"] for r in rows]
    assert "val_loss" in first.columns
    assert parts.epochs_done == 3
    for name, value in whole.values().items():
        np.testing.assert_array_equal(parts.values()[name], value)
    alone, after = network(), network()
    for model in (alone, after):
        model.fit(X, Y, **given)
    for name, value in alone.values().items():
        np.testing.assert_array_equal(after.values()[name], value)


def test_what_cannot_travel_is_told() -> None:
    with md.workers(0):
        for options, what in (
            ({"callbacks": [md.callbacks.EarlyStopping()]}, "callbacks cannot travel"),
            ({"batch_size": lambda epoch: 8}, "a function for batch_size"),
            ({"augment": [object()]}, "a list for augment"),
        ):
            with pytest.raises(ArgumentError, match=what):
                network().fit(X, Y, verbose=False, **options)
        with pytest.raises(ArgumentError, match="batches of an iterable"):
            network().fit([(X, Y)], verbose=False)
        with pytest.raises(MagmaDNNError, match="function"):
            network(md.layers.Lambda(lambda x: x + 1)).fit(X, Y, verbose=False)
        with pytest.raises(DataError, match="class"):
            network().fit(X, Y + 3, verbose=False)
        model = network()
        model.fit(
            X, Y, verbose=False, parallel=False, callbacks=[md.callbacks.EarlyStopping("loss")]
        )
        assert model.epochs_done == 1
