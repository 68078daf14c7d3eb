"""Running statistics of BatchNorm, constant samples, one sample, half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, placeholder
from magmadnn.errors import ArgumentError

EPS = 2.0**-52


def test_running_statistics_follow_the_batches_in_training_only() -> None:
    layer = layers.BatchNorm(momentum=0.7)
    x = placeholder("x", (None, 2, 3), "float64")
    y = layer(x)
    rng = np.random.default_rng(1)
    mean, variance = np.zeros(3), np.ones(3)
    for batch in (5, 7, 2):
        fed = 3 + 2 * rng.normal(size=(batch, 2, 3))
        y.eval({x: fed}, training=True)
        mean = 0.7 * mean + 0.3 * fed.mean((0, 1))
        variance = 0.7 * variance + 0.3 * fed.var((0, 1), ddof=1)
        np.testing.assert_allclose(layer.running_mean.value, mean, rtol=16 * EPS)
        np.testing.assert_allclose(layer.running_variance.value, variance, rtol=16 * EPS)
        y.eval({x: 10 * fed})
        np.testing.assert_allclose(layer.running_mean.value, mean, rtol=16 * EPS)


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_a_layer_that_is_called_several_times_follows_the_batches_of_all_calls(
    executor: str,
) -> None:
    """Two inputs, and a third call on a result of the first, as in networks with shared layers."""
    rng = np.random.default_rng(6)
    shared = layers.BatchNorm(momentum=0.7)
    left, right = layers.Input((3,), "float64"), layers.Input((3,), "float64")
    first = shared(left)
    out = layers.Add()(first, shared(right), shared(first * 2.0 + 1.0))
    kind: Any = {"precision": "float64", "executor": executor}
    model = md.Model(inputs=[left, right], outputs=out, loss="mse", optimizer="sgd", **kind)
    a, b = rng.normal(1, 2, (7, 3)), rng.normal(-3, 0.5, (7, 3))
    model.fit([a, b], rng.normal(size=(7, 3)), batch_size=7, shuffle=False, verbose=False)
    normal = (a - a.mean(0)) / np.sqrt(a.var(0) + 1e-5)
    mean, variance = np.zeros(3), np.ones(3)
    for rows in (a, b, normal * 2 + 1):
        mean = 0.7 * mean + 0.3 * rows.mean(0)
        variance = 0.7 * variance + 0.3 * rows.var(0, ddof=1)
    np.testing.assert_allclose(shared.running_mean.value, mean, atol=64 * EPS)
    np.testing.assert_allclose(shared.running_variance.value, variance, rtol=64 * EPS)


class Centre(layers.Layer):
    """Subtracts a running mean, as it was or as it has just become."""

    updated: bool = False

    def build(self, x: Any) -> None:
        self.mean = self.state("mean", x.shape[1:], md.init.ones(), x.dtype)

    def forward(self, x: Any) -> Any:
        running = 0.75 * self.mean + 0.25 * x.mean(axis=0)
        return md.with_update(x - (running if self.updated else self.mean), self.mean, running)


@pytest.mark.parametrize("updated", [False, True])
@pytest.mark.parametrize("chained", [False, True])
def test_a_state_takes_in_all_calls_whatever_these_pass_on(updated: bool, chained: bool) -> None:
    """The results are computed from the state as it was before all of the calls."""
    rng = np.random.default_rng(8)
    x, z = placeholder("x", (None, 3), "float64"), placeholder("z", (None, 3), "float64")
    a, b = rng.normal(1, 2, (7, 3)), rng.normal(-3, 0.5, (7, 3))
    centre = Centre(updated)

    def passed(rows: Any) -> Any:
        return rows - (0.75 + 0.25 * rows.mean(0) if updated else 1.0)

    first = centre(x)
    out = centre(centre(first)) if chained else centre(first) + centre(z)
    batches = [a, passed(a), passed(passed(a)) if chained else b]
    got = np.asarray(out.eval({x: a} if chained else {x: a, z: b}, training=True))
    expected = passed(batches[2]) + (0.0 if chained else passed(passed(a)))
    np.testing.assert_allclose(got, expected, atol=64 * EPS)
    mean = np.ones(3)
    for rows in batches:
        mean = 0.75 * mean + 0.25 * rows.mean(0)
    np.testing.assert_allclose(centre.mean.value, mean, atol=64 * EPS)


class Counter(layers.Layer):
    """Adds how often it was called, this call with it."""

    def build(self, x: Any) -> None:
        self.count = self.state("count", (), md.init.zeros(), x.dtype)

    def forward(self, x: Any) -> Any:
        after = self.count + 1.0
        return md.with_update(x + after, self.count, after)


def test_a_counter_that_is_passed_on_counts_each_call() -> None:
    counter, x = Counter(), placeholder("x", (None, 3), "float64")
    out = counter(x) + counter(x * 2) + counter(x)
    out.eval({x: np.ones((2, 3))}, training=True)
    assert counter.count.value == 3
    chain = Counter()
    chain(chain(chain(x))).eval({x: np.ones((2, 3))}, training=True)
    assert chain.count.value == 3


def test_gamma_and_beta_are_trained_and_start_at_one_and_zero() -> None:
    layer = layers.BatchNorm()
    layer(placeholder("x", (None, 3)))
    np.testing.assert_array_equal(layer.gamma.value, np.ones(3))
    np.testing.assert_array_equal(layer.beta.value, np.zeros(3))
    assert [p.trained for p in layer.parameters()] == [True, True, False, False]


def test_prediction_comes_to_agree_with_training() -> None:
    layer = layers.BatchNorm(momentum=0.5)
    x = placeholder("x", (None, 3), "float64")
    y = layer(x)
    fed = np.random.default_rng(2).normal(2, 3, size=(50, 3))
    for _ in range(60):  # 0.5**60 is below the rounding
        trained = np.asarray(y.eval({x: fed}, training=True))
    # prediction divides by the variance with n - 1 in place of n
    scale = np.sqrt((fed.var(0) + 1e-5) / (fed.var(0, ddof=1) + 1e-5))
    np.testing.assert_allclose(y.numpy({x: fed}), trained * scale, atol=64 * EPS)


def test_a_batch_of_one_sample_keeps_statistics_finite() -> None:
    layer = layers.BatchNorm()
    x = placeholder("x", (None, 3))
    y = layer(x)
    out = np.asarray(y.eval({x: np.full((1, 3), 2.5)}, training=True))
    np.testing.assert_array_equal(out, np.zeros((1, 3)))
    np.testing.assert_allclose(layer.running_variance.value, np.full(3, 0.9), rtol=2.0**-22)


def test_fit_refuses_batches_of_one_value_for_each_feature() -> None:
    """Nothing would be left of it, whatever it was."""
    rng = np.random.default_rng(1)
    x, y = rng.random((6, 4, 4, 3), np.float32), np.arange(6) % 2

    def model(*parts: layers.Layer) -> md.Model:
        made = [layers.Input((4, 4, 3)), *parts, layers.Dense(2)]
        return md.Model(made, loss="cross_entropy", optimizer="sgd")

    pooled, places = layers.GlobalAveragePooling2D, layers.Flatten
    for parts in (
        (pooled(), layers.BatchNorm()),
        (layers.Checkpointed([layers.Conv2D(5, 4), layers.BatchNorm()]), places()),
    ):
        wrong = model(*parts)
        with pytest.raises(
            ArgumentError, match=r"^fit: batch_norm.* normalises .* batch_size=2 or"
        ):
            wrong.fit(x, y, batch_size=1, verbose=False)
        wrong.fit(x, y, batch_size=2, verbose=False)
    model(layers.BatchNorm(), pooled()).fit(x, y, batch_size=1, verbose=False)
    model(pooled(), layers.LayerNorm()).fit(x, y, batch_size=1, verbose=False)


def test_a_constant_sample_is_zero_not_nan() -> None:
    x = placeholder("x", (None, 5))
    y = layers.LayerNorm()(x)
    np.testing.assert_array_equal(y.numpy({x: np.full((2, 5), 7.5)}), np.zeros((2, 5)))


def test_layer_norm_does_not_mix_samples() -> None:
    x = placeholder("x", (None, 5), "float64")
    y = layers.LayerNorm()(x)
    fed = np.random.default_rng(3).normal(size=(7, 5))
    alone = [y.numpy({x: fed[i : i + 1]})[0] for i in range(7)]
    np.testing.assert_array_equal(y.numpy({x: fed}), alone)


@pytest.mark.parametrize("layer", [layers.BatchNorm(), layers.LayerNorm()], ids=["batch", "layer"])
def test_half_precision_does_not_overflow(layer: layers.Layer) -> None:
    x = placeholder("x", (None, 3), "float16")
    y = layer(x)
    fed = np.array([[3e4, -6e4, 1e4], [6e4, 2e4, -3e4]], np.float16)  # squares are beyond float16
    out = np.asarray(y.eval({x: fed}, training=True))
    assert out.dtype == np.float16
    wide = fed.astype(np.float64)
    axis = 0 if isinstance(layer, layers.BatchNorm) else 1
    expected = (wide - wide.mean(axis, keepdims=True)) / wide.std(axis, keepdims=True)
    np.testing.assert_allclose(out, expected, atol=2 * 2.0**-10)
    assert all(p.dtype == np.float32 for p in layer.parameters())


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_a_large_mean_does_not_spoil_the_variance(shift: float) -> None:
    x = placeholder("x", (None, 3))
    y = layers.BatchNorm()(x)
    fed = (shift + np.random.default_rng(4).normal(size=(101, 3))).astype(np.float32)
    out = np.asarray(y.eval({x: fed}, training=True))
    wide = fed.astype(np.float64)
    expected = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-5)
    # the mean is rounded to float32: half a unit in the last place of the shift
    np.testing.assert_allclose(out, expected, atol=8 * 2.0**-24 * (1 + shift) + 32 * 2.0**-23)
