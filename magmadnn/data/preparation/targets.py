"""Targets: telling classes from quantities, and numbering classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DataError, DTypeError, ShapeError, UnknownNameError, quoted, shown

Task = Literal["classification", "regression"]

TASKS: tuple[Task, ...] = ("classification", "regression")

Labels = Literal["text", "number", "bool"]

LABELS: tuple[Labels, ...] = ("text", "number", "bool")

_MOST_CLASSES = 20
_ROWS_PER_CLASS = 10
_SHOWN = 20  # class names that a message lists


def target_kind(raw: NDArray[Any], *, of_images: bool = False) -> Task:
    """Whether a target names classes or measures something.

    Text and bool: classification. Numbers: classification if all are whole, there are at most 20
    different ones, and 10 or more rows for each of them on average (two different ones are always
    classes). Otherwise regression; targets with several columns too.

    Why: a count or a grade that is to be predicted as a quantity takes nearly as many values as
    there are rows in a small table, and more than 20 in a large one, whereas a class with fewer
    than 10 examples can hardly be learnt. The rule cannot see what a number means: the quality
    grades 3..8 of wines are taken for classes. Where that is not wanted, say so (`task=`).

    Labels of images may be more: integers without a gap, from 0 or 1 on, that are fewer than half of the rows
    are classes, as in data sets of 100 or 1,000.

    Args:
        raw: targets as they were read.
        of_images: whether they are of images.
    """
    if raw.dtype.kind in "USb":
        return "classification"
    if raw.ndim != 1 or raw.size == 0 or raw.dtype.kind not in "iuf":
        return "regression"
    distinct = np.unique(raw)
    if not (np.isfinite(distinct).all() and (distinct == np.floor(distinct)).all()):
        return "regression"
    if of_images and raw.dtype.kind in "iu":
        first, last = int(distinct[0]), int(distinct[-1])
        if first in (0, 1) and last - first + 1 == len(distinct) <= len(raw) // 2:
            return "classification"
    most = min(_MOST_CLASSES, max(2, len(raw) // _ROWS_PER_CLASS))
    return "classification" if len(distinct) <= most else "regression"


def check_task(task: object) -> None:
    """Refuses words other than the two tasks."""
    if task not in TASKS:
        raise UnknownNameError.of("task", task, TASKS)


def class_names(raw: NDArray[Any]) -> tuple[str, ...]:
    """The different values of a target in ascending order, as texts.

    Raises:
        DataError: NaN or infinity, or one value only, so that there is nothing to tell apart.
        ShapeError: the target has several columns.
        DTypeError: its elements cannot be classes.
    """
    distinct = np.unique(_checked(raw))
    if distinct.dtype.kind == "f" and not np.isfinite(distinct).all():
        row = int(np.argmax(~np.isfinite(raw)))
        raise DataError(f"target: row {row} is {float(raw[row])}, expected a class")
    if len(distinct) < 2:
        raise DataError(
            f"target: every row is {quoted(_text(distinct[0]))}, expected at least 2 classes: "
            "is it the right column?"
        )
    return tuple(map(_text, distinct))


def labels_of(raw: NDArray[Any]) -> Labels:
    """What the classes in a target are."""
    return "bool" if raw.dtype.kind == "b" else "number" if raw.dtype.kind in "iuf" else "text"


def with_labels(classes: Sequence[str], labels: Labels) -> NDArray[Any]:
    """Names of classes as what they were in the target; numbers are int64 if all are whole.

    Raises:
        DataError: they cannot have been that.
    """
    if labels == "text":
        return np.array(classes)
    if labels == "bool" and set(classes) <= {"False", "True"}:
        return np.array([name == "True" for name in classes])
    for number in (int, float):
        try:
            return np.array([number(name) for name in classes])
        except ValueError:
            continue
    raise DataError(f"classes {', '.join(classes[:_SHOWN])} are no labels of the kind {labels!r}")


def number_classes(
    raw: NDArray[Any], classes: Sequence[str], lines: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """The number, from 0, of each value in `classes`, which are texts.

    Args:
        raw: values as they were read: texts, whole numbers, bools.
        classes: their names in the order of their numbers.
        lines: the line in a file of each row, for the message.

    Raises:
        DataError: a value is none of the classes; names the row or line.
        ShapeError, DTypeError: as for `class_names`.
    """
    known = {name: number for number, name in enumerate(classes)}
    distinct, place = np.unique(_checked(raw), return_inverse=True)
    numbers = np.array([known.get(_text(value), -1) for value in distinct], np.int64)
    labels: NDArray[np.int64] = numbers[place]
    if (labels < 0).any():
        row = int(np.argmax(labels < 0))
        where = f"row {row}" if lines is None else f"line {lines[row]}"
        more = ", ..." if len(classes) > _SHOWN else ""
        raise DataError(
            f"target: {where} is {quoted(_text(raw[row]))}, which is none of the {len(classes)} "
            f"classes {shown(', '.join(classes[:_SHOWN]))}{more}"
        )
    return labels


def _checked(raw: NDArray[Any]) -> NDArray[Any]:
    if raw.ndim != 1:
        raise ShapeError(f"target: has the shape {raw.shape}, expected one class for each row")
    if raw.dtype.kind not in "Ubiuf":
        raise DTypeError(f"target: elements are of type {raw.dtype}, expected texts or numbers")
    if raw.size == 0:
        raise DataError("target: is empty, expected a class for each row")
    return raw


def _text(value: Any) -> str:
    """One name for one class, whether it was read as a whole number or as 3.0."""
    if isinstance(value, np.floating | float) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value.item() if isinstance(value, np.generic) else value)


def one_hot_to_numbers(raw: NDArray[Any]) -> NDArray[Any]:
    """A column per class, with a single 1 in each row, becomes class numbers; [rows, 1] loses an axis.

    Other targets are returned as they are.
    """
    if raw.ndim != 2 or raw.dtype.kind not in "biuf":
        return raw
    if raw.shape[1] == 1:
        return raw[:, 0]
    indicators = ((raw == 0) | (raw == 1)).all() and (raw.sum(axis=1) == 1).all()
    return np.argmax(raw, axis=1) if indicators else raw
