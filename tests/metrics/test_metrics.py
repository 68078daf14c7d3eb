"""Metrics: against straightforward counting, over uneven batches, at the edges, and their names."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from magmadnn import metrics, ops
from magmadnn.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    GraphError,
    MagmaDNNError,
    ShapeError,
    UnknownNameError,
)
from magmadnn.tensor import asarray, placeholder
from magmadnn.training.model.plain.codec import Custom, decode, encode
from tests.mistakes import error_of

EPS = 2.0**-52
BATCHES = (1, 7, 5, 11)  # uneven, added up to one problem of 24 samples
TOTAL = sum(BATCHES)


# --- straightforward definitions: a sample at a time, weights included ----------------------------


def weighted(values: Any, w: Any) -> float:
    return math.fsum(a * b for a, b in zip(values, w, strict=True)) / math.fsum(w)


def count(pred: Any, true: Any, w: Any, k: int) -> list[list[float]]:
    """Row: true class; column: predicted class."""
    table = [[0.0] * k for _ in range(k)]
    for p, t, weight in zip(pred, true, w, strict=True):
        table[t][p] += weight
    return table


def f_parts(table: list[list[float]], i: int) -> tuple[float, float, float]:
    """True positives, predicted, true, of class i against the rest."""
    return table[i][i], sum(row[i] for row in table), sum(table[i])


def score(kind: str, both: float, predicted: float, true: float) -> float:
    if kind == "precision":
        return both / predicted if predicted else 0.0
    if kind == "recall":
        return both / true if true else 0.0
    p, r = score("precision", both, predicted, true), score("recall", both, predicted, true)
    return 2 * p * r / (p + r) if p + r else 0.0


def averaged(kind: str, table: list[list[float]], average: str) -> Any:
    parts = [f_parts(table, i) for i in range(len(table))]
    if average == "binary":
        return score(kind, *parts[1])
    if average == "none":
        return [score(kind, *part) for part in parts]
    if average == "micro":
        return score(kind, *(sum(column) for column in zip(*parts, strict=True)))
    seen = [score(kind, *part) for part in parts if part[1] + part[2]]
    return sum(seen) / len(seen)


def correlation(pred: Any, true: Any, w: Any, k: int) -> float:
    """R_K as Gorodkin defines it: a covariance of one-hot matrices over the root of their variances."""
    x, y = np.eye(k)[pred], np.eye(k)[true]
    x, y = (m - np.average(m, axis=0, weights=w) for m in (x, y))
    covariance = lambda a, b: (np.asarray(w)[:, None] * a * b).sum()  # noqa: E731
    return float(covariance(x, y) / math.sqrt(covariance(x, x) * covariance(y, y)))


def area(scores: Any, true: Any, w: Any) -> float:
    """All pairs."""
    above = below = 0.0
    for (a, s, u), (b, r, v) in itertools.product(zip(true, scores, w, strict=True), repeat=2):
        if a and not b:
            above += u * v * (1.0 if s > r else 0.5 if s == r else 0.0)
            below += u * v
    return above / below


# --- the problems --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A metric, the arrays it is tried on, and its definition."""

    name: str
    metric: metrics.Metric
    predictions: Any
    targets: Any
    expected: Callable[[Any, Any, Any], Any]  # of predictions, targets, weights
    tolerance: float = 256 * EPS


def problem(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(TOTAL, *shape))


AVERAGED: dict[str, Any] = {
    "precision": metrics.Precision, "recall": metrics.Recall, "f1": metrics.F1,
}  # fmt: skip
K = 5
SCORES, LABELS = problem(K), np.random.default_rng(1).integers(0, K, TOTAL)
SCORES[np.arange(TOTAL), LABELS] += 0.9  # better than chance
LOGITS, BITS = problem(seed=2), np.random.default_rng(3).integers(0, 2, TOTAL)
LOGITS = LOGITS + BITS
STEPS, STEP_LABELS = problem(3, K, seed=4), np.random.default_rng(5).integers(0, K, (TOTAL, 3))
TRUTH = 3 + problem(2, seed=6)
GUESS = TRUTH + 0.4 * problem(2, seed=7)


