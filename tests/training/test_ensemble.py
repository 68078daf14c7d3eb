"""Ensembles: means and deviations of members, files, members that do not go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers
from magmadnn.errors import ArgumentError, CheckpointError
from magmadnn.storage.checkpoint import State, load_state, parameters_sha256, save_state
from tests.mistakes import error_of

DRAW = np.random.default_rng(8)
X = DRAW.normal(size=(41, 5)).astype(np.float32)
Y = DRAW.integers(0, 3, 41)


def network(seed: int, width: int = 3, **given: Any) -> md.Model:
    options: dict[str, Any] = {"loss": "cross_entropy", "optimizer": "adam", **given}
    return md.Model(
        [layers.Input((5,)), layers.Dense(7, activation="tanh"), layers.Dense(width)],
        seed=seed,
        **options,
    )


def test_means_and_deviations() -> None:
    models = [network(k) for k in range(4)]
    each = [m.predict(X).astype(np.float64) for m in models]
    together = md.Ensemble(models)
    mean = sum(each) / 4
    np.testing.assert_allclose(together.predict(X, batch_size=7), mean, rtol=1e-6)
    spread = np.sqrt(sum((p - mean) ** 2 for p in each) / 4)
    np.testing.assert_allclose(together.predict_std(X), spread, rtol=1e-6)
    shares = []
    for p in each:
        e = np.exp(p - p.max(1, keepdims=True))
        shares.append(e / e.sum(1, keepdims=True))
    mixture = sum(shares) / 4
    np.testing.assert_allclose(together.predict_probability(X), mixture, rtol=1e-5)
    np.testing.assert_array_equal(together.predict_class(X), mixture.argmax(1))
    assert (mixture.argmax(1) != mean.argmax(1)).any()  # the two would not always agree
    assert len(together) == 4


def test_one_member_has_no_deviation() -> None:
    model = network(3)
    together = md.Ensemble([model])
    np.testing.assert_array_equal(together.predict(X), model.predict(X))
    assert not together.predict_std(X).any()


def test_members_with_preparations_of_their_own() -> None:
    names = np.array(["clay", "loam", "sand"])[Y]
    models = [network(k, preparation=md.data.Standardize()) for k in range(3)]
    half = [np.arange(k, 41, 2) for k in (0, 1, 0)]
    md.fit_many(models, X * 30 + 5, names, epochs=3, rows=half)
    assert models[0].preparation != models[1].preparation
    together = md.Ensemble(models)
    shares = np.mean([m.predict_probability(X * 30 + 5) for m in models], axis=0)
    found = together.predict_class(X * 30 + 5)
    assert found.tolist() == np.array(["clay", "loam", "sand"])[shares.argmax(1)].tolist()


def test_quantities_are_in_their_units() -> None:
    target = 1000 + 50 * X[:, :1].astype(np.float64)
    models = [network(k, width=1, loss="mse", preparation=md.data.Standardize()) for k in range(2)]
    md.fit_many(models, X, target, epochs=2)
    mean = (models[0].predict(X) + models[1].predict(X)) / 2
    np.testing.assert_allclose(md.Ensemble(models).predict(X), mean)
    assert mean.mean() > 900


def test_labels() -> None:
    models = [network(k, loss="binary_cross_entropy") for k in range(3)]
    together = md.Ensemble(models)
    shares = together.predict_probability(X)
    np.testing.assert_array_equal(together.predict_class(X), shares > 0.5)


def test_several_outputs() -> None:
    def built(seed: int) -> md.Model:
        x = layers.Input((5,))
        hidden = layers.Dense(4)(x)
        outputs = [layers.Dense(2, name="a")(hidden), layers.Dense(3, name="b")(hidden)]
        return md.Model(inputs=x, outputs=outputs, loss=["cross_entropy"] * 2, seed=seed)

    models = [built(k) for k in range(3)]
    together = md.Ensemble(models)
    assert [p.shape for p in together.predict(X)] == [(41, 2), (41, 3)]
    assert together.predict_probability(X, output="b").shape == (41, 3)
    assert together.predict_class(X, output="a").shape == (41,)
    np.testing.assert_allclose(
        together.predict_std(X)[1], np.std([m.predict(X)[1] for m in models], axis=0), rtol=1e-5
    )


def test_saved_and_loaded(tmp_path: Path) -> None:
    models = [network(k, preparation=md.data.Standardize()) for k in range(3)]
    md.fit_many(models, X, Y, epochs=2)
    together = md.Ensemble(models)
    together.save(tmp_path / "e")
    md.Ensemble(models[:2]).save(tmp_path / "e")
    together.save(tmp_path / "e")
    again = md.load(tmp_path / "e")
    assert isinstance(again, md.Ensemble)
    assert [m.seed for m in again.models] == [0, 1, 2]
    for a, b in zip(models, again.models, strict=True):
        assert parameters_sha256(a.values().items()) == parameters_sha256(b.values().items())
    np.testing.assert_array_equal(together.predict(X), again.predict(X))
    models[0].save(tmp_path / "m")
    assert isinstance(md.load(tmp_path / "m"), md.Model)


def test_a_folder_that_is_damaged(tmp_path: Path) -> None:
    md.Ensemble([network(0)]).save(tmp_path / "e")
    state = load_state(tmp_path / "e")
    for record, words in (
        ({"kind": "ensemble", "models": []}, "holds an ensemble of no models; it is damaged"),
        ({"kind": "ensemble", "models": 3}, "models"),
        ({"kind": "study"}, "holds a study, not a model"),
    ):
        save_state(tmp_path / "e", State(state.tensors, record), replace=True)
        with pytest.raises(CheckpointError, match=words):
            md.load(tmp_path / "e")
    text = json.loads((tmp_path / "e" / "record.json").read_text())
    (tmp_path / "e" / "record.json").write_text(json.dumps(text) + " ")
    with pytest.raises(CheckpointError):
        md.load(tmp_path / "e")


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (list, "Ensemble: models is empty; give a list of md.Model"),
        (
            lambda: [network(0), "x"],
            "Ensemble: models[1] must be a md.Model, got 'x'",
        ),
        (
            lambda: [network(0), network(1, width=4)],
            (
                "Ensemble: models[1] has outputs (batch, 4), but models[0] (batch, 3); members must be "
                "alike in that"
            ),
        ),
        (
            lambda: [network(0)] * 2,
            "Ensemble: models[1] is models[0] again; build each model anew, or copy.deepcopy(model)",
        ),
    ],
)
def test_members_that_do_not_go_together(models: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        md.Ensemble(models())
    assert str(caught.value) == words


def test_members_of_other_classes() -> None:
    models = [network(k, preparation=md.data.Standardize()) for k in range(2)]
    for model, names in zip(models, (["a", "b", "c"], ["a", "b", "d"]), strict=True):
        model.fit(X, np.array(names)[Y], verbose=0)
    with pytest.raises(ArgumentError, match="has classes \\('a', 'b', 'd'\\), but models\\[0\\]"):
        md.Ensemble(models)


def test_no_probabilities_of_quantities() -> None:
    together = md.Ensemble([network(k, loss="mse") for k in range(2)])
    for method in (together.predict_probability, together.predict_class):
        with pytest.raises(ArgumentError, match="use predict"):
            method(X)


def test_attributes_that_an_ensemble_does_not_have() -> None:
    ensemble = md.Ensemble([md.Model([md.layers.Input(2), md.layers.Dense(2)])])
    for name, hint in (("fit", "md.fit_many(ensemble.models, x, y)"), ("predicts", "'predict'")):
        kind, text = error_of(lambda name=name: getattr(ensemble, name))  # type: ignore[misc]
        assert issubclass(kind, AttributeError)
        assert text.startswith(f"Ensemble has no attribute '{name}': ")
        assert hint in text
