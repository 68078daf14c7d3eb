"""The base of every loss, what outputs of a network are by its loss, and the weighted mean.

A loss is a frozen record of its settings, known by name, as metrics are. It compares predictions [batch, ...]
with targets, which are made to fit each other, and gives one number per sample; called, it gives their mean,
which is what a training step makes smaller.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np

from magmadnn import ops
from magmadnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from magmadnn.graph import scope
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import Node, handle_node, topological
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.own_names import check_name
from magmadnn.graph.signature import shape_text
from magmadnn.memory.dtypes import is_floating


class Named(ABC):
    """Base of `Loss` and `Metric`, which each say their `kind` and hold the classes that are `known`.

    A derived class is a frozen dataclass, known by `names` from its definition on. Names of magmadnn's own
    are refused.
    """

    kind: ClassVar[str]
    known: ClassVar[dict[str, type[Any]]]
    names: ClassVar[tuple[str, ...]] = ()  # the class's name in small letters where it gives none

    def __init_subclass__(cls) -> None:
        if not (cls.__name__.startswith("_") or inspect.isabstract(cls)):
            cls.names = cls.__dict__.get("names") or (snake_case(cls.__name__),)
            for name in cls.names:
                other = f'give yours another: names = ("my_{name}",) in the class'
                check_name(f"{cls.kind} {cls.__name__}", name, cls, cls.known, other)
            cls.known.update(dict.fromkeys(cls.names, cls))

    @property
    def name(self) -> str:
        """In errors, graphs, tables and histories."""
        return self.names[0]

    @classmethod
    def of_name(cls, name: str) -> Self:
        """The one called `name`, with its default settings.

        Raises:
            UnknownNameError: if there is none of that name.
            ArgumentError: if a setting has no default, so that the name is not enough.
        """
        if name not in cls.known:
            raise UnknownNameError.of(cls.kind, name, cls.known)
        found = cls.known[name]
        if needed := _needed(found):
            raise ArgumentError(
                f"{cls.kind} {name}: {', '.join(needed)} must be given; use {found.__name__}(...), "
                "not the name"
            )
        made: Self = found()
        return made


_without_default: WeakKeyDictionary[type[Any], list[str]] = WeakKeyDictionary()


def _needed(cls: type[Any]) -> list[str]:
    """The settings of a class that have no default."""
    found = _without_default.get(cls)
    if found is None:
        found = [f.name for f in fields(cls) if f.default is f.default_factory is MISSING]
        _without_default[cls] = found
    return found


def snake_case(name: str) -> str:
    """`MeanSquaredError` as `mean_squared_error`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


# --- predictions and targets that fit each other --------------------------------------------------


def with_shape(value: Any) -> Any:
    """`value`, as an array where it is a list or a number."""
    return value if hasattr(value, "shape") and hasattr(value, "dtype") else np.asarray(value)


def floating(name: str, predictions: Any) -> Any:
    """Predictions with a batch axis; half-precision ones in float32, where squares and sums fit.

    Raises:
        ShapeError: if they are a scalar.
        DTypeError: if they are no floating-point numbers.
    """
    predictions = with_shape(predictions)
    if not is_floating(predictions.dtype):
        raise DTypeError(
            f"{name}: predictions must be floating-point, got {predictions.dtype.name}; cast them"
        )
    if not predictions.shape:
        raise ShapeError(f"{name}: predictions need a batch axis, got a scalar")
    return ops.cast(predictions, "float32") if predictions.dtype.itemsize < 4 else predictions


def matched(
    name: str, predictions: Any, targets: Any, otherwise: str = "use cross_entropy"
) -> tuple[Any, Any]:
    """Both in the predictions' shape and dtype; see `same_shape` for what counts as equal.

    Args:
        name: of the loss.
        predictions: floating-point [batch, ...].
        targets: of the same shape.
        otherwise: the way out where targets look like class numbers for several outputs.

    Raises:
        ShapeError, DTypeError: if they do not fit.
    """
    predictions, targets = floating(name, predictions), with_shape(targets)
    try:
        targets = same_shape(name, "targets", targets, predictions, "predictions")
    except ShapeError as error:
        shape = tuple(predictions.shape)
        if tuple(targets.shape) not in (shape[:-1], (*shape[:-1], 1)):
            raise
        raise ShapeError(f"{error}; if they are class numbers, {otherwise}") from error
    return predictions, ops.cast(targets, predictions.dtype)


def same_shape(name: str, what: str, value: Any, model: Any, whose: str = "values") -> Any:
    """`value` in the shape of `model`.

    A last axis of size 1 that only one of them has is no difference: [batch] and [batch, 1] match, and
    nothing is ever broadcast to [batch, batch].

    Raises:
        ShapeError: if the shapes differ otherwise; names the axis.
    """
    value = with_shape(value)
    shape, expected = tuple(value.shape), tuple(model.shape)
    if shape == expected:
        return value
    if (*shape, 1) == expected or shape == (*expected, 1):
        return ops.reshape(value, expected)
    where = f"the number of axes is {len(shape)} but {len(expected)} in {whose}"
    if len(shape) == len(expected):
        axis = next(i for i, (a, b) in enumerate(zip(shape, expected, strict=True)) if a != b)
        where = f"axis {axis} is {shape[axis]} but {expected[axis]} in {whose}"
    raise ShapeError(
        f"{name}: {what} must have the shape {shape_text(expected)} of {whose}, "
        f"got {shape_text(shape)}: {where}"
    )


def mean_of_sample(values: Any) -> Any:
    """Values [batch, ...] -> [batch]: the mean over all axes but the first."""
    axes = tuple(range(1, len(values.shape)))
    return ops.mean(values, axis=axes) if axes else values


def refuse_pairs(what: str, result: Any, *operands: Any) -> None:
    """Look whether a formula pairs every sample with every other one only because of how shapes line up.

    `predictions - targets` of [batch, 1] and [batch] is [batch, batch]. Where pairs are meant, both sides
    have the same number of axes, as in `p - ops.transpose(p)`.

    Args:
        what: computes it, for the error.
        result: an Operation; of a value nothing is known any more.
        operands: that it was computed from.

    Raises:
        ShapeError: naming the op and its operands' shapes.
    """
    root = handle_node(result)
    given = {node for operand in operands if (node := handle_node(operand)) is not None}
    batches = {node.shape[0] for node in given if node.shape and isinstance(node.shape[0], Dim)}
    if root is None or not batches:
        return
    for node in topological([root], lambda n: () if n in given else n.inputs):
        if isinstance(node.op, Op) and node.op.kind is OpKind.POINTWISE:
            if any(_lines_up_differently(node, batch) for batch in batches):
                shapes = " and ".join(shape_text(i.shape) for i in node.inputs)
                raise ShapeError(
                    f"{what}: {node.op.name} of {shapes} pairs each sample with all others; give them "
                    "the same axes: predictions[:, 0], or targets[:, None]"
                )


def _lines_up_differently(node: Node, batch: Dim) -> bool:
    """Whether operands of different numbers of axes have the batch at different places from the end."""
    places = {
        (x.ndim, axis - x.ndim)
        for x in node.inputs
        for axis, size in enumerate(x.shape)
        if size == batch
    }
    return len({place for _, place in places}) > 1 and len({axes for axes, _ in places}) > 1


# --- losses ---------------------------------------------------------------------------------------


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
