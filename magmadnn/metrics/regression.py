"""Metrics for numbers: predictions and targets of one shape, r = prediction - target, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from magmadnn import ops
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Dim, product
from magmadnn.graph.signature import shape_text
from magmadnn.losses import Loss
from magmadnn.losses.loss import OUTPUTS, mean_of_sample

from .metric import ROUNDING, Average, Metric, Sums, Value, ratio
from .operands import numbers, weights_like


@dataclass(frozen=True)
class _OfNumbers(Metric):
    """A metric of differences, which say nothing of logits."""

    def of_loss(self, loss: Loss) -> Metric:
        """See `Metric`; probabilities are numbers too, and what is not said is taken as it is.

        Raises:
            ArgumentError: if predictions are logits or margins.
        """
        if loss.outputs in ("classes", "labels", "margins"):
            raise ArgumentError(
                f"{self.name}: needs numbers of the targets' kind, but the loss {loss.name} is for "
                f'{OUTPUTS[loss.outputs].words}; use "accuracy" or "f1", or a function of your own'
            )
        return self


def _squares(metric: Metric, predictions: Value, targets: Value) -> Value:
    predictions, targets = numbers(metric.name, predictions, targets)
    return mean_of_sample(ops.square(predictions - targets))


@dataclass(frozen=True)
class MeanSquaredError(_OfNumbers, Average):
    """`mean(r**2)` over all elements."""

    names: ClassVar[tuple[str, ...]] = ("mse", "mean_squared_error")
    higher_is_better: ClassVar[bool | None] = False

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Average`."""
        return _squares(self, predictions, targets)


@dataclass(frozen=True)
class RootMeanSquaredError(_OfNumbers, Average):
    """`sqrt(mean(r**2))` over all elements: an error in the targets' own unit."""

    names: ClassVar[tuple[str, ...]] = ("rmse", "root_mean_squared_error")
    higher_is_better: ClassVar[bool | None] = False

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """`r**2`; see `Average`."""
        return _squares(self, predictions, targets)

    def result(self, sums: Sums) -> float | NDArray[Any]:
        """The root, taken once at the end: a mean of roots of batches would be another number."""
        return math.sqrt(ratio(sums[0], sums[1], nothing=math.nan))


@dataclass(frozen=True)
class MeanAbsoluteError(_OfNumbers, Average):
    """`mean(|r|)` over all elements."""

    names: ClassVar[tuple[str, ...]] = ("mae", "mean_absolute_error")
    higher_is_better: ClassVar[bool | None] = False

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Average`."""
        predictions, targets = numbers(self.name, predictions, targets)
        return mean_of_sample(ops.abs(predictions - targets))


@dataclass(frozen=True)
class R2(_OfNumbers):
    """`1 - sum(r**2) / sum((t - mean(t))**2)`: the share of the targets' variance that is explained.

    The coefficient of determination. With several outputs per sample, the mean over outputs. Where
    all targets of an output are equal: 1 if they are met, else 0, as scikit-learn has it. NaN where a
    prediction is NaN.

    The second sum is taken as `sum(t**2) - sum(t)**2 / n` in float64, so targets whose spread is less than
    1e-7 of their mean count as equal.
    """

    higher_is_better: ClassVar[bool | None] = True

    def sums(self, predictions: Value, targets: Value, weights: Value | None = None) -> Value:
        """`sum(w)`, and for each output `sum(w * t), sum(w * t**2), sum(w * r**2)`."""
        predictions, targets = numbers(self.name, predictions, targets)
        batch, count = predictions.shape[0], product(predictions.shape[1:])
        if isinstance(count, Dim):
            raise ShapeError(
                f"r2: predictions {shape_text(predictions.shape)} need known sizes after the batch"
            )
        p, t = (ops.reshape(x, (batch, count)) for x in (predictions, targets))
        w = weights_like(self.name, weights, t)
        columns = [w * t, w * t * t, w * ops.square(p - t)]
        return ops.concat([ops.sum(w[:, :1], axis=0), *(ops.sum(c, axis=0) for c in columns)])

    def result(self, sums: Sums) -> float | NDArray[Any]:
        """See the class."""
        total = sums[0]
        if not total:
            return math.nan
        first, second, residual = sums[1:].reshape(3, -1)
        spread = second - first * first / total
        constant = spread <= ROUNDING * second
        met = np.where(np.isnan(residual), math.nan, residual <= ROUNDING * second)
        explained = 1 - residual / np.where(constant, 1, spread)
        return float(np.mean(np.where(constant, met, explained)))
