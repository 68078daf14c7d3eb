"""Outputs that are labels, each true or not: probabilities, classes and metrics, by what the loss says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md

RNG = np.random.default_rng(8)
X = RNG.normal(size=(97, 4)).astype(np.float32)
LABELS = (
    X @ RNG.normal(size=(4, 5)) + RNG.normal(size=(97, 5)) > [0.3, -0.4, 0.9, 0.0, 0.5]
).astype(int)


def network(units: int = 5, loss: object = "binary_cross_entropy", **options: object) -> md.Model:
    layers = [md.layers.Input((4,)), md.layers.Dense(units, bias_init="normal")]
    return md.Model(layers, loss=loss, optimizer="adam", seed=3, **options)


def counts(predicted: np.ndarray, true: np.ndarray) -> tuple[list[int], list[int], list[int]]:
    """True positives, predicted and true ones of each label, counted one by one."""
    both = [
        sum(p == t == 1 for p, t in zip(*c, strict=True))
        for c in zip(predicted.T, true.T, strict=True)
    ]
    return both, [sum(c) for c in predicted.T], [sum(c) for c in true.T]


def test_probabilities_of_labels_are_each_its_own() -> None:
    model = network()
    z = model.predict(X).astype(np.float64)
    found = model.predict_probability(X)
    # a sigmoid of some five float32 operations
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-z)), rtol=16 * 2.0**-23)
    assert np.ptp(found.sum(axis=1)) > 0.1


def test_classes_of_labels_are_zeros_and_ones_and_their_accuracy_is_per_label() -> None:
    model = network(metrics=["accuracy"])
    z = model.predict(X)
    assert 0 < (z > 0).mean() < 1
    found = model.predict_class(X)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, z > 0)
    assert model.evaluate(X, LABELS)["accuracy"] == pytest.approx(
        (found == LABELS).mean(), rel=1e-14
    )
    row = model.fit(
        X, LABELS, batch_size=97, epochs=1, verbose=False, validation_data=(X, LABELS)
    ).rows[0]
    assert row["accuracy"] == pytest.approx((found == LABELS).mean(), rel=1e-14)
    assert row["val_accuracy"] == pytest.approx(
        (model.predict_class(X) == LABELS).mean(), rel=1e-14
    )


def test_metrics_of_labels_count_each_label() -> None:
    metrics = [
        "precision",
        "recall",
        "f1",
        md.metrics.F1(average="micro"),
        md.metrics.F1(average="none"),
    ]
    model = network(metrics=[*metrics, "confusion_matrix", "auc"])
    found = model.evaluate(X, LABELS, batch_size=13)
    predicted = model.predict_class(X)
    both, chosen, true = counts(predicted, LABELS)
    assert min(both) > 0
    each = [2 * b / (p + t) for b, p, t in zip(both, chosen, true, strict=True)]
    expected = {
        "precision": np.mean([b / p for b, p in zip(both, chosen, strict=True)]),
        "recall": np.mean([b / t for b, t in zip(both, true, strict=True)]),
        "f1": np.mean(each),
        "f1_micro": 2 * sum(both) / (sum(chosen) + sum(true)),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-14), name
    np.testing.assert_allclose(found["f1_per_class"], each, rtol=1e-14)
    matrices = found["confusion_matrix"]
    assert matrices.shape == (5, 2, 2)
    for k in range(5):
        at = [[(LABELS[:, k] == i) & (predicted[:, k] == j) for j in (0, 1)] for i in (0, 1)]
        assert matrices[k].tolist() == [[float(c.sum()) for c in row] for row in at]
    z = model.predict(X)
    areas = []
    for k in range(5):
        ones, zeros = z[LABELS[:, k] == 1, k], z[LABELS[:, k] == 0, k]
        areas.append(((ones[:, None] > zeros) + (ones[:, None] == zeros) / 2).mean())
    # scores that fall into one of 4096 bins count as equal: at most some pairs of 97 samples
    assert found["auc"] == pytest.approx(np.mean(areas), abs=0.01)


def test_one_label_is_the_class_of_a_sample() -> None:
    metrics = ["accuracy", "f1", "auc", "matthews_correlation", "confusion_matrix"]
    model, y = network(1, metrics=metrics), LABELS[:, 0]
    z = model.predict(X)[:, 0]
    assert model.predict_class(X).shape == (97,)
    np.testing.assert_array_equal(model.predict_class(X), z > 0)
    assert model.predict_probability(X).shape == (97, 1)
    for targets in (y, y[:, None], y.astype(bool), y.astype(np.uint8), y.astype(np.float32)):
        found = model.evaluate(X, targets)
        assert found["accuracy"] == pytest.approx(((z > 0) == y).mean(), rel=1e-14)
        assert found["confusion_matrix"].tolist() == [
            [float(((y == i) & ((z > 0) == j)).sum()) for j in (0, 1)] for i in (0, 1)
        ]


def test_outputs_without_an_axis_of_labels_are_labels_too() -> None:
    x = md.layers.Input((4,))
    logit = md.layers.Reshape(())(md.layers.Dense(1)(x))
    model = md.Model(inputs=[x], outputs=[logit], loss="binary_cross_entropy", metrics=["accuracy"])
    for rows in (1, 7):  # one row is no label of its own
        assert model.predict_class(X[:rows]).shape == (rows,)
        assert model.predict_probability(X[:rows]).shape == (rows,)
    right = (model.predict(X) > 0) == LABELS[:, 0]
    assert model.evaluate(X, LABELS[:, 0])["accuracy"] == pytest.approx(right.mean(), rel=1e-14)


def test_margins_have_classes_and_no_probabilities() -> None:
    model, signs = network(loss="hinge", metrics=["accuracy", "f1"]), 2 * LABELS - 1
    z = model.predict(X)
    np.testing.assert_array_equal(model.predict_class(X), z > 0)
    assert model.evaluate(X, signs) == model.evaluate(X, LABELS)
    assert model.evaluate(X, signs)["accuracy"] == pytest.approx(
        ((z > 0) == LABELS).mean(), rel=1e-14
    )


def test_soft_labels_are_true_above_a_half() -> None:
    soft = np.where(LABELS == 1, 0.8, 0.3).astype(np.float32)
    model = network(metrics=["accuracy", "f1"])
    hard, found = model.evaluate(X, LABELS), model.evaluate(X, soft)
    assert (found["accuracy"], found["f1"]) == (hard["accuracy"], hard["f1"])


@dataclass(frozen=True)
class Focal(md.losses.Loss):
    """A loss of one's own that takes probabilities of labels."""

    outputs = "label_probabilities"

    def per_sample(self, predictions: md.Operation, targets: md.Operation) -> md.Operation:
        """The squared distance."""
        t = md.ops.cast(targets, predictions.dtype)
        return md.ops.mean(md.ops.square(predictions - t), axis=1)


