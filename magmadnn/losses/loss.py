"""The base of every loss, and the weighted mean.

A loss is a frozen record of its settings. It compares predictions [batch, ...] with targets and gives one
number per sample; called, it gives their mean, which is what a training step makes smaller.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from magmadnn import ops
from magmadnn.graph import scope

from .matching import refuse_pairs, same_shape
from .outputs import OutputKind
from .registry import Named

Value = Any  # an Operation; Tensors and arrays are computed at once


@dataclass(frozen=True)
class Loss(Named):
    """Derive from it, as a frozen dataclass, for a loss of your own; from then on it is known by name.

    The name must be another than those of magmadnn's losses; `names` may say it.

    Fields hold numbers, text or tuples of them, so that a saved model can hold them.

    Attributes:
        outputs: what predictions are; metrics, `predict_class` and `predict_probability` go by it. Say it
            in the class, `outputs = "classes"`: logits [..., k], of which one class is true (softmax, the
            largest); "labels": logits, each true or not (sigmoid, above 0); "margins": likewise, but
            without probabilities; "class_probabilities"; "label_probabilities" (above 0.5); "numbers":
            neither. None: it is not said, and whoever needs it asks for it.
    """

    higher_is_better: ClassVar[bool | None] = False  # where it serves as a metric
    kind = "loss"
    known: ClassVar[dict[str, type[Loss]]] = {}

    @property
    def outputs(self) -> OutputKind | None:
        """See the class."""
        return None

    @abstractmethod
    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """One number per sample: [batch]."""

    def divisor(self, predictions: Value, targets: Value) -> Value | None:
        """What each sample adds to the number that the sum is divided by, [batch]; None for 1."""
        return None

    def __call__(self, predictions: Value, targets: Value, weights: Value | None = None) -> Value:
        """`sum(w * per_sample) / sum(w * divisor)`: a scalar.

        Args:
            predictions: floating-point [batch, ...].
            targets: what each loss says.
            weights: [batch], one per sample; 1 where they are left out.

        Raises:
            ShapeError, DTypeError: if the operands do not fit.
        """
        with scope(self.name):
            values = self.per_sample(predictions, targets)
            refuse_pairs(self.name, values, predictions, targets)
            return weighted_mean(values, weights, self.divisor(predictions, targets))


def weighted_mean(
    values: Value, weights: Value | None = None, divisor: Value | None = None
) -> Value:
    """`sum(w * values) / sum(w * divisor)`, and 0 where that divides by 0.

    So only the ratios of weights count, as in `numpy.average` and in PyTorch's class weights; Keras
    divides by the number of samples instead.

    Args:
        values: [batch].
        weights: [batch]; 1 where they are left out.
        divisor: [batch]; 1 where it is left out.

    Raises:
        ShapeError: if a shape is another than that of the values.
    """
    shares = [
        ops.cast(same_shape("weighted mean", what, part, values), values.dtype)
        for what, part in (("weights", weights), ("divisor", divisor))
        if part is not None
    ]
    if not shares:
        return ops.mean(values)
    total = ops.sum(shares[0] * shares[-1] if len(shares) == 2 else shares[0])
    above = values if weights is None else shares[0] * values
    return ops.sum(above) / ops.where(ops.equal(total, 0), 1, total)


def by_name(name: str) -> Loss:
    """The loss called `name`, with its default settings.

    Raises:
        UnknownNameError: if there is none of that name.
        ArgumentError: if a setting has no default, so that the name is not enough.
    """
    return Loss.of_name(name)
