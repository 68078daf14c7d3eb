"""Weights of samples: given ones, and those of their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from magmadnn.errors import ArgumentError, DataError, DTypeError, ShapeError
from magmadnn.graph.op import Array
from magmadnn.graph.spec import BFLOAT16, is_floating
from magmadnn.memory.foreign import as_array


def sample_weights(
    what: str,
    targets: Sequence[Array],
    given: Any,
    class_weight: Mapping[int, float] | Literal["balanced"] | None,
) -> Array | None:
    """The weight of each sample from weights and classes' weights; None where there are none.

    Raises:
        DataError, ShapeError: for negative weights, or as many as there are not samples.
        ArgumentError: for a class that has no weight.
    """
    rows = len(targets[0])
    weights = None if given is None else checked_weights(f"{what}: sample_weight", given, rows)
    if class_weight is not None:
        if len(targets) > 1:
            raise ArgumentError(
                f"{what}: class_weight needs one output, got several; give losses the weights: "
                "loss={output: md.losses.CrossEntropy(class_weight=...)}, or use sample_weight"
            )
        by_class = _by_class(_class_numbers(as_array(targets[0])), class_weight)
        weights = by_class if weights is None else weights * by_class
    if weights is not None and not weights.any():
        raise DataError(f"{what}: the weights of all rows are 0, so there is nothing to measure")
    return weights


def checked_weights(what: str, given: Any, rows: int) -> Array:
    """A weight for each row, in float32.

    Raises:
        DTypeError: if they are something else than real numbers.
        ShapeError, DataError: if there is not one for each row, or one is negative or not finite.
    """
    given = as_array(given)
    if given.dtype.kind not in "biuf" and given.dtype != BFLOAT16:
        raise DTypeError(
            f"{what} must be a number for each row, got {given.dtype}; "
            "weights of classes are class_weight"
        )
    weights: Array = given.astype(np.float32, copy=False)
    if weights.shape != (rows,):
        raise ShapeError(f"{what} must have shape ({rows},), got {weights.shape}")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise DataError(f"{what} must be finite and not negative")
    return weights


def _by_class(numbers: Array, weights: Mapping[int, float] | Literal["balanced"]) -> Array:
    """The weight of each sample, from the number of its class."""
    classes, counts = np.unique(numbers, return_counts=True)
    if isinstance(weights, str) and weights == "balanced":
        by_number = dict(zip(classes.tolist(), len(numbers) / (len(classes) * counts), strict=True))
    elif isinstance(weights, Mapping):
        by_number = dict(weights)
    else:
        raise ArgumentError(
            f'fit: class_weight must be a dict {{class: weight}} or "balanced", got {weights!r}'
        )
    if missing := set(classes.tolist()) - set(by_number):
        raise ArgumentError(f"fit: class_weight has no weight for class {min(missing)}")
    for number, weight in by_number.items():
        if not (
            isinstance(weight, (int, float, np.number)) and np.isfinite(weight) and weight >= 0
        ):
            raise ArgumentError(
                f"fit: class_weight of class {number} must be finite and not negative, got {weight!r}"
            )
    table = np.array([by_number[number] for number in classes.tolist()], np.float32)
    return table[np.searchsorted(classes, numbers)]


def _class_numbers(labels: Array) -> Array:
    """The class of each sample: labels [rows] or [rows, 1], or a column for each class."""
    if is_floating(labels.dtype) and (labels != np.floor(labels)).any():
        raise DTypeError(
            "fit: class_weight needs class numbers in y, got fractions; see sample_weight"
        )
    if labels.ndim > 2 or (labels.ndim == 2 and labels.shape[1] > 1 and labels.max() > 1):
        raise ShapeError(
            f"fit: class_weight needs one class for each row of y, got shape {labels.shape}; give the loss "
            "the weights: md.losses.CrossEntropy(class_weight=...)"
        )
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = labels.argmax(-1)
    return labels.reshape(-1).astype(np.int64)
