"""Which values of a monitored column are better: metrics say it of themselves, or the user does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError
from tests.refusals.cases import NoEpoch

RANDOM = np.random.default_rng(12)
X = RANDOM.normal(size=(40, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [2.0], [3.0]], np.float32)).astype(np.float32)

pytestmark = pytest.mark.usefixtures("quick_sync")
RISING = "accuracy top_k precision recall f1 matthews_correlation auc r2"
FALLING = "mse rmse mae"


def pinball(predictions: Any, targets: Any) -> Any:
    error = targets - predictions
    return md.ops.maximum(0.9 * error, -0.1 * error)


def falling(predictions: Any, targets: Any) -> Any:
    return pinball(predictions, targets)


falling.higher_is_better = False  # type: ignore[attr-defined]


def network(*metrics: Any, rate: float = 0.05) -> md.Model:
    layers = [md.layers.Input((3,)), md.layers.Dense(1)]
    return md.Model(layers, loss="mse", optimizer=md.optim.SGD(rate), metrics=metrics)


def fit(model: md.Model, *callbacks: md.callbacks.Callback, **options: Any) -> md.History:
    options = {"epochs": 6, "verbose": False, "callbacks": callbacks} | options
    return model.fit(X, Y, **options)


def test_every_metric_with_a_number_says_which_values_are_better() -> None:
    rises = {name: cls.higher_is_better for name, cls in md.metrics.Metric.known.items()}
    own = {
        n: v
        for n, v in rises.items()
        if md.metrics.Metric.known[n].__module__.startswith("magmadnn")
    }
    for name in RISING.split():
        assert own[name] is True, name
    for name in FALLING.split():
        assert own[name] is False, name
    assert {cls for n, cls in md.metrics.Metric.known.items() if own.get(n, 0) is None} == {
        md.metrics.ConfusionMatrix
    }


@pytest.mark.parametrize("metric", ["rmse", falling, md.losses.Huber(0.5), "r2"])
@pytest.mark.parametrize("prefix", ["", "val_"])
def test_a_training_that_gets_better_is_not_stopped(metric: Any, prefix: str) -> None:
    model = network(metric)
    name = prefix + md.metrics.as_metric(metric).name
    stop = md.callbacks.EarlyStopping(name, patience=0)
    assert fit(model, stop, validation_split=0.2).stopped is None


@pytest.mark.parametrize("metric", ["rmse", falling, "r2"])
def test_a_training_that_gets_worse_is_stopped(metric: Any) -> None:
    stop = md.callbacks.EarlyStopping(md.metrics.as_metric(metric).name, patience=1)
    assert len(fit(network(metric, rate=2.0), stop)) == 3


@pytest.mark.parametrize("callback", [md.callbacks.EarlyStopping, md.callbacks.Checkpoint])
@pytest.mark.parametrize("name", ["pinball", "val_pinball"])
def test_a_function_must_come_with_its_mode(callback: Any, name: str, tmp_path: Any) -> None:
    def made(**mode: str) -> Any:
        folder = {"folder": tmp_path} if callback is md.callbacks.Checkpoint else {}
        return callback(monitor=name, **mode, **folder)

    with pytest.raises(ArgumentError) as raised:
        fit(network(pinball), made(), NoEpoch(), validation_split=0.2)
    assert str(raised.value) == (
        f"{callback.__name__}: whether {name!r} is better when it is low or high is not known; give "
        'mode="min" or mode="max"'
    )
    assert fit(network(pinball), made(mode="min"), validation_split=0.2).stopped is None


def test_so_must_a_column_that_a_callback_adds() -> None:
    add = md.callbacks.LambdaCallback(on_epoch_end=lambda fit: fit.row.update(my_loss=-fit.epoch))
    with pytest.raises(ArgumentError, match="whether 'my_loss' is better when it is low or high"):
        fit(network(), add, md.callbacks.EarlyStopping("my_loss"))
    assert fit(network(), add, md.callbacks.EarlyStopping("my_loss", mode="min")).stopped is None
    assert len(fit(network(), add, md.callbacks.EarlyStopping("my_loss", mode="max"))) == 2
