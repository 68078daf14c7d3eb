"""What users may write for a loss: a name, a record, one of our functions, or a function of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magmadnn.errors import ArgumentError, GraphError
from magmadnn.graph import scope
from magmadnn.graph.node import Node
from magmadnn.graph.signature import shape_text
from magmadnn.tensor import Operation

from .classification import (
    BinaryCrossEntropy,
    CrossEntropy,
    Hinge,
    binary_cross_entropy,
    cross_entropy,
    hinge,
)
from .loss import Loss, OutputKind, Value, by_name, mean_of_sample, outputs_of, refuse_pairs
from .regression import (
    Huber,
    MeanAbsoluteError,
    MeanSquaredError,
    huber,
    mean_absolute_error,
    mean_squared_error,
)

LossLike = str | Loss | type[Loss] | Callable[[Any, Any], Any]

LOSS_FUNCTIONS: tuple[tuple[Callable[..., Any], type[Loss]], ...] = (
    (cross_entropy, CrossEntropy),
    (binary_cross_entropy, BinaryCrossEntropy),
    (hinge, Hinge),
    (mean_squared_error, MeanSquaredError),
    (mean_absolute_error, MeanAbsoluteError),
    (huber, Huber),
)


@dataclass(frozen=True)
class FunctionLoss(Loss):
    """A loss that a plain function computes; `Model` makes it of a function that is given as a loss.

    Attributes:
        function: (predictions, targets) -> [batch, ...], whose other axes are averaged; or a scalar, which
            counts as often as the batch has samples.
        outputs: what predictions are, as `Loss` lists it; None: it is not said.
    """

    function: Callable[[Any, Any], Any]
    outputs: OutputKind | None = None

    def __post_init__(self) -> None:
        if self.outputs is not None:
            outputs_of(f"loss {self.name}", self.outputs)

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def _call(self, predictions: Value, targets: Value) -> Value:
        result = self.function(predictions, targets)
        if not isinstance(result, (Operation, Node)):
            raise GraphError(
                f"loss {self.name}: expected an Operation, got {type(result).__name__}; "
                "compute with md.ops and the operators"
            )
        return result

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Loss`."""
        result = self._call(predictions, targets)
        batch = predictions.shape[0]
        if not result.shape or result.shape[0] != batch:
            raise ArgumentError(
                f"loss {self.name}: gives shape {shape_text(result.shape)}, so samples cannot be weighted "
                f"or listed: return one value per sample, shape ({batch},)"
            )
        return mean_of_sample(result)

    def __call__(self, predictions: Value, targets: Value, weights: Value | None = None) -> Value:
        """See `Loss`; a scalar stays as it is."""
        if weights is None:
            with scope(self.name):
                result = self._call(predictions, targets)
            if not result.shape:
                refuse_pairs(self.name, result, predictions, targets)
                return result
        return super().__call__(predictions, targets, weights)


def _own_name(value: Any) -> str:
    return str(value.__name__ if isinstance(value, type) else type(value).__name__)


def as_loss(value: LossLike) -> Loss:
    """The loss that `value` stands for.

    Args:
        value: a name; a loss, or its class for the defaults; one of the functions of `md.losses`; or a
            function (predictions, targets) of your own that gives a scalar, or one value per sample.

    Raises:
        UnknownNameError: for a name that is not known.
        ArgumentError: for anything else, a metric for instance.
    """
    if isinstance(value, Loss):
        return value
    if isinstance(value, str):
        return by_name(value)
    if isinstance(value, type) and issubclass(value, Loss):
        return value()
    if hasattr(value, "sums") and hasattr(value, "result"):
        raise ArgumentError(
            f"loss: {_own_name(value)} is a metric, which is not trained on: give a loss, such as "
            "md.losses.MeanSquaredError()"
        )
    if not isinstance(value, type) and callable(value):
        ours = next((cls for function, cls in LOSS_FUNCTIONS if function is value), None)
        return ours() if ours else FunctionLoss(value)
    raise ArgumentError(
        f"loss: expected a name, a loss such as md.losses.Huber(0.5), or a function, got {value!r}"
    )