def by_class(kind: str, average: str, k: int = K) -> Callable[[Any, Any, Any], Any]:
    def expected(p: Any, t: Any, w: Any) -> Any:
        predicted = p.argmax(1) if p.ndim == 2 else (p > 0).astype(int)
        return averaged(kind, count(predicted, t, w, k), average)

    return expected


def accuracy(p: Any, t: Any, w: Any) -> float:
    return weighted((p.argmax(-1) == t).reshape(len(t), -1).mean(1), w)


def top(k: int) -> Callable[[Any, Any, Any], float]:
    def expected(p: Any, t: Any, w: Any) -> float:
        return weighted([t[i] in np.argsort(-p[i])[:k] for i in range(len(t))], w)

    return expected


def r2(p: Any, t: Any, w: Any) -> float:
    outputs = []
    for j in range(t.shape[1]):
        middle = weighted(t[:, j], w)
        residual = math.fsum(w * (t[:, j] - p[:, j]) ** 2)
        outputs.append(1 - residual / math.fsum(w * (t[:, j] - middle) ** 2))
    return sum(outputs) / len(outputs)


CASES = [
    Case("accuracy", metrics.Accuracy(), SCORES, LABELS, accuracy),
    Case("accuracy of a sequence", metrics.Accuracy(), STEPS, STEP_LABELS, accuracy),
    Case("accuracy of one-hot", metrics.Accuracy(), SCORES, np.eye(K)[LABELS],
         lambda p, t, w: accuracy(p, t.argmax(1), w)),
    Case("accuracy of one output", metrics.Accuracy(), LOGITS, BITS,
         lambda p, t, w: weighted((p > 0) == t, w)),
    Case("accuracy of one probability", metrics.Accuracy(0.5), 1 / (1 + np.exp(-LOGITS)), BITS,
         lambda p, t, w: weighted((p > 0.5) == t, w)),
    Case("accuracy of -1 and 1", metrics.Accuracy(), LOGITS, 2 * BITS - 1,
         lambda p, t, w: weighted((p > 0) == (t > 0), w)),
    Case("top 1", metrics.TopK(1), SCORES, LABELS, accuracy),
    Case("top 3", metrics.TopK(3), SCORES, LABELS, top(3)),
    *(Case(f"{kind}, {average}", AVERAGED[kind](average=average), SCORES, LABELS,
           by_class(kind, average))
      for kind in ("precision", "recall", "f1") for average in ("macro", "micro", "none")),
    *(Case(f"{kind}, binary", metrics.by_name(kind), LOGITS, BITS, by_class(kind, "binary", 2))
      for kind in ("precision", "recall", "f1")),
    Case("f1, macro unasked", metrics.F1(), SCORES, LABELS, by_class("f1", "macro")),
    Case("matthews", metrics.MatthewsCorrelation(), SCORES, LABELS,
         lambda p, t, w: correlation(p.argmax(1), t, w, K)),
    Case("matthews of one output", metrics.MatthewsCorrelation(), LOGITS, BITS,
         lambda p, t, w: correlation((p > 0).astype(int), t, w, 2)),
    Case("confusion", metrics.ConfusionMatrix(K), SCORES, LABELS,
         lambda p, t, w: count(p.argmax(1), t, w, K)),
    Case("confusion of one output", metrics.ConfusionMatrix(), LOGITS, BITS,
         lambda p, t, w: count((p > 0).astype(int), t, w, 2)),
    Case("mse", metrics.MeanSquaredError(), GUESS, TRUTH,
         lambda p, t, w: weighted(((p - t) ** 2).mean(1), w)),
    Case("rmse", metrics.RootMeanSquaredError(), GUESS, TRUTH,
         lambda p, t, w: math.sqrt(weighted(((p - t) ** 2).mean(1), w))),
    Case("mae", metrics.MeanAbsoluteError(), GUESS, TRUTH,
         lambda p, t, w: weighted(abs(p - t).mean(1), w)),
    # sums of squares of targets around 3 with spread 1: some 10 eps for each of the 24 samples
    Case("r2", metrics.R2(), GUESS, TRUTH, r2, tolerance=1024 * EPS),
    Case("r2 of one output", metrics.R2(), GUESS[:, :1], TRUTH[:, 0],
         lambda p, t, w: r2(p, t.reshape(-1, 1), w), tolerance=1024 * EPS),
    Case("auc", metrics.AUC(2**20), LOGITS, BITS, area),  # so many bins that no two scores share one
    Case("auc of two outputs", metrics.AUC(2**20), np.stack([-LOGITS, LOGITS], 1), BITS,
         lambda p, t, w: area(p[:, 1] - p[:, 0], t, w)),
]  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
WEIGHTS = np.random.default_rng(8).uniform(0.3, 2, TOTAL)


