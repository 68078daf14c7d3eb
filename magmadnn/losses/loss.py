"""The base of every loss, what outputs of a network are by its loss, and the weighted mean.

A loss is a frozen record of its settings. It compares predictions [batch, ...] with targets and gives one
number per sample; called, it gives their mean, which is what a training step makes smaller.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from magmadnn import ops
from magmadnn.errors import ShapeError, UnknownNameError
from magmadnn.graph import scope
from magmadnn.graph.signature import shape_text

from .matching import refuse_pairs, same_shape
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


# --- what outputs are -----------------------------------------------------------------------------


OutputKind = Literal[
    "classes", "labels", "margins", "class_probabilities", "label_probabilities", "numbers"
]


@dataclass(frozen=True)
class Outputs:
    """One kind of outputs.

    Attributes:
        words: what they are, for errors.
        activation: what makes probabilities of them; None where there are none.
        are: whether one of k "classes" holds, or each of some "labels" may; None for numbers.
        threshold: a label holds above it.
        least: a target says that a label holds above it.
    """

    words: str
    activation: Callable[[Any], Any] | None = None
    are: Literal["classes", "labels"] | None = None
    threshold: float = 0.0
    least: float = 0.5


def _as_they_are(predictions: Any) -> Any:
    return predictions


OUTPUTS: dict[str, Outputs] = {
    "classes": Outputs("logits of classes", ops.softmax, "classes"),
    "labels": Outputs("logits of labels", ops.sigmoid, "labels"),
    "margins": Outputs("margins", None, "labels", least=0.0),  # targets may be -1 and 1
    "class_probabilities": Outputs("probabilities of classes", _as_they_are, "classes"),
    "label_probabilities": Outputs(
        "probabilities of labels", _as_they_are, "labels", threshold=0.5
    ),
    "numbers": Outputs("numbers"),
}


def outputs_of(where: str, kind: str) -> Outputs:
    """The kind of that name.

    Raises:
        UnknownNameError: if there is none.
    """
    if kind not in OUTPUTS:
        raise UnknownNameError.of(f"{where}: kind of outputs", kind, OUTPUTS)
    return OUTPUTS[kind]


def check_width(where: str, outputs: Outputs, shape: tuple[Any, ...]) -> None:
    """Look whether outputs of a shape can be classes.

    Raises:
        ShapeError: if they are to be, and have no axis of at least 2 classes.
    """
    if outputs.are == "classes" and (len(shape) < 2 or shape[-1] == 1):
        raise ShapeError(
            f"{where}: predictions must be (batch, ..., classes) with at least 2 classes, got "
            f"{shape_text(shape)}; for one output use binary_cross_entropy"
        )
