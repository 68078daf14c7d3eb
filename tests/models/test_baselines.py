"""Simple methods: at their minima the gradient is 0, and figures are those of known cases."""

from __future__ import annotations

import numpy as np

from magmadnn.models.baselines import (
    classification_baselines,
    logistic_regression,
    regression_baselines,
    ridge_regression,
    with_ones,
)

RNG = np.random.default_rng(19)
X = RNG.normal(size=(83, 3))


def test_ridge_regression_is_where_the_gradient_is_0() -> None:
    y = X @ RNG.normal(size=(3, 2)) + 5.0 + 0.1 * RNG.normal(size=(83, 2))
    weights = ridge_regression(X, y, penalty=7.0)
    gradient = with_ones(X).T @ (with_ones(X) @ weights - y)
    gradient[:-1] += 7.0 * weights[:-1]
    np.testing.assert_allclose(gradient, 0.0, atol=1e-10)
    alone = ridge_regression(X, y[:, 0], penalty=7.0)
    np.testing.assert_allclose(alone, weights[:, 0])


def test_logistic_regression_is_where_the_gradient_is_0() -> None:
    y = (X[:, 0] > 0.3).astype(int) + (X[:, 1] > 0.5)
    weights = logistic_regression(X, y, 3, penalty=2.0)
    shares = np.exp(with_ones(X) @ weights)
    shares /= shares.sum(axis=1, keepdims=True)
    gradient = with_ones(X).T @ (shares - np.eye(3)[y])
    gradient[:-1] += 2.0 * weights[:-1]
    assert abs(gradient[:, 1:]).max() < 1e-3
    assert (weights[:, 0] == 0).all()


def test_logistic_regression_takes_classes_that_a_line_separates_and_those_without_rows() -> None:
    y = 2 * (X[:, 0] > 0).astype(int)
    weights = logistic_regression(X, y, 3)
    assert np.isfinite(weights).all()
    assert np.mean((with_ones(X) @ weights).argmax(axis=1) == y) > 0.97


def test_figures_of_classes() -> None:
    y = (X[:, 0] > 0.5).astype(int)
    found = classification_baselines(X[:60], y[:60], X[60:], y[60:], 2)
    assert found["majority_accuracy"] == np.mean(y[60:] == 0)
    assert found["logistic_accuracy"] > 0.9
    wide = RNG.normal(size=(20, 700))
    assert list(classification_baselines(wide, y[:20], wide, y[:20], 2)) == ["majority_accuracy"]


def test_figures_of_quantities() -> None:
    y = 3.0 * X[:, 1] + 40.0
    found = regression_baselines(X[:60], y[:60], X[60:], y[60:])
    expected = np.sqrt(np.mean((y[60:] - y[:60].mean()) ** 2))
    np.testing.assert_allclose(found["mean_rmse"], expected)
    assert found["ridge_rmse"] < 0.1
    assert found["ridge_r2"] > 0.999
    constant = regression_baselines(X[:60], y[:60], X[60:], np.full(23, 40.0))
    assert "ridge_r2" not in constant