def streamed(case: Case, weights: Any, dtype: str = "float64") -> Any:
    """Over uneven batches, in one graph."""
    x = placeholder("x", (None, *case.predictions.shape[1:]), dtype)
    integer = case.targets.dtype.kind == "i"
    t = placeholder("t", (None, *case.targets.shape[1:]), "int64" if integer else dtype)
    w = placeholder("w", (None,), dtype)
    sums = case.metric.sums(x, t, None if weights is None else w)
    assert sums.dtype == np.float64
    assert sums.ndim == 1
    total, start = np.zeros(sums.shape), 0
    for batch in BATCHES:
        rows = slice(start, start + batch)
        feeds = {x: case.predictions[rows].astype(dtype), t: case.targets[rows]}
        feeds |= {} if weights is None else {w: weights[rows]}
        total = total + sums.numpy(feeds)
        start += batch
    return case.metric.result(total)


@every_case
@pytest.mark.parametrize("with_weights", [False, True], ids=["plain", "weights"])
def test_batches_equal_the_definition(case: Case, with_weights: bool) -> None:
    weights = WEIGHTS if with_weights else None
    expected = case.expected(
        case.predictions, case.targets, WEIGHTS if with_weights else np.ones(TOTAL)
    )
    at_once = case.metric(case.predictions, case.targets, weights)
    np.testing.assert_allclose(at_once, expected, rtol=case.tolerance, atol=case.tolerance)
    np.testing.assert_allclose(
        streamed(case, weights), expected, rtol=case.tolerance, atol=case.tolerance
    )
    assert isinstance(at_once, np.ndarray if np.ndim(expected) else float)


@every_case
def test_float32_predictions(case: Case) -> None:
    rounded = Case(
        case.name, case.metric, case.predictions.astype("float32").astype("float64"),
        case.targets if case.targets.dtype.kind == "i" else case.targets.astype("float32"),
        case.expected,
    )  # fmt: skip
    expected = case.expected(
        rounded.predictions, rounded.targets.astype(case.targets.dtype), np.ones(TOTAL)
    )
    # sums are in float64 whatever the predictions are
    np.testing.assert_allclose(streamed(rounded, None, "float32"), expected, rtol=1024 * EPS)


# --- edges: documented values, no warning (warnings are errors here) ------------------------------

NO_SAMPLES = [
    metrics.Accuracy(), metrics.TopK(1), metrics.Precision(), metrics.Recall(), metrics.F1(),
    metrics.MatthewsCorrelation(), metrics.MeanSquaredError(), metrics.RootMeanSquaredError(),
    metrics.MeanAbsoluteError(), metrics.R2(), metrics.AUC(),
]  # fmt: skip


@pytest.mark.parametrize("metric", NO_SAMPLES, ids=lambda m: m.name)
def test_no_samples_is_nan(metric: metrics.Metric) -> None:
    shape = (0, 2)
    targets = np.zeros(shape if metric.name in ("mse", "rmse", "mae", "r2") else 0, "int64")
    assert math.isnan(metric(np.zeros(shape), targets))


def test_no_samples_in_a_confusion_matrix() -> None:
    empty = metrics.ConfusionMatrix()(np.zeros((0, 3)), np.zeros(0, "int64"))
    np.testing.assert_array_equal(empty, np.zeros((3, 3)))