def sigmoid_network(loss: object, **options: object) -> md.Model:
    layers = [md.layers.Input((4,)), md.layers.Dense(5, activation="sigmoid", bias_init="normal")]
    return md.Model(layers, loss=loss, optimizer="adam", seed=3, **options)


def distance(predictions: md.Operation, targets: md.Operation) -> md.Operation:
    return md.ops.mean(md.ops.abs(predictions - targets), axis=1)


def test_a_loss_of_ones_own_says_what_predictions_are(tmp_path: Path) -> None:
    labels = md.losses.FunctionLoss(distance, outputs="label_probabilities")
    for loss in (Focal(), labels):
        model = sigmoid_network(loss, metrics=["accuracy"])
        model.save(tmp_path / str(loss.name))
        again = md.load(tmp_path / str(loss.name), custom=[Focal, distance])
        for network in (model, again):
            p = network.predict(X)
            np.testing.assert_array_equal(network.predict_probability(X), p)
            np.testing.assert_array_equal(network.predict_class(X), p > 0.5)
            right = ((p > 0.5) == LABELS).mean()
            assert network.evaluate(X, LABELS)["accuracy"] == pytest.approx(right, rel=1e-14)


def test_a_metric_may_say_itself_what_predictions_are() -> None:
    metric = md.metrics.Accuracy(outputs="label_probabilities")
    model = sigmoid_network("mse", metrics=[metric, "mae"])
    right = ((model.predict(X) > 0.5) == LABELS).mean()
    assert model.evaluate(X, LABELS)["accuracy"] == pytest.approx(right, rel=1e-14)
    strict = md.metrics.Accuracy(0.7, outputs="label_probabilities")
    right = ((model.predict(X) > 0.7) == LABELS).mean()
    assert strict(model.predict(X), LABELS) == pytest.approx(right, rel=1e-14)


def test_metrics_are_records_that_models_may_share() -> None:
    metric = md.metrics.F1()
    labels, classes = network(metrics=[metric]), network(loss="cross_entropy", metrics=[metric])
    first, numbers = labels.evaluate(X, LABELS)["f1"], np.arange(97) % 5
    assert classes.evaluate(X, numbers)["f1"] == metric(classes.predict(X), numbers)
    assert labels.evaluate(X, LABELS)["f1"] == first
    assert metric == md.metrics.F1() and metric.outputs is None


def test_a_label_that_never_occurs_is_left_out_of_the_area_and_counts_as_0_elsewhere() -> None:
    z, true = RNG.normal(size=(20, 3)), (np.arange(60).reshape(20, 3) % 7 > 2).astype(int)
    true[:, 1] = 0
    both = md.metrics.AUC(outputs="labels")(z[:, [0, 2]], true[:, [0, 2]])
    assert md.metrics.AUC(outputs="labels")(z, true) == both
    assert np.isnan(md.metrics.AUC(outputs="labels")(z, np.ones((20, 3))))
    recalls = md.metrics.Recall(outputs="labels", average="none")(z, true)
    assert recalls[1] == 0.0 and recalls[0] > 0
    assert md.metrics.Recall(outputs="labels")(z, true) == pytest.approx(recalls.mean(), rel=1e-15)
    assert md.metrics.F1(outputs="labels")(np.full((4, 3), -1.0), np.zeros((4, 3))) == 0.0
