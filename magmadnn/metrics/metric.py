"""The base of every metric.

A metric is computed in two steps, so that any split of the data into batches gives the same value: the
graph adds up a few sums over the batch at hand, in float64; the sums of all batches are added; and
`result` makes the value from the total.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from magmadnn import ops
from magmadnn.graph import scope
from magmadnn.losses import Loss
from magmadnn.losses.loss import Named

from .operands import weights_like

Value = Any  # an Operation; Tensors and arrays are computed at once
Sums = NDArray[np.float64]

ROUNDING = 64 * np.finfo(np.float64).eps  # what a sum may be off by, relative to its terms


@dataclass(frozen=True)
class Metric(Named):
    """Derive from it, as a frozen dataclass, for a metric of your own; from then on it is known by name.

    The name must be another than those of magmadnn's metrics; `names` may say it.

    Fields hold numbers, text or tuples of them, so that a saved model can hold them.

    Attributes:
        higher_is_better: whether a higher value is a better one, for early stopping and the like; None where
            that cannot be said.
    """

    higher_is_better: ClassVar[bool | None] = None
    kind = "metric"
    known: ClassVar[dict[str, type[Metric]]] = {}

    def of_loss(self, loss: Loss) -> Metric:
        """The metric for predictions that are what this loss says; here itself, whatever they are.

        Raises:
            ArgumentError: if there is none for such predictions; says what to use.
        """
        return self

    @abstractmethod
    def sums(self, predictions: Value, targets: Value, weights: Value | None = None) -> Value:
        """What a batch adds to the total: float64, one axis.

        Args:
            predictions: what the network gives, [batch, ...].
            targets: what each metric says.
            weights: [batch], one per sample; 1 where they are left out.

        Raises:
            ShapeError, DTypeError: if the operands do not fit.
            DataError: if arrays hold what is no class, no label or no weight.
        """

    @abstractmethod
    def result(self, sums: Sums) -> float | NDArray[Any]:
        """The value for the total of `sums` over all batches; NaN where there was no sample."""

    def __call__(self, predictions: Any, targets: Any, weights: Any = None) -> float | NDArray[Any]:
        """The value for whole arrays; errors as for `sums`."""
        return self.result(np.asarray(self.sums(predictions, targets, weights), np.float64))


@dataclass(frozen=True)
class Average(Metric):
    """The mean over samples of a number that each has. Derive from it and say `per_sample`."""

    @abstractmethod
    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """One number per sample: [batch]."""

    def sums(self, predictions: Value, targets: Value, weights: Value | None = None) -> Value:
        """`sum(w * value), sum(w)`."""
        with scope(self.name):
            values = ops.cast(self.per_sample(predictions, targets), "float64")
            weights = weights_like(self.name, weights, values)
            return ops.stack([ops.sum(weights * values), ops.sum(weights)])

    def result(self, sums: Sums) -> float | NDArray[Any]:
        """The mean."""
        return ratio(sums[0], sums[1], nothing=np.nan)


def ratio(above: Any, below: Any, *, nothing: float) -> float:
    """above / below, or `nothing` where below is 0."""
    return float(above) / float(below) if below else nothing


def by_name(name: str) -> Metric:
    """The metric called `name`, with its default settings.

    Raises:
        UnknownNameError: if there is none of that name.
        ArgumentError: if a setting has no default, so that the name is not enough.
    """
    return Metric.of_name(name)
