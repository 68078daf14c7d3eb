"""What metrics compare: numbers of one shape, or class numbers; and the weights of samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.data.validation import first_not_shares, place
from magmadnn.errors import ArgumentError, DataError, DTypeError, ShapeError, shown
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import node_of
from magmadnn.graph.signature import shape_text
from magmadnn.losses.loss import Outputs, check_width, with_shape
from magmadnn.memory.dtypes import is_floating
from magmadnn.tensor import Tensor


def numbers(name: str, predictions: Any, targets: Any) -> tuple[Any, Any]:
    """Predictions and targets in float64 and in the predictions' shape; [batch] matches [batch, 1].

    Raises:
        ShapeError: if the shapes differ otherwise.
    """
    predictions, targets = with_shape(predictions), with_shape(targets)
    shape = tuple(predictions.shape)
    if not shape:
        raise ShapeError(f"{name}: predictions need a batch axis, got a scalar")
    targets = _reshaped(name, "targets", targets, shape)
    return ops.cast(predictions, "float64"), ops.cast(targets, "float64")


def _reshaped(name: str, what: str, value: Any, shape: tuple[Any, ...]) -> Any:
    given = tuple(value.shape)
    if given == shape:
        return value
    if given in ((*shape, 1), shape[:-1] if shape[-1] == 1 else None):
        return ops.reshape(value, shape)
    raise ShapeError(f"{name}: {what} must have shape {shape_text(shape)}, got {shape_text(given)}")


def class_numbers(
    name: str,
    predictions: Any,
    targets: Any,
    threshold: float | None = None,
    outputs: Outputs | None = None,
) -> tuple[Any, Any, Any]:
    """Predicted and true class numbers of one shape, and how many classes there are.

    Args:
        name: of the metric.
        predictions: of classes, [batch, ..., k]: the largest one is the class. Of labels, [batch, ...]: the
            class is 1 where it is above the threshold.
        targets: of classes, class numbers, [batch, ...] or [batch, ..., 1], or one-hot, [batch, ..., k]. Of
            labels, 0 and 1, or -1 and 1 for margins, in the predictions' shape.
        threshold: of labels.
        outputs: what predictions are; None: one output, [batch] or [batch, 1], is a label whose targets may
            be 0 and 1 or -1 and 1; several are classes.

    Raises:
        ShapeError, DTypeError, ArgumentError: if they do not fit.
        DataError: if targets that are known hold what is no class or label.
    """
    predictions, targets = with_shape(predictions), with_shape(targets)
    shape = tuple(predictions.shape)
    if not shape:
        raise ShapeError(f"{name}: predictions need a batch axis, got a scalar")
    if is_labels(outputs, shape):
        above, least = (0.0, 0.0) if outputs is None else (outputs.threshold, outputs.least)
        true = _reshaped(name, "targets of labels", targets, shape)
        _check_bits(name, true, outputs)
        true = ops.cast(true, "float64") > least
        predicted = predictions > (above if threshold is None else threshold)
        return ops.cast(predicted, "int64"), ops.cast(true, "int64"), 2
    if threshold is not None:
        raise ArgumentError(
            f"{name}: a threshold is for labels; of classes, as in predictions {shape_text(shape)}, the "
            "largest one is taken: leave it out"
        )
    if outputs is not None:
        check_width(name, outputs, shape)
    predicted, given = ops.argmax(predictions, axis=-1), tuple(targets.shape)
    if given == shape:
        _check_shares(name, targets)
        return predicted, ops.argmax(targets, axis=-1), shape[-1]
    if given not in (shape[:-1], (*shape[:-1], 1)):
        raise ShapeError(
            f"{name}: targets must be class numbers {shape_text(shape[:-1])} or one-hot "
            f"{shape_text(shape)} for predictions {shape_text(shape)}, got {shape_text(given)}"
        )
    if is_floating(targets.dtype):
        raise DTypeError(
            f"{name}: targets {shape_text(given)} are class numbers and must be integers, "
            f"got {targets.dtype.name}; cast them"
        )
    _check_classes(name, targets, shape[-1])
    return predicted, ops.cast(ops.reshape(targets, shape[:-1]), "int64"), shape[-1]


def _known(value: Any) -> Any:
    """The values that are to be looked at, on the host; None of what is computed later."""
    if isinstance(value, Tensor):
        return value.read()
    return value if isinstance(value, np.ndarray) else None


def _check_shares(name: str, targets: Any) -> None:
    """Look whether targets for classes, where they are known, say of each place which one is true.

    Raises:
        DataError: if several are, or none.
    """
    targets = _known(targets)
    if targets is not None and (where := first_not_shares(targets)) is not None:
        raise DataError(
            f"{name}: {place(where)} of the targets is {shown(targets[where].tolist(), 200)}, expected one "
            f'class of {targets.shape[-1]}; for labels, each true or not, say outputs="labels"'
        )


def _check_classes(name: str, targets: Any, classes: Any) -> None:
    """Look whether class numbers, where they are known, are those of classes.

    Raises:
        DataError: if one is not.
    """
    targets = _known(targets)
    if targets is not None and isinstance(classes, int):
        outside = (targets < 0) | (targets >= classes)
        if outside.any():
            where = tuple(np.argwhere(outside)[0].tolist())
            raise DataError(
                f"{name}: {place(where)} of the targets has the class {targets[where]}, outside the classes "
                f"0..{classes - 1} of the predictions"
            )


def _check_bits(name: str, targets: Any, outputs: Outputs | None) -> None:
    """Look whether targets of labels, where they are known, say whether each is true.

    Raises:
        DataError: if one does not.
    """
    targets = _known(targets)
    if targets is None or targets.dtype == np.bool_:
        return
    if outputs is not None and outputs.least > 0:  # probabilities, of which the likelier counts
        words, right = "0 and 1, or probabilities", (targets >= 0) & (targets <= 1)
    else:
        words, right = "0 and 1, or -1 and 1", (targets == 1) | (targets == 0)
        if (targets == -1).any():
            right = np.abs(targets) == 1
    if not right.all():
        where = tuple(np.argwhere(~right)[0].tolist())
        raise DataError(
            f"{name}: {place(where)} of the targets is {targets[where]}, expected {words}, of labels, each "
            "true or not; of classes, predictions have an axis of them"
        )


def is_labels(outputs: Outputs | None, shape: tuple[Any, ...]) -> bool:
    """Whether predictions of a shape are labels, each true or not; not said, one output is."""
    if outputs is not None:
        return outputs.are == "labels"
    return len(shape) < 2 or shape[-1] == 1


def weights_like(name: str, weights: Any | None, values: Any) -> Any:
    """The weight of each of `values` [batch, ...] in float64: that of its sample.

    Raises:
        ShapeError: if there is not one weight per sample.
        DataError: if one that is known is negative or not finite.
    """
    shape = tuple(values.shape)
    if weights is None:
        return ones(shape)
    weights = ops.cast(_reshaped(name, "weights", with_shape(weights), shape[:1]), "float64")
    seen = _known(weights)
    if seen is not None and not ((seen >= 0) & (seen < np.inf)).all():
        raise DataError(f"{name}: weights must be finite and not negative")
    column = ops.reshape(weights, (shape[0], *(1 for _ in shape[1:])))
    return ops.broadcast_to(column, shape)


def ones(shape: tuple[Any, ...]) -> Any:
    """1 everywhere, in float64; sizes may be symbolic."""
    if any(isinstance(size, Dim) for size in shape):
        return ops.broadcast_to(node_of(np.ones(())), shape)
    return np.ones(shape)
