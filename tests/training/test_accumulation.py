"""Gradients of several batches for one update: those of one large batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, CheckpointError

L = md.layers
RANDOM = np.random.default_rng(31)
X = RANDOM.normal(size=(103, 7))
Y = RANDOM.integers(0, 3, 103)
WEIGHTS = RANDOM.uniform(0.1, 2.0, 103)


def network(dtype: str = "float64", **more: Any) -> md.Model:
    layers = [
        L.Input((7,), dtype), L.Dense(11, activation="tanh"),
        L.Dense(3, kernel_regularizer=L.L2(0.01)),
    ]  # fmt: skip
    given = {"loss": "cross_entropy", "optimizer": "adam", "seed": 1, "precision": dtype} | more
    return md.Model(layers, **given)


def distance(a: md.Model, b: md.Model) -> float:
    left, right = a.values(), b.values()
    assert left.keys() == right.keys()
    return max(float(np.abs(left[k] - right[k]).max()) for k in left)


class LookAtEachBatch(md.callbacks.Callback):
    """Does nothing, but makes batches run one by one."""

    def on_batch_end(self, fit: object) -> None:
        pass


class StopAt(md.callbacks.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def batches(self, fit: Any) -> int:
        return 1

    def on_batch_end(self, fit: Any) -> None:
        if fit.steps == self.step:
            fit.stop("for the test")


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "by NumPy": {"model": {"executor": "reference"}},
    "one by one": {"callbacks": [LookAtEachBatch()]},
    "sample weights": {"sample_weight": WEIGHTS},
    "class weights": {"class_weight": {0: 0.2, 1: 1.0, 2: 3.0}},
    "a loss that divides by class weights": {
        "model": {"loss": md.losses.CrossEntropy(class_weight=(0.2, 1.0, 3.0))}
    },
    "both": {
        "sample_weight": WEIGHTS,
        "model": {"loss": md.losses.CrossEntropy(class_weight=(0.2, 1.0, 3.0))},
    },
    "a schedule": {"model": {"optimizer": md.optim.Adam(md.optim.warm_up(md.optim.cosine(0.1, 20), 4))}},
    "clipped": {"model": {"optimizer": md.optim.chain(
        md.optim.ClipNorm(0.05), md.optim.Momentum(0.9), md.optim.LearningRate(0.5))}},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_large_batch(name: str) -> None:
    """4 batches of 5 rows and one of 20, of 103 rows: the last group is 3 rows.

    Float64: sums of 20 products in another order, in 18 steps; 1e-12 is some thousand roundings.
    """
    case = dict(CASES[name])
    settings = case.pop("model", {})
    many, large = network(**settings), network(**settings)
    small = many.fit(X, Y, batch_size=5, accumulate=4, epochs=3, verbose=False, **case)
    whole = large.fit(X, Y, batch_size=20, epochs=3, verbose=False, **case)
    assert distance(many, large) < 1e-12
    assert distance(many, network(**settings)) > 1e-3
    assert small["learning_rate"] == whole["learning_rate"]
    assert np.allclose(small["loss"], whole["loss"], rtol=1e-12, atol=0)
    assert many._step is not None and many._step[2].count == 18


@pytest.mark.parametrize("shards", [None, 3])
def test_a_group_that_weighs_nothing(shards: int | None) -> None:
    """Rows 20 to 40, a group of 4 batches, and 60 to 65, the first batch of one, have the weight 0."""
    weights = WEIGHTS.copy()
    weights[20:40] = weights[60:65] = 0.0
    found = []
    for size, every in ((5, 4), (20, 1)):
        layers = [L.Input((7,)), L.Dense(11, activation="tanh"), L.Dense(3)]
        model = md.Model(layers, loss="cross_entropy", optimizer="adam", precision="float64")
        given: dict[str, Any] = {"batch_size": size, "accumulate": every, "sample_weight": weights}
        if shards is not None:
            given["parallel"] = md.parallel.DataParallel(shards=shards)
        model.fit(X, Y, shuffle=False, epochs=2, verbose=False, **given)
        found.append(model)
    assert distance(*found) < 1e-12  # as above
    assert all(np.isfinite(value).all() for value in found[0].values().values())


def test_groups_that_do_not_fill_an_epoch() -> None:
    """Of 21 batches the last group has one; of a group of 50 all are in one."""
    for accumulate, batch in ((4, 20), (50, 103)):
        many, large = network(), network()
        many.fit(X, Y, batch_size=5, accumulate=accumulate, epochs=2, verbose=False)
        large.fit(X, Y, batch_size=batch, epochs=2, verbose=False)
        assert distance(many, large) < 1e-12


def test_groups_whose_rows_have_no_weight() -> None:
    """The first batch of the first group, and all of the last group, which then has the gradient 0."""
    weights = WEIGHTS.copy()
    weights[:5] = weights[100:] = 0
    given: dict[str, Any] = {"sample_weight": weights, "shuffle": False, "verbose": False}
    many, large = (
        md.Model(
            [L.Input((7,), "float64"), L.Dense(11, activation="tanh"), L.Dense(3)],
            loss="cross_entropy", optimizer="adam", seed=1, precision="float64",
        )
        for _ in range(2)
    )  # fmt: skip
    many.fit(X, Y, batch_size=5, accumulate=4, epochs=2, **given)
    large.fit(X, Y, batch_size=20, epochs=2, **given)
    assert distance(many, large) < 1e-12


def test_a_list_of_batches() -> None:
    """Of several sizes, which weigh by their rows."""
    parts = [slice(0, 10), slice(10, 13), slice(13, 33), slice(33, 40)]
    many, large = network(), network()
    many.fit([(X[p], Y[p]) for p in parts], accumulate=3, epochs=2, verbose=False)
    large.fit([(X[:33], Y[:33]), (X[33:40], Y[33:40])], epochs=2, verbose=False)
    assert distance(many, large) < 1e-12


def two_outputs(**more: Any) -> md.Model:
    x = L.Input((7,), "float64")
    hidden = L.Dense(9, activation="tanh")(x)
    outputs = [L.Dense(3, name="kind")(hidden), L.Dense(1, name="size")(hidden)]
    return md.Model(
        inputs=x, outputs=outputs, loss=["cross_entropy", "mse"], loss_weights=[1.0, 0.3],
        optimizer="sgd", seed=2, precision="float64", **more,
    )  # fmt: skip


def test_two_outputs_with_weights_of_samples() -> None:
    targets = [Y, RANDOM.normal(size=(103, 1))]
    many, large = two_outputs(), two_outputs()
    many.fit(X, targets, batch_size=5, accumulate=4, sample_weight=WEIGHTS, verbose=False)
    large.fit(X, targets, batch_size=20, sample_weight=WEIGHTS, verbose=False)
    assert distance(many, large) < 1e-12


def test_a_training_goes_on_within_a_group(tmp_path: Path) -> None:
    """Bit for bit: the sums are part of what is saved."""
    how: dict[str, Any] = {"batch_size": 5, "accumulate": 4, "epochs": 2, "verbose": False}
    whole = network()
    whole.fit(X, Y, **how)
    saved = md.callbacks.Checkpoint(tmp_path, every_steps=1)
    network().fit(X, Y, callbacks=[saved, StopAt(27)], **how)
    again = network()
    history = again.fit(X, Y, callbacks=[md.callbacks.Checkpoint(tmp_path)], **how)
    assert distance(again, whole) == 0
    assert len(history.rows) == 2
    other = {**how, "accumulate": 2}
    with pytest.raises(CheckpointError, match="accumulate"):
        network().fit(X, Y, callbacks=[md.callbacks.Checkpoint(tmp_path)], **other)


def test_what_a_stopped_training_had_summed_is_forgotten() -> None:
    """By a new fit, which begins with a new group."""
    model, other = network(optimizer="sgd"), network(optimizer="sgd")
    model.fit(X, Y, batch_size=5, accumulate=4, verbose=False, callbacks=[StopAt(6)])
    other.assign(model.values())
    how: dict[str, Any] = {"batch_size": 5, "accumulate": 4, "initial_epoch": 0, "verbose": False}
    for one in (model, other):
        one.fit(X, Y, **how)
    assert distance(model, other) == 0


def test_memory_is_that_of_a_batch() -> None:
    """But for the sums."""
    model = network("float32")
    model.fit(X.astype(np.float32), Y, batch_size=5, accumulate=4, verbose=False)
    assert model._step is not None
    summed, plain = (
        model._step[2].memory({"batch": 5}),
        network("float32").memory(X[:5], Y[:5], batch_size=5),
    )
    assert summed is not None
    assert summed.optimizer - plain.optimizer == plain.parameters + 8
    assert summed.activations < 2 * plain.activations


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "4", None])
def test_no_number_of_batches(value: Any) -> None:
    with pytest.raises(
        ArgumentError, match="fit: accumulate must be an integer of at least 1, got"
    ):
        network().fit(X, Y, accumulate=value, verbose=False)


def test_what_cannot_be_averaged_is_refused() -> None:
    def batches() -> Any:
        yield X, Y

    with pytest.raises(ArgumentError, match="accumulate=2 must know how many batches an epoch has"):
        network().fit(batches, accumulate=2, verbose=False)
    with pytest.raises(ArgumentError, match="accumulate=2 with mixed_fp16"):
        network("float32", precision="mixed_fp16").fit(X, Y, accumulate=2, verbose=False)
    targets = [Y, RANDOM.normal(size=(103, 1))]
    with pytest.raises(ArgumentError, match="outputs whose losses divide by weights of their own"):
        two_outputs().fit(X, targets, sample_weight={"kind": WEIGHTS}, accumulate=2, verbose=False)