def test_nothing_predicted_or_nothing_true_is_zero() -> None:
    down, up = np.full(5, -1.5), np.full(5, 1.5)
    mixed = np.array([0, 1, 0, 1, 1])
    assert metrics.Precision()(down, mixed) == 0
    assert metrics.Recall()(up, np.zeros(5, int)) == 0
    assert metrics.F1()(down, np.zeros(5, int)) == 0
    assert metrics.MatthewsCorrelation()(down, mixed) == 0
    assert metrics.MatthewsCorrelation()(np.array([1.0, -1, 1, -1, 1]), np.ones(5, int)) == 0


def test_matthews_of_one_class_with_weights_that_round() -> None:
    w = np.full(7, 0.1)
    assert metrics.MatthewsCorrelation()(np.ones(7), np.array([0, 1, 1, 0, 1, 1, 0]), w) == 0


def test_matthews_at_its_ends() -> None:
    bits = np.array([0, 1, 1, 0, 1])
    assert metrics.MatthewsCorrelation()(2.0 * bits - 1, bits) == pytest.approx(1, abs=4 * EPS)
    assert metrics.MatthewsCorrelation()(1 - 2.0 * bits, bits) == pytest.approx(-1, abs=4 * EPS)


def test_a_class_that_never_occurs_does_not_count_in_macro() -> None:
    z = np.eye(4)[[0, 1, 1, 0]]  # classes 2 and 3: never true, never predicted
    assert metrics.F1(average="macro")(z, np.array([0, 1, 1, 0])) == 1
    np.testing.assert_array_equal(
        metrics.F1(average="none")(z, np.array([0, 1, 1, 0])), [1, 1, 0, 0]
    )


# as computed, the spread of these is not 0 but 2 and -2 roundings
@pytest.mark.parametrize(("value", "count"), [(0.1, 11), (0.1, 23)])
def test_r2_of_equal_targets(value: float, count: int) -> None:
    targets = np.full(count, value)
    assert metrics.R2()(targets, targets) == 1
    assert metrics.R2()(targets + 0.2, targets) == 0


def test_r2_of_nan_is_nan_for_equal_targets_too() -> None:
    predictions = np.array([[1.0, 2.0], [math.nan, 2.0], [1.0, 2.0]])
    assert math.isnan(metrics.R2()(predictions, np.array([[1.0, 2.0]] * 3)))
    assert math.isnan(metrics.R2()(predictions[:, 0], np.array([1.0, 2.0, 4.0])))
    assert metrics.R2()(np.array([math.inf, 1.0]), np.ones(2)) == 0


def test_r2_far_from_zero() -> None:
    t = 1000 + problem(seed=11)
    p = t + 0.3 * problem(seed=12)
    # the squares are 1e6 times the spread's, so 6 of 16 digits are lost
    assert metrics.R2()(p, t) == pytest.approx(r2(p[:, None], t[:, None], np.ones(TOTAL)), abs=1e-8)


def test_auc_without_one_of_the_classes_is_nan() -> None:
    assert math.isnan(metrics.AUC()(LOGITS, np.ones(TOTAL, int)))
    assert math.isnan(metrics.AUC()(LOGITS, np.zeros(TOTAL, int)))


def test_auc_of_nan_is_nan_and_infinite_scores_rank() -> None:
    bits = np.array([1, 0, 1, 0])
    assert math.isnan(metrics.AUC()(np.array([1.0, 0.5, np.nan, 2.0]), bits))
    assert metrics.AUC()(np.array([np.inf, -np.inf, 1.0, -3.0]), bits) == 1
    assert metrics.AUC()(np.array([-np.inf, np.inf, -1.0, 3.0]), bits) == 0


def test_auc_error_is_within_its_bound() -> None:
    rng = np.random.default_rng(13)
    bits = rng.integers(0, 2, 997)
    z = rng.normal(size=997) * 4 + bits
    metric = metrics.AUC(bins=64)
    negative, positive = np.asarray(metric.sums(z, bits)).reshape(2, -1)
    bound = 0.5 * (negative * positive).sum() / (negative.sum() * positive.sum())
    error = abs(metric(z, bits) - area(z, bits, np.ones(997)))
    assert 0 < error <= bound < 0.02


