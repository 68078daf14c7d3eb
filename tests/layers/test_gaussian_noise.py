"""GaussianNoise: size, streams that depend on seed, name and step only, the same bits in any way to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, placeholder
from magmadnn.runtime import threads

ROWS, COLUMNS = 101, 97


def noise(layer: layers.GaussianNoise, count: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """What a layer adds in some training steps."""
    x = placeholder("x", (None, COLUMNS), "float64")
    y = layer(x)
    for p in layer.parameters():
        p.prepare(seed)
    fed = np.zeros((ROWS, COLUMNS))
    return [np.asarray(y.eval({x: fed}, training=True)) for _ in range(count)]


def test_mean_and_standard_deviation() -> None:
    (added,) = noise(layers.GaussianNoise(0.7), 1)
    n = added.size  # five standard deviations of each
    assert abs(added.mean()) < 5 * 0.7 / np.sqrt(n)
    assert abs(added.std() - 0.7) < 5 * 0.7 / np.sqrt(2 * n)


def test_each_step_draws_anew_and_a_restored_counter_repeats() -> None:
    layer = layers.GaussianNoise(0.4)
    first, second, third = noise(layer, 3)
    assert not np.array_equal(first, second)
    (counter,) = layer.parameters()
    counter.assign(np.asarray(counter.value) - 2)
    np.testing.assert_array_equal(noise(layer, 2), [second, third])


def test_seed_and_name_tell_streams_apart() -> None:
    base = noise(layers.GaussianNoise(1.0, name="a"), 1)[0]
    np.testing.assert_array_equal(base, noise(layers.GaussianNoise(1.0, name="a"), 1)[0])
    for other in (
        noise(layers.GaussianNoise(1.0, name="b"), 1)[0],
        noise(layers.GaussianNoise(1.0, name="a"), 1, seed=1)[0],
    ):
        assert abs((base * other).mean()) < 5 / np.sqrt(base.size)


def test_noise_and_dropout_of_one_counter_have_nothing_in_common() -> None:
    counter = np.int64(11 << 32)
    added = md.ops.random_normal(counter, (ROWS, COLUMNS), "float64")
    kept = md.ops.dropout(np.ones((ROWS, COLUMNS)), 0.5, counter, seed=1)
    assert abs((added * (kept - 1)).mean()) < 5 / np.sqrt(added.size)


def test_prediction_is_the_input_and_does_not_move_the_counter() -> None:
    layer = layers.GaussianNoise(0.4)
    x = placeholder("x", (None, 3))
    y = layer(x)
    (counter,) = layer.parameters()
    before = int(counter.value.item())
    fed = np.array([[1.5, -2.0, 0.25]], np.float32)
    np.testing.assert_array_equal(y.numpy({x: fed}), fed)
    assert int(counter.value.item()) == before
    y.eval({x: fed}, training=True)
    assert int(counter.value.item()) == before + 1


def test_the_first_rows_do_not_depend_on_the_batch() -> None:
    layer = layers.GaussianNoise(0.4)
    x = placeholder("x", (None, 7))
    y = layer(x)
    (counter,) = layer.parameters()
    start = np.asarray(counter.value).copy()
    large = np.asarray(y.eval({x: np.zeros((11, 7))}, training=True))
    counter.assign(start)
    small = np.asarray(y.eval({x: np.zeros((5, 7))}, training=True))
    np.testing.assert_array_equal(large[:5], small)


def network() -> md.Model:
    return md.Model(
        [layers.Input((193,)), layers.GaussianNoise(0.3), layers.Dense(7, "tanh"), layers.Dense(2)],
        loss="mse", optimizer="adam", seed=3,
    )  # fmt: skip


def trained(*callbacks: md.callbacks.Callback) -> dict[str, Any]:
    model, rng = network(), np.random.default_rng(1)
    x, y = rng.normal(size=(307, 193)), rng.normal(size=(307, 2))
    model.fit(x, y, epochs=2, batch_size=101, verbose=False, callbacks=callbacks)
    return model.values()


def check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])


def test_the_number_of_threads_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_chosen", [])
    found = []
    for count in (1, 2, 3):
        md.set_threads(count)
        found.append(trained())
    check_same(found[1], found[0])
    check_same(found[2], found[0])


@pytest.mark.parametrize("steps", [3, 6])
def test_a_training_that_was_broken_off_ends_with_the_same_bits(tmp_path: Path, steps: int) -> None:
    def stop(fit: Any) -> None:
        if fit.steps == steps:
            fit.stop("broken off")

    def keeping() -> md.callbacks.Callback:
        return md.callbacks.Checkpoint(tmp_path, every_steps=steps)

    trained(keeping(), md.callbacks.LambdaCallback(on_batch_end=stop))
    check_same(trained(keeping()), trained())
