"""Nested search, intervals, and the audit on clean and on leaky figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, UnknownArgumentError, UnknownNameError
from magmadnn.search.honest.intervals import (
    difference_p,
    interval,
    student_cdf,
    student_quantile,
)
from magmadnn.search.honest.leaks import _fisher
from magmadnn.search.honest.outer_rows import matthews
from tests.mistakes import error_of
from tests.search.problems import S, build, table

X, Y = table(120)
SPACE = {"learning_rate": S.choice([0.02, 0.2]), "units": S.choice([3, 6])}
OPTIONS: Any = {"method": "grid", "epochs": 4, "batch_size": 16, "objective": "accuracy"}


def standardised(learning_rate: float, units: int, seed: int) -> Any:
    """A network that scales its inputs by the rows that it is trained on."""
    model = build(learning_rate, units, seed)
    return md.Model(
        inputs=model.inputs,
        outputs=model.outputs,
        loss="cross_entropy",
        optimizer=md.optim.SGD(learning_rate),
        metrics=["accuracy"],
        seed=seed,
        preparation=md.data.Standardize(),
    )


# --- folds ----------------------------------------------------------------------------------------


def test_metrics_of_folds_are_means_of_single_trainings(tmp_path: Path) -> None:
    study = S.run(build, SPACE, X, Y, folds=4, seed=3, out=tmp_path / "s", **OPTIONS)
    trial, task = study.trials[2], study._task
    found = []
    for train, held in task.folds:
        assert len(np.intersect1d(train, held)) == 0 and len(train) + len(held) == 120
        model = build(*trial.point.values(), task.seed_of(2))
        model.fit(X[train], Y[train], batch_size=16, epochs=4, verbose=False)
        found.append(model.evaluate(X[held], Y[held]))
    assert [fold["loss"] for fold in trial.folds] == [one["loss"] for one in found]
    assert trial.metrics["accuracy"] == pytest.approx(np.mean([one["accuracy"] for one in found]))
    shares = [np.mean(Y[held]) for _, held in task.folds]
    assert max(shares) - min(shares) < 1 / 25  # stratified: one row of 30 at most
    assert S.load(tmp_path / "s").trials == study.trials
    again = S.run(build, SPACE, X, Y, folds=4, seed=3, workers=2, **OPTIONS)
    assert again.table().without_times().to_csv() == study.table().without_times().to_csv()
    kind, text = error_of(
        lambda: S.run(
            build, SPACE, X, Y, folds=5, seed=3, out=tmp_path / "s", resume=True, **OPTIONS
        )
    )
    assert kind is ArgumentError and "holds another study" in text


def test_selection_optimism_is_that_of_the_formula() -> None:
    study = S.run(build, SPACE, X, Y, folds=4, seed=3, **OPTIONS)
    scores = np.array([[fold["accuracy"] for fold in trial.folds] for trial in study.trials])
    best = study.best.number
    expected = np.mean(scores.max(axis=0) - scores[best])
    assert study.selection_optimism() == pytest.approx(expected)
    assert expected > 0
    plain = S.run(build, SPACE, X, Y, seed=3, **OPTIONS)
    assert "needs a search with folds=" in error_of(plain.selection_optimism)[1]


def test_folds_that_fail_are_failed_trials() -> None:
    study = S.run(build, {"lr": S.choice([0.1, 3e38])}, X, Y, folds=3, method="grid", epochs=4)
    assert [t.state for t in study.trials] == ["done", "failed"]
    assert "lower the learning rate" in study.trials[1].reason


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folds": 1}, "folds must be an integer of at least 2"),
        ({"folds": 70}, "fewer than the 70"),
        ({"folds": 200, "stratified": False}, "at most the number of rows, 120"),
        ({"folds": 3, "validation_data": (X, Y)}, "folds and validation_data each say which rows"),
    ],
)
def test_wrong_folds_are_refused(options: Any, words: str) -> None:
    assert words in error_of(lambda: S.run(build, SPACE, X, Y, **OPTIONS, **options))[1]


# --- nested ---------------------------------------------------------------------------------------


def test_a_nested_search_measures_on_rows_that_it_has_not_seen(tmp_path: Path) -> None:
    seen: list[Any] = []

    def spying(learning_rate: float, units: int, seed: int) -> Any:
        model = standardised(learning_rate, units, seed)
        seen.append(model)
        return model

    result = S.nested(spying, SPACE, X, Y, outer=3, inner=2, seed=4, out=tmp_path / "n", **OPTIONS)
    assert len(result.rows) == 3
    assert sum(row["rows"] for row in result.rows) == 120
    assert len(seen) == 3 * (4 * 2 + 1)
    # By hand: the first outer fold, with the point that its search chose.
    study = S.load(tmp_path / "n" / "repeat-1-fold-1")
    row = result.rows[0]
    assert row["chosen_by"] == study.best.value
    assert {
        k.removeprefix("best_"): v for k, v in row.items() if k.startswith("best_")
    } == study.best.point
    model = seen[8]  # trained anew on all rows but the outer fold
    held = np.flatnonzero(np.isin(np.arange(120), _held(result, model)))
    assert len(held) == row["rows"]
    assert model.evaluate(X[held], Y[held])["accuracy"] == row["accuracy"]
    train = np.setdiff1d(np.arange(120), held)
    np.testing.assert_allclose(model.preparation.mean, X[train].mean(axis=0), rtol=1e-4, atol=1e-6)
    assert result.mean("accuracy") == pytest.approx(np.mean([r["accuracy"] for r in result.rows]))
    assert result.optimism == pytest.approx(result.mean("chosen_by") - result.mean("accuracy"))
    assert result.predictions is not None
    assert np.mean(result.predictions[0][held] == Y[held]) == pytest.approx(row["accuracy"])
    low, high = result.interval("accuracy")
    assert low < result.mean("accuracy") < high
    assert 0 <= result.difference_p("accuracy", "logistic_accuracy") <= 1
    assert "majority_accuracy" in str(result) and "selection optimism" in str(result)
    count = len(seen)
    again = S.nested(spying, SPACE, X, Y, outer=3, inner=2, seed=4, out=tmp_path / "n", **OPTIONS)
    assert [r["accuracy"] for r in again.rows] == [r["accuracy"] for r in result.rows]
    assert (
        len(seen) == count + 6
    )  # one of each study to compare, the final networks; no trial again


def _held(result: Any, model: Any) -> Any:
    """The rows of the first outer fold."""
    from magmadnn.search.trials.rows import folds_of

    return folds_of(Y, 120, 3, 0, None, 4)[0][1]


def test_repeats_have_folds_of_their_own() -> None:
    result = S.nested(build, SPACE, X, Y, outer=2, inner=2, repeats=2, seed=1, **OPTIONS)
    assert [row["repeat"] for row in result.rows] == [1, 1, 2, 2]
    assert result.predictions is not None and len(result.predictions) == 2
    assert result.table()["fold"] == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"validation_split": 0.2}, ArgumentError, "validation_split is not an argument here"),
        ({"outer": 70}, ArgumentError, "fewer than the 70"),
        ({"repeats": 0}, ArgumentError, "repeats must be"),
        (
            {"outer": 1},
            ArgumentError,
            "search: nested: outer must be an integer of at least 2, got 1",
        ),
        (
            {"inner": 1},
            ArgumentError,
            "search: nested: inner must be an integer of at least 2, got 1",
        ),
        (
            {"seed": -3},
            ArgumentError,
            "search: nested: seed must be an integer of at least 0, got -3",
        ),
        ({"objective": ["accuracy", "loss"]}, ArgumentError, "objective must be one metric"),
        (
            {"objective": lambda m: m["accuracy"]},
            ArgumentError,
            "is not measured on the outer folds",
        ),
        (
            {"objective": "min seconds"},
            ArgumentError,
            "objective seconds is not measured on the outer",
        ),
        ({"objective": "max train_accuracy"}, ArgumentError, "is not measured on the outer folds"),
        (
            {"trails": 3},
            ArgumentError,
            "search: nested: argument 'trails' is not known: did you mean 'trials'",
        ),
        ({"outer_folds": 3}, UnknownArgumentError, "did you mean 'outer'? known are batch_size, "),
    ],
)
def test_wrong_nested_searches_are_refused(options: Any, kind: type, words: str) -> None:
    given = {"outer": 2, "inner": 2, **OPTIONS, **options}
    calls = []

    def counting(learning_rate: float, units: int, seed: int) -> Any:
        calls.append(seed)
        return build(learning_rate, units, seed)

    found, text = error_of(lambda: S.nested(counting, SPACE, X, Y, **given))
    assert not calls  # nothing was trained for it
    assert issubclass(found, kind)
    assert words in text


def test_student_s_distribution() -> None:
    # Of tables: Abramowitz and Stegun, table 26.10; one degree of freedom is Cauchy's distribution.
    for freedom, expected in [(1, 12.706), (4, 2.776), (9, 2.262), (30, 2.042), (99, 1.984)]:
        assert student_quantile(0.975, freedom) == pytest.approx(expected, abs=6e-4)
    assert student_cdf(1.0, 1) == pytest.approx(0.75, abs=1e-12)
    assert student_cdf(-2.0, 2) == pytest.approx(0.5 - 2 / (2 * math.sqrt(2 + 4)), abs=1e-12)
    low, high = interval([0.8, 0.9, 0.7], 10, 20)
    half = 4.302653 * math.sqrt((1 / 3 + 0.5) * 0.01)
    assert (low, high) == pytest.approx((0.8 - half, 0.8 + half))
    assert difference_p([0.0, 0.0], 1, 2) == 1.0
    assert difference_p([0.1, 0.12, 0.11, 0.09], 1, 9) < 0.01


def test_the_matthews_correlation() -> None:
    random = np.random.default_rng(2)
    a, b = random.integers(0, 2, 50), random.integers(0, 2, 50)
    tp, tn = int(((a == 1) & (b == 1)).sum()), int(((a == 0) & (b == 0)).sum())
    fp, fn = int(((a == 0) & (b == 1)).sum()), int(((a == 1) & (b == 0)).sum())
    by_counts = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert matthews(a, b) == pytest.approx(by_counts)
    assert matthews(a, a) == pytest.approx(1.0)
    assert matthews(a, np.zeros(50, int)) == 0.0


# --- the audit ------------------------------------------------------------------------------------


def folds_score(x: Any, y: Any) -> float:
    """Cross-validated accuracy of the nearest class mean, done properly."""
    right, order = 0, np.random.default_rng(0).permutation(len(y))
    for fold in range(5):
        held = order[fold::5]
        train = np.setdiff1d(order, held)
        centres = np.array([x[train][y[train] == k].mean(axis=0) for k in (0, 1)])
        distances = ((x[held][:, None] - centres) ** 2).sum(axis=-1)
        right += int((distances.argmin(axis=1) == y[held]).sum())
    return right / len(y)


def selecting_score(x: Any, y: Any) -> float:
    """The best of many random directions, chosen by the rows that it is scored on."""
    random = np.random.default_rng(0)
    scores = [np.mean((x @ random.normal(size=x.shape[1]) > 0) == y) for _ in range(300)]
    return float(max(scores))


def test_a_clean_figure_passes() -> None:
    study = S.run(build, SPACE, X, Y, folds=4, seed=3, **OPTIONS)
    audit = S.audit(
        X,
        Y,
        original=(X, Y),
        prepare=lambda x, y: x * 2,
        study=study,
        score=study.best.value - 0.03,
        procedure=folds_score,
    )
    assert audit.leaks == [], str(audit)
    assert len(audit.findings) == 7
    assert audit.left_out == ()


def test_rows_twice_are_found() -> None:
    again = np.random.default_rng(1).integers(0, 120, 200)
    x, y = np.concatenate([X, X[again]]), np.concatenate([Y, Y[again]])
    assert S.audit(x, y).leaks == ["duplicates"]
    assert "120 of 320 rows are distinct" in str(S.audit(x, y))
    assert S.audit(X + 0.0, Y).leaks == []


@pytest.mark.parametrize("ddof", [0, 1])
def test_scaling_by_all_rows_is_found(ddof: int) -> None:
    scaled = ((X - X.mean(axis=0)) / X.std(axis=0, ddof=ddof)).astype(np.float32)
    assert S.audit(scaled, Y).leaks == ["preprocessing"]
    to_range = (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))
    assert S.audit(to_range, Y).leaks == ["preprocessing"]
    part = (X - X[:96].mean(axis=0)) / X[:96].std(axis=0)  # as it should be
    assert S.audit(part, Y).leaks == []
    flags = (X > 0).astype(np.float32)  # columns of 0 and 1 are not scaled
    assert "preprocessing" not in S.audit(np.concatenate([X, flags], axis=1), Y).leaks


@pytest.mark.parametrize("ddof", [0, 1])
def test_leaks_are_found_among_missing_values(ddof: int) -> None:
    """As they are in the heart-disease table."""
    random = np.random.default_rng(5)
    x = X.copy()
    x[np.arange(len(x)), random.integers(0, x.shape[1], len(x))] = np.nan  # one in each row
    assert S.audit(x, Y).leaks == []
    twice = S.audit(np.concatenate([x, x[:40]]), np.concatenate([Y, Y[:40]]))
    assert twice.leaks == ["duplicates"]
    assert "120 of 160 rows are distinct" in str(twice)
    scaled = (x - np.nanmean(x, axis=0)) / np.nanstd(x, axis=0, ddof=ddof)
    assert S.audit(scaled, Y).leaks == ["preprocessing"]
    empty = np.concatenate([scaled, np.full((len(x), 1), np.nan)], axis=1)
    assert S.audit(empty, Y).leaks == ["preprocessing"]


def test_a_preparation_that_learns_from_all_rows_is_found() -> None:
    def fill(x: Any, y: Any) -> Any:
        return (x - np.median(x, axis=0)) / 3

    def drop(x: Any, y: Any) -> Any:
        return np.flatnonzero(np.abs(x - x.mean(axis=0)).max(axis=1) < 2.0)

    def fixed(x: Any, y: Any) -> Any:
        return np.flatnonzero(np.abs(x).max(axis=1) < 2.0)

    assert S.audit(X, Y, prepare=fill).leaks == ["preparation"]
    assert S.audit(X, Y, prepare=drop).leaks == ["preparation"]
    assert S.audit(X, Y, prepare=fixed).leaks == []


def test_removal_by_labels_is_found() -> None:
    def clean(x: Any, y: Any) -> Any:
        return np.flatnonzero((x[:, 0] > -0.5) | (y == 0))

    assert S.audit(X, Y, prepare=clean).leaks == ["removal by label"]
    right = (X[:, 0] > 0.2) == Y
    found = S.audit(X[right], Y[right], original=(X, Y), folds=5)
    assert found.leaks == ["removal by error"]
    kept = np.random.default_rng(3).permutation(120)[:90]
    assert S.audit(X[kept], Y[kept], original=(X, Y), folds=5).leaks == []


def test_a_figure_of_the_folds_that_chose_is_found() -> None:
    study = S.run(build, SPACE, X, Y, folds=4, seed=3, **OPTIONS)
    result = S.nested(build, SPACE, X, Y, outer=2, inner=2, seed=1, **OPTIONS)
    audit = S.audit(X, Y, study=study)
    assert audit.leaks == ["tuned and scored"]
    assert f"selection optimism about {study.selection_optimism():+.4f}" in str(audit)
    audit = S.audit(X, Y, study=study, score=study.best.value, nested=result)
    assert f"{result.mean('accuracy'):.4f}, selection optimism {result.optimism:+.4f}" in str(audit)
    assert S.audit(X, Y, study=study, score=0.5).leaks == []


def test_a_procedure_that_finds_what_is_not_there_is_found() -> None:
    assert S.audit(X, Y, procedure=selecting_score).leaks == ["permutation"]
    clean = S.audit(X, Y, procedure=folds_score)
    assert clean.leaks == []
    assert "of the score by chance" in str(clean)


def test_fisher_s_test() -> None:
    # The lady tasting tea: all four right of eight cups, 1 / 70; at least three, 17 / 70.
    assert _fisher(4, 4, 4, 8) == pytest.approx(1 / 70)
    assert _fisher(3, 4, 4, 8) == pytest.approx(17 / 70)
    assert _fisher(0, 4, 4, 8) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: S.audit(X[:, 0], Y), "expected an array of numbers x"),
        (lambda: S.audit(X, Y[:-1]), "x has 120 rows but y has 119"),
        (lambda: S.audit(X, Y, original=(X[:, :3], Y)), "original has rows of shape (3,)"),
        (lambda: S.audit(X, Y, prepare=lambda x, y: x[:5]), "prepare must give a row for each row"),
        (lambda: S.audit(X, Y, permutations=0), "permutations must be"),
        (
            lambda: S.audit(X, Y, score=0.9),
            "score is compared with what a search found; give study= too",
        ),
    ],
)
def test_wrong_audits_are_refused(call: Any, words: str) -> None:
    kind, text = error_of(call)
    assert kind is ArgumentError
    assert words in text


def test_figures_have_names() -> None:
    result = S.nested(build, SPACE, X, Y, outer=2, inner=2, seed=1, **OPTIONS)
    assert error_of(lambda: result.mean("acuracy"))[0] is UnknownNameError
    assert error_of(lambda: result.interval("accuracy", 95))[0] is ArgumentError
