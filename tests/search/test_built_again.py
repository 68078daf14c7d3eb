"""`build` that gives a model, or a layer, again: it would be trained for several trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError
from tests.mistakes import error_of
from tests.search.problems import S, build, table, untimed

X, Y = table()
BATCHES = {"batch_size": S.choice([8, 16, 32])}
SPACE = {"units": S.choice([3, 5]), **BATCHES}


def search(made: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"method": "grid", "epochs": 2, "seed": 1, **options}
    return S.run(made, SPACE, X, Y, **given)


def remembering() -> Any:
    """Makes one model for each number of units."""
    known: dict[int, md.Model] = {}

    def made(units: int) -> md.Model:
        if units not in known:
            known[units] = build(units=units)
        return known[units]

    return made


def sharing() -> Any:
    """The last layer of all models is one object."""
    last = md.layers.Dense(2)

    def made(units: int) -> md.Model:
        layers = [md.layers.Input(5), md.layers.Dense(units), last]
        return md.Model(layers, loss="cross_entropy", optimizer="sgd", metrics=["accuracy"])

    return made


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("options", [{}, {"total_seconds": 1e6}, {"folds": 3}])
def test_a_model_that_is_given_again_ends_the_search(
    workers: int | None, options: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "study"
    kind, text = error_of(lambda: search(remembering(), workers=workers, out=out, **options))
    assert kind is ArgumentError
    assert text == (
        "search: build gives the layer dense_1 of an earlier call again, which was trained for another "
        "trial: let it make all layers and the model anew in each call"
    )
    done = md.search.load(out).trials  # what was trained for it alone counts
    assert all(trial.state == "done" for trial in done)

    def mended(units: int) -> md.Model:
        return build(units=units)

    study = search(mended, workers=workers, out=out, resume=True, **options)
    assert [trial.state for trial in study.trials] == ["done"] * 6
    assert untimed(study) == untimed(search(mended, **options))


def test_a_layer_that_is_given_again() -> None:
    kind, text = error_of(lambda: S.run(sharing(), {"units": 3, **BATCHES}, X, Y, trials=3))
    assert kind is ArgumentError
    assert "build gives the layer dense_2 of an earlier call again" in text


@pytest.mark.parametrize("how", ["residual", "of a layer's own"])
def test_a_layer_within_a_layer_that_is_given_again(how: str) -> None:
    inner = md.layers.Dense(5)

    class Holds(md.layers.Layer):
        def forward(self, x: Any) -> Any:
            return inner(x)

        def build(self, x: Any) -> None:
            self.inner = inner

    def made(units: int) -> md.Model:
        outer = md.layers.Residual([inner]) if how == "residual" else Holds()
        layers = [md.layers.Input(5), outer, md.layers.Dense(units), md.layers.Dense(2)]
        return md.Model(layers, loss="cross_entropy", optimizer="sgd", metrics=["accuracy"])

    kind, text = error_of(lambda: search(made))
    assert kind is ArgumentError
    assert f"build gives the layer {inner.path} of an earlier call again" in text
    inner.trainable = False
    assert [trial.state for trial in search(made).trials] == ["done"] * 6


def test_layers_that_nobody_trains_may_be_shared() -> None:
    body, other = md.layers.Dense(4, trainable=False), md.layers.Activation("tanh")

    def made(units: int) -> md.Model:
        layers = [md.layers.Input(5), body, other, md.layers.Dense(units), md.layers.Dense(2)]
        return md.Model(layers, loss="cross_entropy", optimizer="sgd", metrics=["accuracy"])

    study = search(made)
    assert [trial.state for trial in study.trials] == ["done"] * 6
