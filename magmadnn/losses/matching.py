"""Predictions and targets made to fit each other, or an error that says how they do not."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.errors import DTypeError, ShapeError
from magmadnn.graph.signature import shape_text
from magmadnn.graph.spec import is_floating


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


def matched(name: str, predictions: Any, targets: Any) -> tuple[Any, Any]:
    """Both in the predictions' shape and dtype; see `same_shape` for what counts as equal.

    Raises:
        ShapeError, DTypeError: if they do not fit.
    """
    predictions = floating(name, predictions)
    targets = same_shape(name, "targets", targets, predictions, "predictions")
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
