"""Weights of samples: given ones, and those of their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from magmadnn.errors import ArgumentError, DataError, DTypeError, ShapeError, UnknownNameError
from magmadnn.graph.op import Array
from magmadnn.memory.dtypes import BFLOAT16, is_floating, refuse_masked
from magmadnn.memory.foreign import as_array


def sample_weights(
    what: str,
    targets: Sequence[Array],
    given: Any,
    class_weight: Mapping[int, float] | Literal["balanced"] | None,
    outputs: Sequence[str] = (),
) -> Array | None:
    """The weight of each sample from weights and classes' weights; None where there are none.

    Args:
        what: how messages begin.
        targets: one array for each output.
        given: as `weights_for` takes it, or None.
        class_weight: a weight for each class.
        outputs: their names.

    Raises:
        DataError, ShapeError: for negative weights, for as many as there are not samples, and for rows of
            several classes that shall have weights by class.
        ArgumentError: for a class that has no weight.
        UnknownNameError: for the name of an output that is not known.
    """
    rows = len(targets[0])
    name = f"{what}: sample_weight"
    weights = None if given is None else weights_for(name, given, rows, outputs)
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
    if weights is not None and weights.ndim > 1 and not (some := weights.any(axis=0)).all():
        raise DataError(
            f"{what}: the weights of all rows are 0 for the output {outputs[int(some.argmin())]!r}; "
            "loss_weights of the model leave an output out"
        )
    return weights


def weights_for(what: str, given: Any, rows: int, outputs: Sequence[str]) -> Array:
    """Weights of rows, float32: [rows]; or, for several outputs with weights of their own, [rows, outputs].

    Args:
        what: how messages call them.
        given: an array for all outputs; a dict of such by the names of outputs, where 1 counts for those that
            are left out; or, for several outputs, a list of them in order.
        rows: that there are.
        outputs: their names.

    Raises:
        UnknownNameError: for the name of an output that is not known.
        ArgumentError: for a list of another length, or an empty dict.
        DTypeError, ShapeError, DataError: as `checked_weights`.
    """
    if isinstance(given, (list, tuple)) and len(outputs) > 1:
        if not given or any(np.ndim(part) == 0 for part in given):
            return checked_weights(what, given, rows)
        if len(given) != len(outputs):
            raise ArgumentError(
                f"{what} has {len(given)} arrays for {len(outputs)} outputs; give one for each of "
                f"{', '.join(outputs)}, or a dict by their names"
            )
        given = dict(zip(outputs, given, strict=True))
    if not isinstance(given, Mapping):
        return checked_weights(what, given, rows)
    if not given:
        raise ArgumentError(f"{what} is an empty dict; give weights for an output, or leave it out")
    for name in given:
        if name not in outputs:
            raise UnknownNameError.of(f"{what}: output", name, outputs)
    ones = np.ones(rows, np.float32)
    columns = [
        checked_weights(f"{what}[{name!r}]", given[name], rows) if name in given else ones
        for name in outputs
    ]
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def checked_weights(what: str, given: Any, rows: int) -> Array:
    """A weight for each row, in float32.

    Raises:
        DTypeError: if they are something else than real numbers.
        ShapeError, DataError: if there is not one for each row, or one is negative, not finite or masked.
    """
    given = as_array(given)
    refuse_masked(what, given)
    if given.dtype.kind not in "biuf" and given.dtype != BFLOAT16:
        raise DTypeError(
            f"{what} must be a number for each row, got {given.dtype}; "
            "weights of classes are class_weight"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
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
        ones = (labels == 1).sum(axis=1)
        others = (labels != 0) & (labels != 1)
        if others.any():
            row, column = np.argwhere(others)[0].tolist()
            raise DataError(
                f"fit: class_weight needs 0 and 1 in the columns of y, but row {row}, column {column} is "
                f"{labels[row, column]}; give each row its class as 1, or rows their weights as sample_weight"
            )
        if (ones != 1).any():
            row = int((ones != 1).argmax())
            raise DataError(
                f"fit: class_weight needs one class for each row of y, but row {row} has {ones[row]} of "
                f"{labels.shape[1]}; give rows their weights as sample_weight"
            )
        labels = labels.argmax(-1)
    return labels.reshape(-1).astype(np.int64)
