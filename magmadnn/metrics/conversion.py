"""What users may write for a metric: a name, a record, or a function of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magmadnn import ops
from magmadnn.errors import ArgumentError, GraphError
from magmadnn.graph import scope
from magmadnn.graph.node import Node
from magmadnn.graph.signature import shape_text
from magmadnn.losses.loss import Loss, mean_of_sample
from magmadnn.tensor import Operation

from .metric import Average, Metric, Value, by_name
from .operands import ones

MetricLike = str | Metric | type[Metric] | type[Loss] | Callable[[Any, Any], Any]


@dataclass(frozen=True)
class _FunctionMetric(Average):
    """The mean of what a plain function gives.

    Attributes:
        function: (predictions, targets) -> [batch, ...], whose other axes are averaged; or a scalar, which
            counts as often as the batch has samples.
    """

    function: Callable[[Any, Any], Any]

    def __post_init__(self) -> None:
        rises = getattr(self.function, "higher_is_better", None)  # losses say so, functions may
        object.__setattr__(self, "higher_is_better", rises)

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Average`."""
        values = self._values(predictions, targets)
        if not values.shape or values.shape[0] != predictions.shape[0]:
            raise ArgumentError(
                f"metric {self.name}: gives shape {shape_text(values.shape)}, so samples cannot be "
                f"weighted: return one value per sample, shape ({predictions.shape[0]},)"
            )
        return mean_of_sample(values)

    def _values(self, predictions: Value, targets: Value) -> Value:
        values = self.function(predictions, targets)
        if not isinstance(values, (Operation, Node)) and not hasattr(values, "shape"):
            raise GraphError(
                f"metric {self.name}: expected an Operation, got {type(values).__name__}; "
                "compute with md.ops and the operators"
            )
        return values

    def sums(self, predictions: Value, targets: Value, weights: Value | None = None) -> Value:
        """See `Average`; a scalar times the number of samples."""
        with scope(self.name):
            if weights is None and not (value := self._values(predictions, targets)).shape:
                count = ops.sum(ones((predictions.shape[0],)))
                return ops.stack([ops.cast(value, "float64") * count, count])
        return super().sums(predictions, targets, weights)


def as_metric(value: MetricLike) -> Metric:
    """The metric that `value` stands for.

    Args:
        value: a name; a metric, or its class for the defaults; a loss, likewise; or a function (predictions,
            targets) of your own that gives one value per sample, or a scalar. The metric is their mean over
            samples.

    Raises:
        UnknownNameError: for a name that is not known.
        ArgumentError: for anything else.
    """
    if isinstance(value, Metric):
        return value
    if isinstance(value, str):
        return by_name(value)
    if isinstance(value, type) and issubclass(value, Metric):
        return value()
    if isinstance(value, type) and issubclass(value, Loss):
        return _FunctionMetric(value())
    if not isinstance(value, type) and callable(value):
        return _FunctionMetric(value)
    raise ArgumentError(
        f"metric: expected a name, a metric such as md.metrics.TopK(3), or a function, got {value!r}"
    )
