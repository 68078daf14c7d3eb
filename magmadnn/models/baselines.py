"""What simple methods reach on the same rows: a network that is no better is not worth its time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

_NEWTON_STEPS = 50
_MOST_UNKNOWNS = (
    600  # for logistic regression: each of its steps solves a system of so many equations
)


def classification_baselines(
    x: Array, y: Array, x_test: Array, y_test: Array, classes: int
) -> dict[str, float]:
    """Accuracy on test rows of the commonest class, and of logistic regression where it is not too large.

    Args:
        x: training rows, standardised, [rows, columns].
        y: their classes, 0..classes-1.
        x_test: likewise.
        y_test: likewise.
        classes: how many there are.
    """
    commonest = np.bincount(y, minlength=classes).argmax()
    found = {"majority_accuracy": float(np.mean(y_test == commonest))}
    if (x.shape[1] + 1) * (classes - 1) <= _MOST_UNKNOWNS:
        logits = with_ones(x_test) @ logistic_regression(x, y, classes)
        found["logistic_accuracy"] = float(np.mean(logits.argmax(axis=1) == y_test))
    return found


def regression_baselines(x: Array, y: Array, x_test: Array, y_test: Array) -> dict[str, float]:
    """Root mean squared error on test rows of the mean, and of ridge regression; its R2 too.

    Args:
        x: training rows, standardised, [rows, columns].
        y: their targets in their own units, [rows] or [rows, targets].
        x_test: likewise.
        y_test: likewise.
    """
    test = np.asarray(y_test, np.float64)
    of_mean = np.asarray(y, np.float64).mean(axis=0)
    predicted = with_ones(x_test) @ ridge_regression(x, y)
    squares = np.square(predicted.reshape(test.shape) - test)
    found = {
        "mean_rmse": float(np.sqrt(np.mean(np.square(test - of_mean)))),
        "ridge_rmse": float(np.sqrt(np.mean(squares))),
    }
    around = np.square(test - test.mean(axis=0)).sum(axis=0)
    if np.all(around > 0):
        found["ridge_r2"] = float(np.mean(1.0 - squares.sum(axis=0) / around))
    return found


def ridge_regression(x: Array, y: Array, penalty: float = 1.0) -> Floats:
    """The W that makes `sum((with_ones(x) @ W - y)**2) + penalty * sum(W[:-1]**2)` smallest.

    Args:
        x: [rows, columns].
        y: [rows] or [rows, targets].
        penalty: above 0; the intercept, W's last row, has none.
    """
    inputs, y = with_ones(x), np.asarray(y, np.float64)
    system = inputs.T @ inputs + penalty * _without_intercept(inputs.shape[1])
    found: Floats = np.linalg.solve(system, inputs.T @ y).astype(np.float64, copy=False)
    return found


def logistic_regression(x: Array, y: Array, classes: int, penalty: float = 1.0) -> Floats:
    """The W that makes `sum(cross entropy of with_ones(x) @ W) + penalty / 2 * sum(W[:-1]**2)` smallest.

    By Newton's method, each step halved until the sum falls; the first class has the logit 0 always.

    Args:
        x: [rows, columns].
        y: classes, 0..classes-1.
        classes: how many there are.
        penalty: above 0; the intercepts, W's last row, have none.

    Returns:
        W [columns + 1, classes]; its first column is 0.
    """
    inputs, free = with_ones(x), classes - 1
    width = inputs.shape[1]
    wanted = (np.asarray(y)[:, None] == np.arange(1, classes)).astype(np.float64)
    decay = penalty * _without_intercept(width)
    decay[-1, -1] = 1e-8 * len(inputs)  # where a class has no rows its intercept has no minimum

    def value(weights: Floats) -> float:
        logits = inputs @ weights
        every = np.hstack([np.zeros((len(inputs), 1)), logits])
        total = np.logaddexp.reduce(every, axis=1).sum() - (wanted * logits).sum()
        return float(total + 0.5 * (weights * (decay @ weights)).sum())

    weights = np.zeros((width, free))
    lowest = value(weights)
    for _ in range(_NEWTON_STEPS):
        step = _newton_step(inputs, wanted, weights, decay)
        while (now := value(weights - step)) > lowest and np.abs(step).max() > 1e-12:
            step = step / 2
        if lowest - now <= 1e-10 * max(1.0, abs(lowest)):
            break
        weights, lowest = weights - step, now
    return np.hstack([np.zeros((width, 1)), weights])


def _newton_step(inputs: Floats, wanted: Floats, weights: Floats, decay: Floats) -> Floats:
    """What Newton's method subtracts from the weights [columns, classes - 1]."""
    logits = inputs @ weights
    highest = np.maximum(logits.max(axis=1, keepdims=True), 0.0)
    shares = np.exp(logits - highest)
    shares /= shares.sum(axis=1, keepdims=True) + np.exp(-highest)
    gradient = inputs.T @ (shares - wanted) + decay @ weights
    width, free = weights.shape
    curvature = np.empty((free, width, free, width))
    for a in range(free):
        for b in range(free):
            by_row = shares[:, a] * ((a == b) - shares[:, b])
            curvature[a, :, b, :] = inputs.T @ (by_row[:, None] * inputs) + (a == b) * decay
    size = free * width
    solved: Floats = np.linalg.solve(curvature.reshape(size, size), gradient.T.reshape(size))
    return solved.reshape(free, width).T


def with_ones(x: Array) -> Floats:
    """x in float64, [rows, columns + 1]: the last column is 1."""
    return np.hstack([np.asarray(x, np.float64), np.ones((len(x), 1))])


def _without_intercept(width: int) -> Floats:
    """The unit matrix, with 0 for the intercept."""
    return np.diag(np.append(np.ones(width - 1), 0.0))
