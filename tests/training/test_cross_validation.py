"""Cross validation: what is in a fold, what is fitted where, what is reported."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers
from magmadnn.errors import ArgumentError
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.training.many.folds import fold_rows
from tests.mistakes import error_of

DRAW = np.random.default_rng(4)
X = DRAW.normal(size=(61, 4)).astype(np.float32) * 9 + 3
NAMES = np.array(["a", "b", "b", "c", "c", "c"])[DRAW.integers(0, 6, 61)]


def network(seed: int = 0, **given: Any) -> md.Model:
    options: dict[str, Any] = {"loss": "cross_entropy", "optimizer": md.optim.Adam(0.02), **given}
    return md.Model(
        [layers.Input((4,)), layers.Dense(5, activation="tanh"), layers.Dense(3)],
        metrics=["accuracy"],
        preparation=md.data.Standardize(),
        seed=seed,
        **options,
    )


@pytest.mark.parametrize("count", [10, 11, 59])
@pytest.mark.parametrize("folds", [2, 3, 10])
def test_every_row_is_held_out_once(count: int, folds: int) -> None:
    found = fold_rows(count, folds, 3, 0)
    assert sorted(np.concatenate(found).tolist()) == list(range(count))
    sizes = [len(rows) for rows in found]
    assert max(sizes) - min(sizes) <= 1
    assert all((a < b for a, b in pairwise(rows)) for rows in found)


def test_folds_depend_on_seed_and_repeat() -> None:
    first = [r.tolist() for r in fold_rows(50, 5, 1, 0)]
    assert first == [r.tolist() for r in fold_rows(50, 5, 1, 0)]
    for seed, repeat in ((2, 0), (1, 1)):
        assert first != [r.tolist() for r in fold_rows(50, 5, seed, repeat)]


def test_each_fold_has_its_share_of_each_class() -> None:
    classes = np.repeat([0, 1, 2], [17, 31, 12])
    for rows in fold_rows(60, 5, 0, 0, classes):
        counts = np.bincount(classes[rows], minlength=3)
        assert (np.abs(counts - np.array([17, 31, 12]) / 5) < 1).all()
        assert len(rows) == 12


def test_models_are_those_of_single_fits_on_their_training_parts() -> None:
    found = md.cross_validate(network, X, NAMES, folds=4, repeats=2, seed=7, batch_size=8, epochs=3)
    assert found.columns == ["repeat", "fold", "rows", "loss", "accuracy"]
    assert [row["repeat"] for row in found.rows] == [1] * 4 + [2] * 4
    for number, (row, rows) in enumerate(zip(found.rows, found.held, strict=True)):
        others = np.setdiff1d(np.arange(61), rows)
        alone = network(7 + number)
        alone.fit(X[others], NAMES[others], batch_size=8, epochs=3, verbose=0)
        own = found.models[number]
        assert own.preparation == alone.preparation
        assert parameters_sha256(own.values().items()) == parameters_sha256(alone.values().items())
        expected = alone.evaluate(X[rows], NAMES[rows])
        assert row["rows"] == len(rows)
        assert {k: row[k] for k in ("loss", "accuracy")} == expected
    for repeat in (0, 4):
        together = np.concatenate(found.held[repeat : repeat + 4])
        assert sorted(together.tolist()) == list(range(61))
    assert found.mean["accuracy"] == pytest.approx(np.mean(found["accuracy"]))
    gaps = np.array(found["loss"]) - np.mean(found["loss"])
    assert found.std["loss"] == pytest.approx(np.sqrt((gaps**2).sum() / 7))


def test_the_table(tmp_path: Path) -> None:
    found = md.cross_validate(network, X, NAMES, folds=3, epochs=1)
    lines = found.table().splitlines()
    assert lines[0].split() == ["repeat", "fold", "rows", "loss", "accuracy"]
    assert len(lines) == 1 + 3 + 2
    assert lines[-2].split() == ["mean", *(f"{found.mean[k]:.4f}" for k in ("loss", "accuracy"))]
    assert lines[-1].split()[0] == "std"
    assert len({len(line) for line in lines}) == 1
    found.to_csv(tmp_path / "cv.csv")
    text = (tmp_path / "cv.csv").read_text().splitlines()
    assert text[0] == "repeat,fold,rows,loss,accuracy"
    assert float(text[2].split(",")[3]) == found["loss"][1]
    assert repr(found).startswith("CrossValidation(3 models: loss=")


def test_a_model_that_fails_makes_figures_nan(capsys: pytest.CaptureFixture[str]) -> None:
    """One failed fold of three is no reason to report the mean of two."""
    calls: list[int] = []

    def build(seed: int) -> md.Model:
        calls.append(seed)
        rate = 1e5 if seed == 1 else 1e-4
        return md.Model(
            [layers.Input((4,)), layers.Dense(5), layers.Dense(1)],
            loss="mse", optimizer=md.optim.SGD(rate), seed=seed,
        )  # fmt: skip

    found = md.cross_validate(build, X, X[:, :1] * 2, folds=3, epochs=4)
    assert calls == [0, 1, 2]
    assert np.isnan(found["loss"]).tolist() == [False, True, False]
    assert np.isnan(found.mean["loss"])
    assert [h.failed for h in found.histories] == [False, True, False]
    assert "models[1] is left out" in capsys.readouterr().err


def test_functions_without_a_seed_build_equal_models() -> None:
    found = md.cross_validate(lambda: network(5), X, NAMES, folds=2, epochs=1)
    assert [m.seed for m in found.models] == [5, 5]


SHARED = network()
FEW = np.array(["a"] * 30 + ["b"] * 28 + ["c"] * 3)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one fold": ({"folds": 1}, "folds must be an integer of at least 2, got 1"),
    "more folds than rows": ({"folds": 62}, "folds must be at most the number of rows, 61, got 62"),
    "folds larger than a class": (
        {"folds": 5, "y": FEW},
        "class 'c' has 3 rows, fewer than the 5 folds; give folds=3 or fewer, or stratified=False",
    ),
    "no repeats": ({"repeats": 0}, "repeats must be an integer of at least 1, got 0"),
    "no classes": (
        {"y": X[:, 0], "stratified": True},
        (
            "stratified=True needs a class for each row, got targets of shape (61,) and type float32; leave "
            "it out"
        ),
    ),
    "stratified as a word": (
        {"stratified": "yes"},
        "stratified must be True, False or None, got 'yes'",
    ),
    "a function that needs more": (
        {"build": lambda units, seed: network()},
        (
            "build needs units, but is given a seed only; give it a default value, or a function that fills "
            "it in: lambda: build(...)"
        ),
    ),
    "a model": (
        {"build": SHARED},
        f"build must be a function, got {SHARED!r}; give a function that builds it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    given, words = REFUSED[name]
    options: dict[str, Any] = {"build": network, "x": X, "y": NAMES, **given}
    with pytest.raises(ArgumentError) as caught:
        md.cross_validate(options.pop("build"), options.pop("x"), options.pop("y"), **options)
    assert str(caught.value) == f"cross_validate: {words}"


def test_one_model_for_all_folds_is_refused() -> None:
    with pytest.raises(ArgumentError, match="build gives one model twice"):
        md.cross_validate(lambda: SHARED, X, NAMES, folds=3)


def test_tables_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=list("pqrs"))
    target = pandas.Series(NAMES, name="soil")
    first = md.cross_validate(network, table, target, folds=3, epochs=2, batch_size=8)
    second = md.cross_validate(network, X, NAMES, folds=3, epochs=2, batch_size=8)
    assert first.rows == second.rows


def test_models_that_have_learnt_from_rows_before_are_told_of(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """They have seen what is held out, and nothing else would say so."""
    trained = network()
    trained.fit(X, NAMES, epochs=3, verbose=False)
    options: Any = {"folds": 3, "epochs": 1, "verbose": False}
    md.cross_validate(lambda: copy.deepcopy(trained), X, NAMES, **options)
    said = capfd.readouterr().err
    assert "cross_validate: build gives models that have been trained before, for 3 epochs" in said

    def fitted(seed: int) -> md.Model:
        return md.Model(
            [layers.Input((4,)), layers.Dense(3)], loss="cross_entropy", optimizer=md.optim.SGD(0.1),
            preparation=trained.preparation, seed=seed,
        )  # fmt: skip

    md.cross_validate(fitted, X, NAMES, **options)
    assert "models whose preparation has been fitted before: figures are" in capfd.readouterr().err

    def again(units: int) -> md.Model:
        return copy.deepcopy(trained) if units else network()

    space = {"units": md.search.choice([1, 2])}
    search: Any = {"method": "grid", "epochs": 1, "objective": "loss"}
    for workers in (None, 2):
        md.search.run(again, space, X, NAMES, workers=workers, **search)
        assert (
            capfd.readouterr().err.count("search: build gives models that have been trained") == 1
        )
    md.cross_validate(network, X, NAMES, **options)
    assert capfd.readouterr().err == ""


def test_a_fold_with_all_rows_of_a_class_is_refused_before_training() -> None:
    names = np.where(np.arange(61) == 7, "rare", NAMES)
    with pytest.raises(
        ArgumentError, match=r"all rows of class 'rare' are in fold . of repeat 1, so"
    ):
        md.cross_validate(
            lambda seed: network(seed), X, names, folds=3, stratified=False, epochs=10**6
        )


ONE = network()


@pytest.mark.parametrize(
    ("build", "y", "text"),
    [
        (lambda: None, NAMES, "build must return a Model, got None; is its return missing?"),
        (lambda: [network()], NAMES, "build must return a Model, got ["),
        (
            lambda: ONE,
            NAMES,
            "build gives one model twice; let it build a new one",
        ),
        (network, None, "y is missing: it takes x and y as arrays or tables"),
    ],
)
def test_what_build_has_to_give(build: Any, y: Any, text: str) -> None:
    kind, said = error_of(lambda: md.cross_validate(build, X, y, folds=3, verbose=False))
    assert kind is ArgumentError
    assert said.startswith(f"cross_validate: {text}")
