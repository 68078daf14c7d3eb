"""The base of metrics that compare classes: what predictions are, and what a loss says of that."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Dim
from magmadnn.losses import Loss
from magmadnn.losses.loss import OUTPUTS, OutputKind, Outputs, outputs_of, with_shape

from .metric import Metric, Value
from .operands import class_numbers, is_labels


@dataclass(frozen=True)
class Classified(Metric):
    """A metric of classes or labels.

    Attributes:
        outputs: what predictions are, as `magmadnn.losses.Loss` lists it. Left out, a model's loss says it;
            without a model, one output [batch] or [batch, 1] is a label, and several are classes.
    """

    outputs: OutputKind | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.outputs is not None and outputs_of(self.name, self.outputs).are is None:
            raise ArgumentError(
                f"{self.name}: outputs={self.outputs!r} have no classes; give one of {_with_classes()}"
            )

    @property
    def kind_of_outputs(self) -> Outputs | None:
        """What predictions are, where that is said."""
        return None if self.outputs is None else OUTPUTS[self.outputs]

    def compared(
        self, predictions: Value, targets: Value, threshold: float | None = None
    ) -> tuple[Value, Value, Any]:
        """Predicted and true class numbers, and how many classes there are; see `class_numbers`."""
        return class_numbers(self.name, predictions, targets, threshold, self.kind_of_outputs)

    def labels(self, predictions: Value) -> int:
        """How many labels a place has, along the last axis; 1 for [batch], and for classes.

        Raises:
            ShapeError: if it is not known.
        """
        shape = tuple(with_shape(predictions).shape)
        if not is_labels(self.kind_of_outputs, shape) or len(shape) < 2:
            return 1
        if isinstance(shape[-1], Dim):
            raise ShapeError(f"{self.name}: the number of labels must be known, got {shape[-1]}")
        return int(shape[-1])

    def of_loss(self, loss: Loss) -> Self:
        """See `Metric`.

        Raises:
            ArgumentError: if such predictions have no classes, or the loss does not say what they are.
        """
        if self.outputs is not None:
            return self
        own = f"md.metrics.{type(self).__name__}(outputs=...)"
        if loss.outputs is None:
            raise ArgumentError(
                f"{self.name}: the loss {loss.name} does not say what predictions are; say it: {own}, or "
                f"{_where(loss)}, with one of {_with_classes()}"
            )
        if outputs_of(f"loss {loss.name}", loss.outputs).are is None:
            raise ArgumentError(
                f"{self.name}: needs classes, but the loss {loss.name} is for {OUTPUTS[loss.outputs].words}; "
                'use "mae", "rmse" or "r2", or a loss for classes such as "cross_entropy"; if predictions '
                f"are scores of classes all the same, say of which kind: {own}"
            )
        return replace(self, outputs=loss.outputs)


def check_threshold(name: str, value: object) -> None:
    """Look whether a threshold is None or a finite number.

    Raises:
        ArgumentError: if not.
    """
    number = isinstance(value, (int, float, np.number)) and math.isfinite(value)
    if value is not None and not number:
        raise ArgumentError(f"{name}: threshold must be a finite number, got {value!r}")


def _with_classes() -> str:
    return ", ".join(kind for kind, about in OUTPUTS.items() if about.are)


def _where(loss: Loss) -> str:
    """Where a loss of one's own says what predictions are."""
    if type(loss).__name__ == "FunctionLoss":
        return f"loss=md.losses.FunctionLoss({loss.name}, outputs=...)"
    return f'outputs = "..." in the class {type(loss).__name__}'