def test_auc_counts_ties_half() -> None:
    assert metrics.AUC()(np.zeros(5), np.array([0, 1, 0, 1, 1])) == 0.5


def test_top_k_counts_ties_and_nan_against() -> None:
    z = np.array([[1.0, 1, 0], [np.nan, 3, 2], [np.nan, 0, 1]])
    labels = np.array([0, 1, 0])
    assert metrics.TopK(1)(z, labels) == 0
    assert metrics.TopK(2)(z, labels) == pytest.approx(2 / 3)


# --- shapes and mistakes -------------------------------------------------------------------------


def test_columns_match_vectors() -> None:
    column = LOGITS[:, None]
    for metric in (
        metrics.Accuracy(),
        metrics.F1(),
        metrics.AUC(),
        metrics.MeanAbsoluteError(),
        metrics.R2(),
    ):
        same = metric(LOGITS, BITS)
        assert (
            metric(column, BITS)
            == metric(LOGITS, BITS[:, None])
            == metric(column, BITS[:, None])
            == same
        )
    assert metrics.Accuracy()(SCORES, LABELS[:, None]) == metrics.Accuracy()(SCORES, LABELS)
    assert metrics.Accuracy()(SCORES, LABELS, WEIGHTS[:, None]) == metrics.Accuracy()(
        SCORES, LABELS, WEIGHTS
    )


