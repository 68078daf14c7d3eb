"""Means and differences over folds, whose training parts overlap: corrected t intervals and tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_POINTS = 4001  # of Simpson's rule


def interval(
    values: Sequence[float], held: float, trained: float, level: float = 0.95
) -> tuple[float, float]:
    """An interval of the mean over folds and repeats.

    mean +- t * sqrt((1 / J + held / trained) * s^2) with J values of variance s^2 and t of Student's
    distribution with J - 1 degrees of freedom: folds share rows that are trained on, so that s / sqrt(J) is
    too small.

    Source: Nadeau and Bengio, "Inference for the generalization error", Machine Learning 52 (2003), the
    corrected resampled t-test; for repeated cross validation Bouckaert and Frank, PAKDD 2004, section 3.

    Args:
        values: of each fold of each repeat, at least two.
        held: rows of a fold that are held out.
        trained: rows that are trained on.
        level: of the interval.
    """
    mean, half = float(np.mean(values)), _error(values, held, trained)
    half *= student_quantile((1 + level) / 2, len(values) - 1)
    return mean - half, mean + half


def difference_p(differences: Sequence[float], held: float, trained: float) -> float:
    """The two-sided p value of no difference, by the same correction; 1 where all are 0."""
    error = _error(differences, held, trained)
    mean = abs(float(np.mean(differences)))
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return 2 * (1 - student_cdf(mean / error, len(differences) - 1))


def _error(values: Sequence[float], held: float, trained: float) -> float:
    variance = float(np.var(values, ddof=1))
    return math.sqrt((1 / len(values) + held / trained) * variance)


def student_cdf(t: float, freedom: int) -> float:
    """The distribution function of Student's t, by Simpson's rule in x = arctan(t / sqrt(freedom)).

    With that substitution the density is a constant times cos(x)^(freedom - 1).
    """
    end = math.atan(t / math.sqrt(freedom))
    x = np.linspace(0.0, end, _POINTS)
    y = np.cos(x) ** (freedom - 1)
    weights = np.ones(_POINTS)
    weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
    area = float(weights @ y) * end / (3 * (_POINTS - 1))
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(math.pi)
    return 0.5 + math.exp(scale) * area


def student_quantile(share: float, freedom: int) -> float:
    """The t below which Student's distribution has this share, at least a half, by bisection."""
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < share else (low, middle)
    return (low + high) / 2
