"""Losses for numbers: predictions and targets of one shape, r = prediction - target.

Each sample's loss is the mean over all axes but the first, so the loss of a batch is the mean over all
its elements, as in PyTorch and Keras.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from magmadnn import ops
from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError

from .loss import Loss, Value, matched, mean_of_sample


def _residual(loss: Loss, predictions: Value, targets: Value) -> Value:
    predictions, targets = matched(loss.name, predictions, targets)
    return predictions - targets


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """`mean(r**2)`."""

    outputs = "numbers"
    names: ClassVar[tuple[str, ...]] = ("mean_squared_error", "mse")

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Loss`."""
        return mean_of_sample(ops.square(_residual(self, predictions, targets)))


@dataclass(frozen=True)
class MeanAbsoluteError(Loss):
    """`mean(|r|)`; its gradient at r = 0 is 0."""

    outputs = "numbers"
    names: ClassVar[tuple[str, ...]] = ("mean_absolute_error", "mae")

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Loss`."""
        return mean_of_sample(ops.abs(_residual(self, predictions, targets)))


@dataclass(frozen=True)
class Huber(Loss):
    """The mean of `r**2 / 2` where `|r| <= delta`, of `delta * (|r| - delta / 2)` elsewhere.

    Huber, "Robust estimation of a location parameter", Ann. Math. Statist. 35 (1964).

    Attributes:
        delta: where the parabola goes over into lines, in units of the targets; above 0.
    """

    outputs = "numbers"
    delta: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.delta < float("inf"):
            raise ArgumentError(f"huber: delta must be above 0 and finite, got {self.delta}")

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Loss`."""
        distance = ops.abs(_residual(self, predictions, targets))
        inner = ops.minimum(distance, self.delta)
        return mean_of_sample(inner * (distance - 0.5 * inner))


@checked_call
def mean_squared_error(predictions: Any, targets: Any, weights: Any = None) -> Any:
    """`mean((predictions - targets)**2)`; also called `mse`.

    Args:
        predictions: [batch, ...].
        targets: of the same shape; [batch] matches [batch, 1].
        weights: [batch], one per sample; 1 where they are left out.

    Raises:
        ShapeError, DTypeError: if they do not fit.
    """
    return MeanSquaredError()(predictions, targets, weights)


@checked_call
def mean_absolute_error(predictions: Any, targets: Any, weights: Any = None) -> Any:
    """`mean(|predictions - targets|)`; also called `mae`.

    Args:
        predictions: [batch, ...].
        targets: of the same shape; [batch] matches [batch, 1].
        weights: [batch], one per sample; 1 where they are left out.

    Raises:
        ShapeError, DTypeError: if they do not fit.
    """
    return MeanAbsoluteError()(predictions, targets, weights)


@checked_call
def huber(predictions: Any, targets: Any, weights: Any = None, *, delta: float = 1.0) -> Any:
    """Squared errors up to delta, absolute ones beyond; formula and source: `Huber`.

    Args:
        predictions: [batch, ...].
        targets: of the same shape; [batch] matches [batch, 1].
        weights: [batch], one per sample; 1 where they are left out.
        delta: where a square becomes a line, above 0.

    Raises:
        ShapeError, DTypeError, ArgumentError: if they do not fit.
    """
    return Huber(delta)(predictions, targets, weights)


mse = mean_squared_error
mae = mean_absolute_error
