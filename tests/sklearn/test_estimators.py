"""The estimators: scikit-learn's own checks, and what those do not look at."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import magmadnn as md
from magmadnn.errors import ArgumentError, DataError, ShapeError
from magmadnn.models.network import rows_of_batch
from magmadnn.sklearn import MagmaClassifier, MagmaRegressor

SMALL = {"hidden_layer_sizes": 16, "max_iter": 60, "learning_rate_init": 5e-3}
LEARNS = {"max_iter": 60, "learning_rate_init": 0.01, "weight_decay": 0.1, "random_state": 0}
TINY = {"hidden_layer_sizes": 8, "max_iter": 3, "random_state": 0}
RNG = np.random.default_rng(11)
X = RNG.normal(size=(90, 3)) * (1.0, 40.0, 0.1) + (0.0, 300.0, 5.0)
Y = 1000.0 + 30.0 * X[:, 0] - X[:, 1]
CLASSES = np.array(["clay", "loam", "sand"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 320)]
LABELS = np.column_stack([X[:, 0] > 0, X[:, 1] > 300, X[:, 2] > 5]).astype(int)


@parametrize_with_checks([MagmaClassifier(**SMALL), MagmaRegressor(**SMALL)])
def test_checks_of_scikit_learn(estimator, check) -> None:
    check(estimator)


@pytest.mark.long
@parametrize_with_checks([MagmaClassifier(), MagmaRegressor()])
def test_checks_of_scikit_learn_with_the_default_settings(estimator, check) -> None:
    check(estimator)


def test_a_regressor_predicts_in_the_targets_own_units() -> None:
    model = MagmaRegressor(**LEARNS).fit(X, Y)
    assert model.score(X, Y) > 0.9
    assert abs(model.predict(X).mean() - Y.mean()) < Y.std() / 4
    assert model.n_iter_ == len(model.history_) == 60


def test_several_targets_each_in_its_units() -> None:
    both = np.column_stack([Y, -0.001 * X[:, 0]])
    model = MagmaRegressor(**LEARNS).fit(X, both)
    assert model.predict(X).shape == (90, 2)
    assert model.score(X, both) > 0.8
    np.testing.assert_allclose(model.target_scaling_.std, both.std(axis=0))


def test_probabilities_and_decisions_agree_with_the_classes() -> None:
    model = MagmaClassifier(**TINY).fit(X, CLASSES)
    shares = model.predict_proba(X)
    assert model.classes_.tolist() == ["clay", "loam", "sand"]
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.classes_[shares.argmax(axis=1)], model.predict(X))
    assert model.decision_function(X).shape == (90, 3)
    two = MagmaClassifier(**TINY).fit(X, LABELS[:, 0])
    np.testing.assert_array_equal(two.decision_function(X) > 0, two.predict(X) == 1)


def test_a_row_may_have_several_labels() -> None:
    model = MagmaClassifier(**LEARNS).fit(X, LABELS)
    assert model.score(X, LABELS) > 0.7
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X) > 0.5)


def test_the_default_settings_are_those_of_the_preset() -> None:
    model = MagmaRegressor()
    preset = md.models.MLP.preset("table")
    assert model.hidden_layer_sizes == preset.hidden
    assert model._settings(250) == preset.for_rows(250)


@pytest.mark.parametrize("state", [3, "RandomState"])
def test_the_same_random_state_gives_the_same_network(state) -> None:
    def predicted():
        given = np.random.RandomState(3) if state == "RandomState" else state
        return MagmaRegressor(**{**TINY, "random_state": given}).fit(X, Y).predict(X)

    first = predicted()
    np.testing.assert_array_equal(first, predicted())
    other = MagmaRegressor(**{**TINY, "random_state": 4}).fit(X, Y).predict(X)
    assert abs(first - other).max() > 1e-3


def test_pipelines_searches_and_other_processes() -> None:
    pipeline = make_pipeline(StandardScaler(), MagmaClassifier(**TINY))
    search = GridSearchCV(
        pipeline, {"magmaclassifier__hidden_layer_sizes": [4, (8, 8)]}, cv=2, n_jobs=2
    )
    search.fit(X, CLASSES)
    assert search.best_params_["magmaclassifier__hidden_layer_sizes"] in (4, (8, 8))
    here = cross_val_score(clone(pipeline), X, CLASSES, cv=2)
    there = cross_val_score(clone(pipeline), X, CLASSES, cv=2, n_jobs=2)
    np.testing.assert_array_equal(here, there)


def test_a_pickled_estimator_predicts_alike() -> None:
    model = MagmaClassifier(**TINY).fit(X, CLASSES)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))


def test_early_stopping_keeps_rows_back_and_refit_takes_all() -> None:
    given = {**TINY, "max_iter": 40, "early_stopping": True, "n_iter_no_change": 2}
    noise = RNG.normal(size=90)
    stopped = MagmaRegressor(**given).fit(X, noise)
    assert stopped.n_iter_ < 40
    assert stopped.best_iter_ == stopped.n_iter_ - 3
    again = MagmaRegressor(**given, refit=True).fit(X, noise)
    assert again.n_iter_ == again.best_iter_ == stopped.best_iter_
    assert "val_loss" not in again.history_.columns
    assert abs(again.predict(X) - stopped.predict(X)).max() > 1e-6


def test_refit_keeps_the_settings_that_the_best_epoch_was_found_with() -> None:
    """486 rows have smaller batches, and other epochs, than the 540 rows with those kept back."""
    x, y = RNG.normal(size=(540, 3)), RNG.normal(size=540)
    model = MagmaRegressor(hidden_layer_sizes=4, random_state=0, early_stopping=True, refit=True)
    model.fit(x, y)
    preset = model._settings(486)
    assert preset != model._settings(540)
    last, planned = (epochs * -(-540 // 16) for epochs in (model.best_iter_, preset.epochs))
    rate = 1e-3 * (1 + np.cos(np.pi * (last - 1) / planned))  # half of the first rate, 0.002
    assert model.history_["learning_rate"][-1] == pytest.approx(rate, rel=1e-6)


def test_rows_that_made_one_batch_do_when_they_are_more() -> None:
    assert (rows_of_batch(54, 54, 60), rows_of_batch(16, 54, 60)) == (60, 16)
    given = {**TINY, "early_stopping": True, "refit": True}
    model = MagmaRegressor(**given).fit(X[:60], Y[:60])  # 54 rows, then 60
    rate = 1e-3 * (1 + np.cos(np.pi * (model.best_iter_ - 1) / 3))  # a step an epoch
    assert model.history_["learning_rate"][-1] == pytest.approx(rate, rel=1e-6)


def test_warm_start_goes_on() -> None:
    model = MagmaRegressor(**TINY, warm_start=True).fit(X, Y)
    first = model.score(X, Y)
    for _ in range(10):
        model.fit(X, Y)
    assert model.score(X, Y) > first
    model.set_params(hidden_layer_sizes=4)
    with pytest.raises(ArgumentError, match="warm_start goes on with the network of the last fit"):
        model.fit(X, Y)


def test_partial_fit_does_an_epoch_each_time() -> None:
    model = MagmaClassifier(hidden_layer_sizes=16, random_state=0, learning_rate_init=0.01)
    for epoch in range(20):
        model.partial_fit(X, CLASSES, classes=["sand", "loam", "clay"])
        assert model.n_iter_ == epoch + 1
    assert model.score(X, CLASSES) > 0.75
    fitted = MagmaRegressor(**TINY).fit(X, Y)
    before = fitted.predict(X)
    assert abs(fitted.partial_fit(X, Y).predict(X) - before).max() > 1e-3


def test_precision_follows_the_rows() -> None:
    for dtype in (np.float32, np.float64):
        model = MagmaRegressor(**TINY).fit(X.astype(dtype), Y)
        assert {p.dtype for p in model.model_.parameters()} == {np.dtype(dtype)}
    single = MagmaRegressor(**TINY, precision="float32").fit(X, Y)
    assert single.model_.inputs[0].dtype == np.float32


MISTAKES = {
    "one class": (
        lambda: MagmaClassifier(**TINY).fit(X, np.zeros(90)), DataError,
        "fit: y has one class only",
    ),
    "several columns of classes": (
        lambda: MagmaClassifier(**TINY).fit(X, LABELS + np.arange(3)), DataError,
        "fit: y has several columns, but classes of several outputs are not known",
    ),
    "schedule": (
        lambda: MagmaRegressor(learning_rate="adaptive").fit(X, Y), ArgumentError,
        "learning_rate 'adaptive' is not known: known are constant, cosine",
    ),
    "epochs": (
        lambda: MagmaRegressor(max_iter=0).fit(X, Y), ArgumentError,
        "max_iter must be an integer of at least 1, got 0",
    ),
    "batch": (
        lambda: MagmaRegressor(batch_size=0).fit(X, Y), ArgumentError,
        "batch_size must be an integer of at least 1, got 0",
    ),
    "first classes": (
        lambda: MagmaClassifier(**TINY).partial_fit(X, CLASSES), ArgumentError,
        "partial_fit: classes must be given in the first call",
    ),
    "stopping in parts": (
        lambda: MagmaRegressor(early_stopping=True).partial_fit(X, Y), ArgumentError,
        "partial_fit: early_stopping needs the epochs of fit",
    ),
    "other targets": (
        lambda: MagmaRegressor(**TINY, warm_start=True).fit(X, Y).fit(X, np.c_[Y, Y]), ShapeError,
        "fit: y has 2 targets, expected 1 as before",
    ),
    "other classes": (
        lambda: MagmaClassifier(**TINY, warm_start=True).fit(X, LABELS[:, 0]).fit(X, LABELS.sum(1)),
        DataError, "fit: y has the class 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("act", "error", "text"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(act, error, text: str) -> None:
    with pytest.raises(error, match=text):
        act()


def test_masked_elements_are_refused() -> None:
    """By scikit-learn's checks they would be the numbers under the mask."""
    x = np.random.default_rng(5).normal(size=(29, 3))
    y, masked = x[:, 0], np.ma.masked_less(x, -1)
    known = MagmaRegressor(max_iter=1).fit(np.ma.array(x), y)
    for call in (
        lambda: MagmaRegressor(max_iter=1).fit(masked, y),
        lambda: MagmaRegressor(max_iter=1).fit(x, masked[:, 0]),
        lambda: MagmaRegressor(max_iter=1).partial_fit(x, y, np.ma.masked_less(abs(y), 0.1)),
        lambda: known.predict(masked),
    ):
        with pytest.raises(DataError, match=r"(X|y|sample_weight): elements are masked: fill them"):
            call()