MISTAKES: list[tuple[str, Callable[[], Any], type[MagmaDNNError], str]] = [
    ("rows", lambda: metrics.Accuracy()(SCORES, LABELS[1:]), ShapeError,
     "accuracy: targets must be class numbers (24,) or one-hot (24, 5) for predictions (24, 5), got (23,)"),
    ("dtype", lambda: metrics.F1()(SCORES, LABELS / 1), DTypeError,
     "f1: targets (24,) are class numbers and must be integers, got float64; cast them"),
    ("one output", lambda: metrics.Accuracy()(LOGITS, LABELS[1:]), ShapeError,
     "accuracy: targets of labels must have shape (24,), got (23,)"),
    ("numbers", lambda: metrics.MeanSquaredError()(GUESS, TRUTH[:, 0]), ShapeError,
     "mse: targets must have shape (24, 2), got (24,)"),
    ("scalar", lambda: metrics.R2()(np.float64(1), np.float64(1)), ShapeError,
     "r2: predictions need a batch axis, got a scalar"),
    ("weights", lambda: metrics.Accuracy()(SCORES, LABELS, WEIGHTS[1:]), ShapeError,
     "accuracy: weights must have shape (24,), got (23,)"),
    ("binary of five", lambda: metrics.F1(average="binary")(SCORES, LABELS), ShapeError,
     ("f1_binary: predictions have 5 classes, expected one label or 2 classes; "
     "choose average='macro', 'micro' or 'none'")),
    ("average", lambda: metrics.Recall(average="marco"), UnknownNameError,
     "recall: average 'marco' is not known: did you mean 'macro'? known are "),
    ("k", lambda: metrics.TopK(0), ArgumentError, "top_k: k must be an integer of at least 1, got 0"),
    ("k of one output", lambda: metrics.TopK(1)(LOGITS, BITS), ShapeError,
     ("top_1: needs predictions for each of several classes, got labels (24,), each true or not; "
      "use accuracy, f1 or auc")),
    ("k above", lambda: metrics.TopK(6)(SCORES, LABELS), ArgumentError,
     "top_6: k must be at most 5, the number of classes"),
    ("classes", lambda: metrics.ConfusionMatrix(3)(SCORES, LABELS), ShapeError,
     "confusion_matrix: predictions have 5 classes, expected 3"),
    ("bins", lambda: metrics.AUC(7), ArgumentError,
     "auc: bins must be an even number of at least 2, got 7"),
    ("auc", lambda: metrics.AUC()(SCORES, LABELS), ShapeError,
     "auc: predictions must be labels (batch,) or (batch, labels), or 2 classes (batch, 2), got (24, 5)"),
    ("class", lambda: metrics.Recall()(SCORES, np.where(LABELS == 2, 5, LABELS)), DataError,
     (f"recall: row {LABELS.tolist().index(2)} of the targets has the class 5, outside the classes 0..4 of "
      "the predictions")),
    ("class below", lambda: metrics.Accuracy()(SCORES, LABELS - 1), DataError,
     f"accuracy: row {LABELS.tolist().index(0)} of the targets has the class -1, outside "),
    ("class in a Tensor", lambda: metrics.Accuracy()(asarray(SCORES), asarray(LABELS - 1)), DataError,
     f"accuracy: row {LABELS.tolist().index(0)} of the targets has the class -1, outside "),
    ("weights in a Tensor", lambda: metrics.F1()(SCORES, LABELS, asarray(WEIGHTS - 1)), DataError,
     "f1: weights must be finite and not negative"),
    ("label", lambda: metrics.Accuracy()(LOGITS, 2 * BITS), DataError,
     (f"accuracy: row {BITS.tolist().index(1)} of the targets is 2, expected 0 and 1, or -1 and 1, of "
      "labels, each true or not; of classes, predictions have an axis of them")),
    ("label of three kinds", lambda: metrics.F1()(LOGITS[:3], np.array([-1, 1, 0])), DataError,
     "f1: row 2 of the targets is 0, expected "),
    ("label of NaN", lambda: metrics.AUC(outputs="labels")(LOGITS[:2], np.array([0.3, np.nan])), DataError,
     "auc: row 1 of the targets is nan, expected 0 and 1, or probabilities, of labels, each "),
    ("weights below 0", lambda: metrics.F1()(SCORES, LABELS, WEIGHTS - 1), DataError,
     "f1: weights must be finite and not negative"),
    ("weights of NaN", lambda: metrics.F1()(SCORES[:2], LABELS[:2], np.array([1, np.nan])), DataError,
     "f1: weights must be finite and not negative"),
    ("scalar classes", lambda: metrics.MatthewsCorrelation()(1.0, 1), ShapeError,
     "matthews_correlation: predictions need a batch axis, got a scalar"),
    ("name", lambda: metrics.by_name("acuracy"), UnknownNameError,
     "metric 'acuracy' is not known: did you mean 'accuracy'? known are "),
    ("kind", lambda: metrics.as_metric(3), ArgumentError,
     "metric: expected a name, a metric such as md.metrics.TopK(3), or a function, got 3"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "text"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_mistakes(call: Callable[[], Any], kind: type[MagmaDNNError], text: str) -> None:
    found, message = error_of(call)
    assert found is kind
    assert message.startswith(text) if text.endswith(" ") else message == text
    assert "\n" not in message


def test_unknown_sizes_are_refused_when_the_graph_is_made() -> None:
    x, t = placeholder("x", (None, "k")), placeholder("t", (None,), "int64")
    assert error_of(lambda: metrics.F1().sums(x, t)) == (
        ShapeError, "f1: the number of classes must be known, got k"
    )  # fmt: skip
    assert error_of(lambda: metrics.ConfusionMatrix().sums(x, t))[0] is ShapeError
    assert error_of(lambda: metrics.R2().sums(x, x)) == (
        ShapeError, "r2: predictions (batch, k) need known sizes after the batch"
    )  # fmt: skip


# --- names and settings --------------------------------------------------------------------------

NAMES = {
    "accuracy": metrics.Accuracy, "top_k": metrics.TopK, "precision": metrics.Precision,
    "recall": metrics.Recall, "f1": metrics.F1, "matthews_correlation": metrics.MatthewsCorrelation,
    "matthews": metrics.MatthewsCorrelation, "mcc": metrics.MatthewsCorrelation,
    "confusion_matrix": metrics.ConfusionMatrix, "mse": metrics.MeanSquaredError,
    "mean_squared_error": metrics.MeanSquaredError, "rmse": metrics.RootMeanSquaredError,
    "root_mean_squared_error": metrics.RootMeanSquaredError, "mae": metrics.MeanAbsoluteError,
    "mean_absolute_error": metrics.MeanAbsoluteError, "r2": metrics.R2, "auc": metrics.AUC,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    metric = metrics.by_name(name)
    assert metric == NAMES[name]()
    assert (
        metrics.as_metric(name)
        == metrics.as_metric(NAMES[name])
        == metrics.as_metric(metric)
        == metric
    )


def test_every_metric_is_tested() -> None:
    classes = [
        c for c in vars(metrics).values() if isinstance(c, type) and issubclass(c, metrics.Metric)
    ]
    public = set(classes) - {metrics.Metric, metrics.Average}
    assert public == set(NAMES.values()) == {type(c.metric) for c in CASES}


def test_abstract_metrics_have_no_name() -> None:
    with pytest.raises(UnknownNameError):
        metrics.by_name("average")


@pytest.mark.parametrize("metric", [*(c.metric for c in CASES), metrics.F1(average="macro")])
def test_settings_survive_json(metric: metrics.Metric) -> None:
    assert decode(json.loads(json.dumps(encode(metric))), Custom()) == metric


def test_shown_names_tell_settings() -> None:
    shown = [metrics.TopK(3).name, metrics.F1().name, metrics.F1(average="macro").name]
    assert [*shown, metrics.Recall(average="none").name, metrics.RootMeanSquaredError().name] == [
        "top_3", "f1", "f1_macro", "recall_per_class", "rmse",
    ]  # fmt: skip


# --- metrics of one's own ------------------------------------------------------------------------


@dataclass(frozen=True)
class WithinLimit(metrics.Average):
    limit: float = 0.1

    def per_sample(self, predictions: Any, targets: Any) -> Any:
        return ops.cast(ops.abs(predictions - targets) < self.limit, "float64")


def test_a_class_of_ones_own() -> None:
    assert metrics.by_name("within_limit") == WithinLimit()
    metric = WithinLimit(limit=0.25)
    p, t = np.array([0.1, 0.5, 0.9]), np.array([0.3, 0.1, 0.9])
    assert metric(p, t) == pytest.approx(2 / 3)
    assert metric(p, t, np.array([1.0, 2.0, 1.0])) == 0.5
    assert decode(encode(metric), Custom([WithinLimit])) == metric


def bias(p: Any, t: Any) -> Any:
    return p - t


def mean_bias(p: Any, t: Any) -> Any:
    return ops.mean(p - t)


@pytest.mark.parametrize("function", [bias, mean_bias])
def test_a_function_is_averaged_over_samples(function: Any) -> None:
    metric = metrics.as_metric(function)
    case = Case("own", metric, GUESS, TRUTH, lambda p, t, w: weighted((p - t).mean(1), w))
    expected = case.expected(GUESS, TRUTH, np.ones(TOTAL))
    assert metric.name == function.__name__
    assert streamed(case, None) == pytest.approx(expected, rel=64 * EPS, abs=0)
    assert metric(GUESS, TRUTH) == pytest.approx(expected, rel=64 * EPS, abs=0)


def test_weights_need_a_value_per_sample() -> None:
    expected = weighted((GUESS - TRUTH).mean(1), WEIGHTS)
    assert metrics.as_metric(bias)(GUESS, TRUTH, WEIGHTS) == pytest.approx(
        expected, rel=64 * EPS, abs=0
    )
    kind, message = error_of(lambda: metrics.as_metric(mean_bias)(GUESS, TRUTH, WEIGHTS))
    assert kind is ArgumentError
    assert message == (
        "metric mean_bias: gives shape (), so samples cannot be weighted: "
        "return one value per sample, shape (24,)"
    )


def test_a_function_must_give_something_computed() -> None:
    kind, message = error_of(lambda: metrics.as_metric(lambda p, t: 1.5)(GUESS, TRUTH))
    assert kind is GraphError
    assert "expected an Operation, got float" in message
