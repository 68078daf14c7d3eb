"""Dropout: shares, scale, masks that depend on seed, name and step only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import grad, layers, ops, placeholder

ROWS, COLUMNS = 101, 97


def masks(layer: layers.Dropout, count: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """What a layer leaves of ones in some training steps."""
    x = placeholder("x", (None, COLUMNS), "float64")
    y = layer(x)
    for p in layer.parameters():
        p.prepare(seed)
    fed = np.ones((ROWS, COLUMNS))
    return [np.asarray(y.eval({x: fed}, training=True)) for _ in range(count)]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.83])
def test_the_share_of_zeros_and_the_scale_of_the_rest(rate: float) -> None:
    (kept,) = masks(layers.Dropout(rate), 1)
    zeros = np.count_nonzero(kept == 0)
    n = ROWS * COLUMNS
    assert abs(zeros - n * rate) < 5 * np.sqrt(n * rate * (1 - rate))  # five standard deviations
    np.testing.assert_allclose(kept[kept != 0], 1 / (1 - rate), rtol=4 * 2.0**-52)


def test_each_step_draws_anew_and_a_restored_counter_repeats() -> None:
    layer = layers.Dropout(0.4)
    first, second, third = masks(layer, 3)
    assert not np.array_equal(first, second)
    (counter,) = layer.parameters()
    counter.assign(np.asarray(counter.value) - 2)
    again = masks(layer, 2)
    np.testing.assert_array_equal(again, [second, third])


def test_seed_and_name_tell_masks_apart() -> None:
    base = masks(layers.Dropout(0.4, name="a"), 1)[0]
    same = masks(layers.Dropout(0.4, name="a"), 1)[0]
    other_name = masks(layers.Dropout(0.4, name="b"), 1)[0]
    other_seed = masks(layers.Dropout(0.4, name="a"), 1, seed=1)[0]
    np.testing.assert_array_equal(base, same)
    # independent masks agree in 0.4**2 + 0.6**2 of all places
    for other in (other_name, other_seed):
        assert abs(np.mean(base == other) - 0.52) < 5 * 0.5 / np.sqrt(ROWS * COLUMNS)


def test_prediction_is_the_input_and_does_not_move_the_counter() -> None:
    layer = layers.Dropout(0.4)
    x = placeholder("x", (None, 3))
    y = layer(x)
    (counter,) = layer.parameters()
    before = int(counter.value.item())
    fed = np.array([[1.5, -2.0, 0.25]], np.float32)
    np.testing.assert_array_equal(y.numpy({x: fed}), fed)
    assert int(counter.value.item()) == before
    y.eval({x: fed}, training=True)
    assert int(counter.value.item()) == before + 1


def test_the_gradient_has_the_mask_of_the_forward_pass() -> None:
    layer = layers.Dropout(0.4)
    x = placeholder("x", (None, 7), "float64")
    y = layer(x)
    slopes = grad(ops.sum(y), x, training=True).numpy({x: np.ones((5, 7))})
    kept = np.asarray(y.eval({x: np.ones((5, 7))}, training=True))
    np.testing.assert_array_equal(slopes, kept)
    assert 0 < np.count_nonzero(slopes) < 35


def test_the_first_rows_do_not_depend_on_the_batch() -> None:
    layer = layers.Dropout(0.4)
    x = placeholder("x", (None, 7), "float64")
    y = layer(x)
    (counter,) = layer.parameters()
    start = np.asarray(counter.value).copy()
    large = np.asarray(y.eval({x: np.ones((11, 7))}, training=True))
    counter.assign(start)
    small = np.asarray(y.eval({x: np.ones((5, 7))}, training=True))
    np.testing.assert_array_equal(large[:5], small)
