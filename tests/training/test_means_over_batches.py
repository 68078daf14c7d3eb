"""Losses and metrics of many batches are those of all their samples, whatever the batch size."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import DataError
from tests.mistakes import error_of

RNG = np.random.default_rng(31)
ROWS = 53
X = RNG.normal(size=(ROWS, 4)).astype(np.float32)
CLASSES = np.sort(RNG.integers(0, 3, ROWS))  # batches differ in their classes as much as can be
WEIGHTS = np.where(np.arange(ROWS) < 11, 0, RNG.uniform(0.1, 3, ROWS)).astype(np.float32)
SIZES = (1, 7, 10, ROWS)
# A loss is a quotient of two sums of up to 53 positive float32 numbers, each a few operations long.
REL = 4 * (ROWS + 16) * 2.0**-23
WEIGHTED = md.losses.CrossEntropy(class_weight=(0.2, 1.0, 5.0))
SEQUENCE = RNG.integers(0, 3, (ROWS, 6))


def signed(predictions: Any, targets: Any) -> Any:
    return md.ops.mean(md.ops.abs(predictions - targets), axis=1)


CASES: dict[str, tuple[Any, int, Any]] = {
    "classes by weight": (WEIGHTED, 3, CLASSES),
    "probabilities by weight": (WEIGHTED, 3, RNG.dirichlet([1, 1, 1], ROWS).astype(np.float32)),
    "smoothed classes by weight": (
        md.losses.CrossEntropy(label_smoothing=0.2, class_weight=(0.2, 1.0, 5.0)), 3, CLASSES,
    ),
    "smoothed classes": (md.losses.CrossEntropy(label_smoothing=0.2), 3, CLASSES),
    "a class of weight 0": (md.losses.CrossEntropy(class_weight=(0.0, 1.0, 5.0)), 3, CLASSES),
    "labels": ("binary_cross_entropy", 3, np.eye(3, dtype=int)[CLASSES]),
    "margins": ("hinge", 1, (CLASSES > 1).astype(int)),
    "numbers": (md.losses.Huber(0.3), 1, X[:, 0] ** 2),
    "a function": (signed, 2, X[:, :2]),
}  # fmt: skip


def network(loss: Any, units: int, metrics: Any = (), penalty: float = 0.03) -> md.Model:
    dense = md.layers.Dense(units, kernel_regularizer=md.layers.L2(penalty), bias_init="normal")
    # a step that changes no bit of a parameter
    layers = [md.layers.Input((4,)), dense]
    return md.Model(layers, loss=loss, optimizer=md.optim.SGD(1e-30), metrics=metrics, seed=2)


def losses_of(
    loss: Any, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> float:
    """sum(w l) / sum(w d) over all samples, in float64."""
    loss = md.losses.as_loss(loss)
    p, t = (md.placeholder(name, (None, *a.shape[1:]), a.dtype)
            for name, a in (("p", predictions), ("t", targets)))  # fmt: skip
    feeds = {p: predictions, t: targets}
    values = loss.per_sample(p, t).numpy(feeds)
    divisor = loss.divisor(p, t)
    shares = np.ones(ROWS) if divisor is None else divisor.numpy(feeds)
    return float((weights * values).sum() / (weights * shares).sum())


@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize("name", CASES)
def test_the_loss_does_not_depend_on_the_batch_size(name: str, weighted: bool) -> None:
    loss, units, y = CASES[name]
    model = network(loss, units)
    given = {"sample_weight": WEIGHTS} if weighted else {}
    kernel = model.parameters()[0].value.read().astype(np.float64)
    targets = y.reshape(ROWS, 1) if units == 1 else y
    targets = targets.astype(np.float64) if targets.dtype.kind == "f" else targets
    expected = (
        losses_of(
            loss,
            model.predict(X).astype(np.float64),
            targets,
            WEIGHTS if weighted else np.ones(ROWS),
        )
        + 0.03 * (kernel**2).sum()
    )
    for size in SIZES:
        assert model.evaluate(X, y, batch_size=size, **given)["loss"] == pytest.approx(
            expected, rel=REL
        )
        row = model.fit(X, y, batch_size=size, epochs=1, verbose=False, **given).rows[0]
        assert row["loss"] == pytest.approx(expected, rel=REL), size


def test_validation_is_a_mean_over_samples_too() -> None:
    model = network(WEIGHTED, 3)
    rows = [
        model.fit(
            X, CLASSES, batch_size=size, epochs=1, validation_data=(X, CLASSES), verbose=False
        ).rows[0]
        for size in SIZES
    ]
    whole = model.evaluate(X, CLASSES)["loss"]
    assert [row["val_loss"] for row in rows] == pytest.approx([whole] * len(SIZES), rel=REL)


def test_a_sequence_of_classes_by_weight_is_one_mean_too() -> None:
    x = np.repeat(X[:, None], 6, axis=1) * np.arange(1, 7, dtype=np.float32)[:, None]
    layers = [md.layers.Input((6, 4)), md.layers.Dense(3)]
    model = md.Model(layers, loss=WEIGHTED, seed=2)
    found = [model.evaluate(x, SEQUENCE, batch_size=size)["loss"] for size in SIZES]
    z = model.predict(x).astype(np.float64)
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    w = np.array(WEIGHTED.class_weight)[SEQUENCE]
    chosen = np.take_along_axis(log_p, SEQUENCE[..., None], -1)[..., 0]
    assert found == pytest.approx([-(w * chosen).sum() / w.sum()] * len(SIZES), rel=6 * REL)


def test_metrics_do_not_depend_on_the_batch_size() -> None:
    metrics = ["accuracy", "f1", "mcc", "confusion_matrix", md.metrics.TopK(2)]
    for loss, units, y, chosen in (
        ("cross_entropy", 3, CLASSES, metrics),
        ("binary_cross_entropy", 1, CLASSES > 1, ["accuracy", "auc", "precision", "recall"]),
        ("mse", 1, X[:, 0] ** 2, ["mae", "mse", "rmse", "r2"]),
    ):
        model = network(loss, units, chosen)
        for given in ({}, {"sample_weight": WEIGHTS}):
            whole = model.evaluate(X, y, batch_size=ROWS, **given)
            for size in SIZES:
                found = model.evaluate(X, y, batch_size=size, **given)
                for name in set(whole) - {
                    "loss"
                }:  # float64 sums of 53 terms; r2 takes a difference
                    np.testing.assert_allclose(found[name], whole[name], rtol=1e-12)


def test_batches_of_a_stream_count_by_their_weights() -> None:
    model = network(WEIGHTED, 3)
    cuts = [0, 4, 5, 30, ROWS]
    batches = [(X[a:b], CLASSES[a:b], WEIGHTS[a:b]) for a, b in pairwise(cuts)]
    whole = model.evaluate(X, CLASSES, sample_weight=WEIGHTS)["loss"]
    assert model.evaluate(batches)["loss"] == pytest.approx(whole, rel=REL)
    assert model.fit(batches, epochs=1, verbose=False)["loss"][0] == pytest.approx(whole, rel=REL)


def test_a_mean_over_nothing_is_nan_and_not_0() -> None:
    model = network(md.losses.CrossEntropy(class_weight=(0.0, 1.0, 1.0)), 3, penalty=0.0)
    assert math.isnan(model.evaluate(X[:5], np.zeros(5, int))["loss"])
    stream = [(X[:5], CLASSES[:5], np.zeros(5))]
    assert math.isnan(network("cross_entropy", 3).evaluate(stream)["loss"])


def test_weights_that_are_all_0_are_refused() -> None:
    model, nothing = network("cross_entropy", 3), np.zeros(ROWS)
    text = "the weights of all rows are 0, so there is nothing to measure"
    assert error_of(lambda: model.fit(X, CLASSES, sample_weight=nothing)) == (
        DataError,
        f"fit: {text}",
    )
    assert error_of(lambda: model.evaluate(X, CLASSES, sample_weight=nothing)) == (
        DataError, f"evaluate: {text}"
    )  # fmt: skip
    zero = {0: 0.0, 1: 0.0, 2: 0.0}
    assert error_of(lambda: model.fit(X, CLASSES, class_weight=zero)) == (DataError, f"fit: {text}")


def test_weights_of_a_stream_are_looked_at() -> None:
    model = network("cross_entropy", 3)
    for weights, text in (
        (-np.ones(5), "weights must be finite and not negative"),
        (np.ones(4), "weights must have shape (5,), got (4,)"),
        ([math.nan] * 5, "weights must be finite and not negative"),
        ([1e300] * 5, "weights must be finite and not negative"),  # as float32
    ):
        _, message = error_of(lambda w=weights: model.evaluate([(X[:5], CLASSES[:5], w)]))
        assert message == text
    mixed = [(X[:5], CLASSES[:5]), (X[:5], CLASSES[:5], np.ones(5))]
    _, message = error_of(lambda: model.evaluate(mixed))
    assert message == "this batch has weights, the first had none; give weights with each batch"


def test_the_same_loss_may_be_that_of_two_models_and_two_outputs() -> None:
    x = md.layers.Input((4,))
    a, b = (md.layers.Dense(3, name=name)(x) for name in "ab")
    shared = WEIGHTED
    both = md.Model(inputs=[x], outputs=[a, b], loss=shared, metrics=["accuracy"])
    first = md.Model(inputs=[x], outputs=[a], loss=shared, metrics=["accuracy"])
    found, alone = both.evaluate(X, [CLASSES, 2 - CLASSES]), first.evaluate(X, CLASSES)
    assert found["a_loss"] == alone["loss"] and found["a_accuracy"] == alone["accuracy"]
    assert found["a_loss"] != found["b_loss"]
    assert shared == md.losses.CrossEntropy(class_weight=(0.2, 1.0, 5.0))


def test_targets_that_line_up_with_predictions_wrongly_are_refused() -> None:
    def squares(predictions: Any, targets: Any) -> Any:
        return md.ops.mean(md.ops.square(predictions - targets))

    y = X[:, 0]
    text = (
        "squares: subtract of (batch, 1) and (batch,) pairs each sample with all others; give them the same "
        "axes: predictions[:, 0], or targets[:, None]"
    )
    _, message = error_of(lambda: network(squares, 1).evaluate(X, y))
    assert message == text
    _, message = error_of(lambda: network("mse", 1, [squares]).evaluate(X, y))
    assert message == f"metric {text}"
    expected = network("mse", 1).evaluate(X, y)["loss"]
    assert network(squares, 1).evaluate(X, y[:, None])["loss"] == pytest.approx(expected, rel=REL)

    def pairs(predictions: Any, targets: Any) -> Any:  # all pairs, and meant
        d = predictions - md.ops.transpose(predictions)
        return md.ops.mean(md.ops.square(d), axis=1) + 0 * md.ops.sum(targets)

    assert network(pairs, 1).evaluate(X, y)["loss"] > 0
