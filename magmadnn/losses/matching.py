"""Predictions and targets made to fit each other, or an error that says how they do not."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.errors import DTypeError, ShapeError
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import Node, handle_node, topological
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.signature import shape_text
from magmadnn.memory.dtypes import is_floating


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
