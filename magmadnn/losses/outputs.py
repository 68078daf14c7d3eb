"""What the outputs of a network are: logits of classes or of labels, margins, probabilities, numbers.

A loss says it (`Loss.outputs`); metrics, `predict_probability` and `predict_class` ask here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from magmadnn import ops
from magmadnn.errors import ShapeError, UnknownNameError
from magmadnn.graph.signature import shape_text

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
