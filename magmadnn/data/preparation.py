"""Preparation: what the training rows say about how inputs and targets are scaled.

Fitted on the training rows only, kept with the model, and applied to whatever comes later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from magmadnn.data._structure import as_array
from magmadnn.data.tables.reading import Missing, check_missing
from magmadnn.data.tables.schema import Schema
from magmadnn.data.targets import (
    TASKS,
    Task,
    check_task,
    class_names,
    number_classes,
    target_kind,
)
from magmadnn.data.validation import check_dtype, first_not_finite, place, row_blocks
from magmadnn.errors import DataError, DTypeError, ShapeError, quoted

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Preparation:
    """Scaling of inputs and targets; plain values only.

    Inputs become (x - mean) / std, with a mean and a std for each index of the last axis: each
    column of a table, each channel of images (one of grey, three of colour) or signals. Statistics
    are those of the training rows, of known values, with divisor n; a column that is constant gets
    std 1. A missing value becomes the mean, 0 once scaled.

    A numeric target becomes (y - target_mean) / target_std likewise. Classes become their numbers.

    Attributes:
        input_shape: of one row.
        mean: one for each index of the last axis.
        std: likewise, all positive.
        missing: "mean": NaN in inputs is a missing value and is filled. Otherwise it is an error.
            ("drop" says how a table is to be read.)
        task: "classification" or "regression".
        classes: names in the order of their numbers; empty for regression.
        target_shape: of one row's target: () or, for several numbers, (n,).
        target_mean: one for each target; empty for classification.
        target_std: likewise, all positive.
        schema: the columns of the training table; None for other data.
    """

    input_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    task: Task
    missing: Missing | None = None
    classes: tuple[str, ...] = ()
    target_shape: tuple[int, ...] = ()
    target_mean: tuple[float, ...] = ()
    target_std: tuple[float, ...] = ()
    schema: Schema | None = None

    def __post_init__(self) -> None:
        check_task(self.task)
        check_missing(self.missing)
        targets = math.prod(self.target_shape) if self.task == "regression" else 0
        for name, values, count in (
            ("mean", self.mean, self.input_shape[-1] if self.input_shape else 0),
            ("std", self.std, len(self.mean)),
            ("target_mean", self.target_mean, targets),
            ("target_std", self.target_std, targets),
        ):
            least = 0.0 if name.endswith("std") else -math.inf
            if len(values) != count or not all(least < value < math.inf for value in values):
                raise DataError(
                    f"preparation: {name} needs {count} finite numbers, got {quoted(values)}"
                )
        if (self.task == "classification") != (len(set(self.classes)) > 1):
            raise DataError(
                f"preparation: {self.task} does not go with the classes {quoted(self.classes)}"
            )

    @classmethod
    def fit(
        cls,
        x: ArrayLike,
        target: ArrayLike,
        *,
        task: Task | None = None,
        classes: tuple[str, ...] | None = None,
        missing: Missing | None = None,
        schema: Schema | None = None,
    ) -> Preparation:
        """The statistics of training rows.

        Args:
            x: inputs [rows, ...]; may be a memory map, which is read once, block by block.
            target: [rows] texts or numbers, or [rows, n] numbers.
            task: overrides what `target_kind` tells.
            classes: names in the order of their numbers; None: the sorted values of `target`.
            missing: with "mean", NaN in `x` is a missing value.
            schema: of the table the rows came from.

        Raises:
            DataError: NaN or infinity; a column without a known value; one class only.
            ShapeError: no axis beside the rows, or not one target for each row.
            DTypeError: elements that are no numbers.
        """
        x, target = as_array(x, "x"), as_array(target, "target")
        check_dtype("x", x)
        if x.ndim < 2 or x.size == 0 or len(x) != len(target):
            raise ShapeError(
                f"x has the shape {x.shape} and the target {target.shape}: "
                "expected [rows, ...] and one target for each row"
            )
        chosen = target_kind(target) if task is None else task
        check_task(chosen)
        mean, std = _statistics("x", x, missing == "mean", schema.inputs if schema else ())
        if chosen == "classification":
            names = class_names(target) if classes is None else classes
            return cls(x.shape[1:], mean, std, chosen, missing, names, schema=schema)
        numbers = _numeric_target(target)
        target_mean, target_std = _statistics(
            "target", numbers.reshape(len(numbers), -1), False, ()
        )
        return cls(
            input_shape=x.shape[1:],
            mean=mean,
            std=std,
            task=chosen,
            missing=missing,
            target_shape=numbers.shape[1:],
            target_mean=target_mean,
            target_std=target_std,
            schema=schema,
        )

    def apply_inputs(self, x: ArrayLike, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Scaled inputs in a new array of `dtype`.

        Raises:
            ShapeError: rows are not of `input_shape`.
            DataError: infinity, or NaN that is not to be filled; names row and column.
            DTypeError: elements that are no numbers.
        """
        x = as_array(x, "x")
        check_dtype("x", x)
        if x.shape[1:] != self.input_shape or x.ndim == 0:
            raise ShapeError(
                f"x has rows of the shape {x.shape[1:]}, expected {self.input_shape} as in training"
            )
        mean, std = np.array(self.mean), np.array(self.std)
        out = np.empty(x.shape, dtype)
        for low, block in row_blocks(x):
            scaled = (np.asarray(block, np.float64) - mean) / std
            if not np.isfinite(scaled).all():
                _check_block("x", block, low, self.missing == "mean")
                scaled[np.isnan(scaled)] = 0.0
            out[low : low + len(block)] = scaled
        return out

    def apply_target(
        self, raw: NDArray[Any], lines: NDArray[np.int64] | None = None
    ) -> NDArray[Any]:
        """Class numbers, int64; or scaled numbers, float32.

        Args:
            raw: targets as they were read.
            lines: the line in a file of each row, for the message.

        Raises:
            DataError: a value that is none of the classes; NaN or infinity.
            ShapeError: not one class, or not `target_shape` numbers, for each row.
            DTypeError: text where a number is needed.
        """
        if self.task == "classification":
            return number_classes(raw, self.classes, lines)
        numbers = _numeric_target(raw)
        if numbers.shape[1:] != self.target_shape:
            raise ShapeError(
                f"target has rows of the shape {numbers.shape[1:]}, expected {self.target_shape} "
                "as in training"
            )
        _check_block("target", numbers, 0, False)
        scaled: Floats = (numbers - np.array(self.target_mean)) / np.array(self.target_std)
        return scaled.astype(np.float32)

    def restore_target(self, predicted: ArrayLike) -> NDArray[Any]:
        """Predictions in the target's own units (float64), or the names of class numbers.

        Raises:
            DataError: a class number outside the classes.
            DTypeError: class numbers that are no integers.
            ShapeError: the last axis is not one prediction for each target.
        """
        predicted = as_array(predicted, "predictions")
        if self.task == "regression":
            last = predicted.shape[-1:] if self.target_shape else ()
            if last != self.target_shape:
                raise ShapeError(
                    f"predictions have the shape {predicted.shape}, expected the last axis to be "
                    f"{self.target_shape[0]}"
                )
            scale, shift = np.array(self.target_std), np.array(self.target_mean)
            restored: Floats = predicted.astype(np.float64) * scale + shift
            return restored
        if predicted.dtype.kind not in "iu":
            raise DTypeError(f"class numbers are of type {predicted.dtype}, expected integers")
        outside = (predicted < 0) | (predicted >= len(self.classes))
        if outside.any():
            raise DataError(
                f"prediction {predicted[outside][0]} is outside the classes "
                f"0..{len(self.classes) - 1}"
            )
        names: NDArray[np.str_] = np.array(self.classes)[predicted]
        return names

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON; floats keep all their digits."""
        return {
            "input_shape": list(self.input_shape),
            "mean": list(self.mean),
            "std": list(self.std),
            "task": self.task,
            "missing": self.missing,
            "classes": list(self.classes),
            "target_shape": list(self.target_shape),
            "target_mean": list(self.target_mean),
            "target_std": list(self.target_std),
            "schema": None if self.schema is None else self.schema.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Preparation:
        """The preparation that `to_json` wrote.

        Raises:
            DataError: the data is something else.
        """
        if not isinstance(data, Mapping) or data.get("task") not in TASKS:
            raise DataError("preparation: the saved data is damaged: there is no task")
        schema = data.get("schema")
        return cls(
            input_shape=_list(data, "input_shape", int),
            mean=_list(data, "mean", float),
            std=_list(data, "std", float),
            task=cast(Task, data["task"]),
            missing=data.get("missing"),
            classes=_list(data, "classes", str),
            target_shape=_list(data, "target_shape", int),
            target_mean=_list(data, "target_mean", float),
            target_std=_list(data, "target_std", float),
            schema=None if schema is None else Schema.from_json(schema),
        )


def _list(data: Mapping[str, Any], key: str, kind: Callable[[Any], Any]) -> tuple[Any, ...]:
    values = data.get(key)
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise DataError(f"preparation: the saved data is damaged: {key} is {quoted(values)}")
    return tuple(values)


def _numeric_target(raw: NDArray[Any]) -> Floats:
    if raw.dtype.kind not in "biuf" or raw.ndim not in (1, 2):
        raise DTypeError(
            f"target: is of type {raw.dtype} and shape {raw.shape}, expected numbers of the shape "
            "[rows] or [rows, n] for regression"
        )
    return raw.astype(np.float64)


def _check_block(name: str, block: NDArray[Any], low: int, nan_allowed: bool) -> None:
    where = first_not_finite(block, nan_allowed=nan_allowed)
    if where is not None:
        row, *rest = where
        raise DataError(
            f"{name}: {place((low + row, *rest))} is {float(block[where])}, "
            "expected finite numbers: repair or leave out the row"
        )


def _statistics(
    name: str, x: NDArray[Any], nan_allowed: bool, names: tuple[str, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation for each index of the last axis, in one pass over the rows.

    Blocks are merged with Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for
    computing sample variances", 1979, eq. (2.1): no difference of large sums is taken.
    """
    last = x.shape[-1]
    count, mean, squares = np.zeros(last), np.zeros(last), np.zeros(last)
    low, high = np.full(last, np.inf), np.full(last, -np.inf)
    for first, block in row_blocks(x):
        _check_block(name, block, first, nan_allowed)
        values = np.asarray(block, np.float64)
        known = ~np.isnan(values)
        n = _reduce(np.add, known.astype(np.float64), last)
        block_mean = _reduce(np.add, np.where(known, values, 0.0), last) / np.maximum(n, 1.0)
        deviation = np.where(known, values - block_mean, 0.0)
        total = np.maximum(count + n, 1.0)
        delta = block_mean - mean
        squares += _reduce(np.add, deviation * deviation, last) + delta * delta * count * n / total
        mean, count = mean + delta * n / total, count + n
        low = np.fmin(low, _reduce(np.fmin, values, last))
        high = np.fmax(high, _reduce(np.fmax, values, last))
    if (unknown := count == 0).any():
        column = int(np.argmax(unknown))
        label = quoted(names[column]) if names else str(column)
        raise DataError(f"{name}: column {label} has no known value in the training rows")
    # By their range: the mean of equal numbers is rounded, so their std need not be exactly 0.
    std = np.sqrt(squares / count)
    std = np.where((high > low) & (std > 0.0), std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


def _reduce(function: np.ufunc, values: Floats, last: int) -> Floats:
    """Reduces to the last axis; over the rows first, so that the inner loop is long."""
    rows = function.reduce(values.reshape(len(values), -1), axis=0)
    result: Floats = function.reduce(rows.reshape(-1, last), axis=0)
    return result
