"""Preparation: what the training rows say about how inputs and targets are scaled.

Fitted on the training rows only, kept with the model, and applied to whatever comes later.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from magmadnn.data._structure import as_array
from magmadnn.data.preparation._statistics import Floats, check_block, statistics
from magmadnn.data.preparation._units import check_units
from magmadnn.data.preparation.components import Components, check_pca
from magmadnn.data.preparation.targets import (
    LABELS,
    TASKS,
    Labels,
    Task,
    check_task,
    class_names,
    labels_of,
    number_classes,
    target_kind,
    with_labels,
)
from magmadnn.data.tables.alignment import check_rows
from magmadnn.data.tables.chosen_columns import Names
from magmadnn.data.tables.libraries import is_table
from magmadnn.data.tables.plain import inputs_in_order, inputs_like, learn_columns, plain_target
from magmadnn.data.tables.reading import Missing, check_missing
from magmadnn.data.tables.schema import Schema
from magmadnn.data.validation import check_dtype, row_blocks, way_to_shape
from magmadnn.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    ShapeError,
    UnknownNameError,
    quoted,
)
from magmadnn.memory.on_demand import OnDemand

_VERSION = 2  # the last that is read; `to_json` gives 1 where there are no components
_LEAST, _MOST = math.ulp(0.0), sys.float_info.max


@dataclass(frozen=True)
class Preparation:
    """Scaling of inputs and targets; plain values only.

    Inputs become (x - mean) / std, with a mean and a std for each index of the last axis: each
    column of a table, each channel of images (one of grey, three of colour) or signals. Statistics
    are those of the training rows, of known values, with divisor n. A missing value becomes the mean,
    0 once scaled. So does every value of a column that is constant in the training rows: its std is
    infinite, since nothing can be learnt of its values (`constant` names such columns).

    A numeric target becomes (y - target_mean) / target_std likewise. Classes become their numbers.

    Attributes:
        input_shape: of one row.
        mean: one for each index of the last axis.
        std: likewise, all positive; infinite for constant ones.
        missing: "mean": NaN in inputs is a missing value and is filled. Otherwise it is an error.
            ("drop" says how a table is to be read.)
        task: "classification" or "regression".
        classes: names in the order of their numbers; empty for regression.
        labels: what the classes were: "text", "number" or "bool"; `restore_target` gives such.
        target_shape: of one row's target: () or, for several numbers, (n,).
        target_mean: one for each target; empty for classification.
        target_std: likewise, all positive.
        schema: the columns of the training table; None for other data.
        image_size: pixels on each side that files of images are scaled to; None: they are not.
        components: principal components that scaled inputs are turned into; None: they are not.
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
    labels: Labels = "text"
    image_size: int | None = None
    components: Components | None = None

    def __post_init__(self) -> None:
        check_task(self.task)
        check_missing(self.missing)
        if self.labels not in LABELS:
            raise UnknownNameError.of("labels", self.labels, LABELS)
        targets = math.prod(self.target_shape) if self.task == "regression" else 0
        for name, values, count, least, most in (
            ("mean", self.mean, self.input_shape[-1] if self.input_shape else 0, -_MOST, _MOST),
            ("std", self.std, len(self.mean), _LEAST, math.inf),
            ("target_mean", self.target_mean, targets, -_MOST, _MOST),
            ("target_std", self.target_std, targets, _LEAST, _MOST),
        ):
            if len(values) != count or not all(least <= value <= most for value in values):
                raise DataError(
                    f"preparation: {name} needs {count} finite numbers, got {quoted(values)}"
                )
        if (self.task == "classification") != (len(set(self.classes)) > 1):
            raise DataError(
                f"preparation: {self.task} does not go with the classes {quoted(self.classes)}"
            )
        with_labels(self.classes, self.labels)
        if self.components is not None and len(self.components.mean) != math.prod(self.input_shape):
            raise DataError(
                f"preparation: components of {len(self.components.mean)} inputs do not go with the shape "
                f"{self.input_shape}"
            )
        size = self.image_size
        if size is not None and (size < 1 or self.input_shape[:2] != (size, size)):
            raise DataError(
                f"preparation: image_size {size} does not go with the shape {self.input_shape}"
            )
        if self.schema is not None and (len(self.schema.inputs),) != self.input_shape:
            raise DataError(
                f"preparation: columns of {len(self.schema.inputs)} inputs do not go with the shape "
                f"{self.input_shape}"
            )

    @classmethod
    def fit(
        cls,
        x: Any,
        target: Any,
        *,
        task: Task | None = None,
        classes: tuple[str, ...] | None = None,
        missing: Missing | None = None,
        schema: Schema | None = None,
        ignore: Names = (),
        categories: Names = (),
        rows: NDArray[np.int64] | None = None,
        pca: int | None = None,
    ) -> Preparation:
        """The statistics of training rows.

        Args:
            x: inputs [rows, ...]; may be a memory map, which is read once, block by block; or a table of
                pandas, polars or pyarrow, whose texts and categories become one input for each value.
            target: [rows] texts or numbers, or [rows, n] numbers; or a Series, or a table with a column for
                each target.
            task: overrides what `target_kind` tells.
            classes: names in the order of their numbers; None: the sorted values of `target`.
            missing: with "mean", NaN in `x`, or what a table takes for missing, is a missing value.
            schema: of the table the rows of an array came from.
            ignore: columns of a table that are left out.
            categories: columns of a table whose values name categories though they are numbers.
            rows: those that statistics are taken from, ascending; None: all. Names of classes and categories
                come from all rows.
            pca: how many principal components of those rows scaled inputs become; None: they stay.

        Raises:
            DataError: NaN or infinity; a column without a known value; fewer components; one class only; a
                target without any differences; rows that are labelled differently in `x` and `target`; a
                target among the columns of `x`.
            ShapeError: no axis beside the rows, or not one target for each row.
            DTypeError: elements that are no numbers.
        """
        check_rows("", x=x, target=target)
        found = plain_target(target, "target")
        raw = found.values
        if is_table(x):
            schema = learn_columns(
                x, "x", ignore=ignore, categories=categories, targets=found.columns
            )
            x = inputs_like(x, "x", schema, missing)
        elif ignore or categories:
            raise ArgumentError("ignore and categories name columns of a table, and x is none")
        x = as_array(x, "x")
        check_dtype("x", x)
        if x.ndim < 2 or x.size == 0 or len(x) != len(raw):
            raise ShapeError(
                f"x has the shape {x.shape} and the target {raw.shape}: "
                "expected [rows, ...] and one target for each row"
            )
        kind = "classification" if found.names_classes else target_kind(raw)
        chosen = kind if task is None else task
        check_task(chosen)
        names = schema.inputs if schema else ()
        mean, std = statistics("x", x, missing == "mean", names, rows)
        made = cls(
            input_shape=x.shape[1:],
            mean=tuple(mean.tolist()),
            std=tuple(np.where(std > 0.0, std, np.inf).tolist()),
            task="regression",
            missing=missing,
            schema=schema,
            target_mean=(0.0,),
            target_std=(1.0,),
        )
        check_pca(pca)
        if pca is not None:
            chosen_rows = np.asarray(x) if rows is None else x[rows]
            made = replace(made, components=made._components(chosen_rows, pca))
        return (
            made._of_classes(raw, classes)
            if chosen == "classification"
            else made._of_numbers(raw, rows)
        )

    def _components(self, x: NDArray[Any], count: int) -> Components:
        """Principal components of these rows."""
        scaled = self.apply_inputs(x)
        return Components.fit(scaled.reshape(len(scaled), -1), count)

    def _of_classes(self, raw: NDArray[Any], classes: tuple[str, ...] | None) -> Preparation:
        """The same for these classes."""
        names = class_names(raw) if classes is None else classes
        return replace(
            self,
            task="classification",
            classes=names,
            labels=labels_of(raw),
            target_mean=(),
            target_std=(),
        )

    def _of_numbers(self, raw: NDArray[Any], rows: NDArray[np.int64] | None) -> Preparation:
        """The same for these quantities."""
        numbers = _numeric_target(raw)
        columns = numbers.reshape(len(numbers), -1)
        mean, std = statistics("target", columns, False, rows=rows)
        if not std.all():
            column = int(np.argmin(std > 0))
            which = "" if numbers.ndim == 1 else f" in column {column}"
            raise DataError(
                f"target: every training row is {mean[column]:g}{which}, so there is nothing to learn: is it "
                "the right column?"
            )
        return replace(
            self,
            target_shape=numbers.shape[1:],
            target_mean=tuple(mean.tolist()),
            target_std=tuple(std.tolist()),
        )

    @property
    def constant(self) -> tuple[str, ...]:
        """Names of the inputs that are constant in the training rows, and so always become 0."""
        names = self.schema.inputs if self.schema else tuple(map(str, range(len(self.std))))
        return tuple(name for name, std in zip(names, self.std, strict=True) if std == math.inf)

    @property
    def prepared_shape(self) -> tuple[int, ...]:
        """The shape of a row of what `apply_inputs` gives."""
        return self.input_shape if self.components is None else (len(self.components.directions),)

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the targets, where they have some."""
        return () if self.schema is None else self.schema.target_names

    def apply_inputs(self, x: Any, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Scaled inputs, or their principal components, in a new array of `dtype`; of rows on demand, such.

        Columns of a table are found by their names, in any order; targets and columns that were left out in
        training may stand beside them. An array has them in the order of training.

        Raises:
            ShapeError: rows are not of `input_shape`.
            DataError: infinity, or NaN that is not to be filled; names row and column. Columns that are
                missing, that training did not know, or that hold something else than in training. Images
                of levels up to 255 where those of training had values from 0 to 1, or the other way round,
                or that were prepared already.
            DTypeError: elements that are no numbers.
        """
        if is_table(x):
            x = self._columns(x)
        x = as_array(x, "x")
        check_dtype("x", x)
        if x.shape[1:] != self.input_shape or x.ndim == 0:
            way = way_to_shape("x", x.shape, self.input_shape)
            raise ShapeError(
                f"x has rows of the shape {x.shape[1:]}, expected {self.input_shape} as in training"
                f"{way and ': '}{way}"
            )
        if isinstance(x, OnDemand):
            change = partial(self.apply_inputs, dtype=dtype)
            made: Any = x.changed(change, self.prepared_shape, np.dtype(dtype))
            return made  # type: ignore[no-any-return]  # no ndarray, and typed as one
        mean, std = np.array(self.mean), np.array(self.std)
        if len(self.input_shape) == 3:
            check_units(x, self.mean, self.std)
        out = np.empty((len(x), *self.prepared_shape), dtype)
        for low, block in row_blocks(x):
            target = out[low : low + len(block)]
            part = target if self.components is None else np.empty(block.shape, dtype)
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = (np.asarray(block, np.float64) - mean) / std
                part[...] = scaled
            if not np.isfinite(part).all():
                check_block("x", block, range(low, low + len(block)), self.missing == "mean")
                if np.isinf(part).any():
                    row, *_ = np.argwhere(np.isinf(part))[0].tolist()
                    raise DataError(
                        f"x: row {low + row} is too large once it is scaled as in training: "
                        "is it in other units?"
                    )
                part[np.isnan(part)] = 0.0
            if self.components is not None:
                target[...] = self.components.apply(part)
        return out

    def _columns(self, x: Any) -> Floats:
        """The inputs of a table."""
        if self.schema is None:
            return inputs_in_order(x, "x")
        return inputs_like(x, "x", self.schema, self.missing)

    def apply_target(self, raw: Any, lines: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Class numbers, int64; or scaled numbers, float32.

        Args:
            raw: targets as they were read; also a Series, or a table with a column for each target.
            lines: the line in a file of each row, for the message.

        Raises:
            DataError: a value that is none of the classes; NaN or infinity; other columns than in training.
            ShapeError: not one class, or not `target_shape` numbers, for each row.
            DTypeError: text where a number is needed.
        """
        found = plain_target(raw, "target")
        values = found.values
        names = tuple(column.name for column in found.columns)
        if len(names) > 1 and len(self.target_names) > 1 and names != self.target_names:
            if set(names) != set(self.target_names):
                raise DataError(
                    f"target: has the columns {quoted(names)}, expected {quoted(self.target_names)} as in "
                    "training"
                )
            values = values[:, [names.index(name) for name in self.target_names]]
        if self.task == "classification":
            return number_classes(values, self.classes, lines)
        numbers = _numeric_target(values)
        if numbers.shape[1:] != self.target_shape:
            raise ShapeError(
                f"target has rows of the shape {numbers.shape[1:]}, expected {self.target_shape} "
                "as in training"
            )
        check_block("target", numbers, range(len(numbers)), False)
        scaled: Floats = (numbers - np.array(self.target_mean)) / np.array(self.target_std)
        return scaled.astype(np.float32)

    def restore_target(self, predicted: ArrayLike) -> NDArray[Any]:
        """Predictions in the target's own units (float64), or the classes of class numbers.

        Classes are what they were in training: texts, numbers (int64 or float64) or bools.

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
        return with_labels(self.classes, self.labels)[predicted]

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON; floats keep all their digits, and None is an infinite std."""
        return {
            "version": 1 if self.components is None else _VERSION,
            "input_shape": list(self.input_shape),
            "mean": list(self.mean),
            "std": [None if std == math.inf else std for std in self.std],
            "task": self.task,
            "missing": self.missing,
            "classes": list(self.classes),
            "target_shape": list(self.target_shape),
            "target_mean": list(self.target_mean),
            "target_std": list(self.target_std),
            "schema": None if self.schema is None else self.schema.to_json(),
            "labels": self.labels,
            **({} if self.image_size is None else {"image_size": self.image_size}),
            **({} if self.components is None else {"components": self.components.to_json()}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Preparation:
        """The preparation that `to_json` wrote.

        Raises:
            DataError: the data is something else.
        """
        if not isinstance(data, Mapping) or data.get("task") not in TASKS:
            raise DataError("preparation: the saved data is damaged: there is no task")
        version = data.get("version", 1)  # that of before it was written
        if type(version) is not int or version > _VERSION:
            raise DataError(
                f"preparation: was saved by a newer magmadnn (version {quoted(version)}, this one reads up "
                f"to {_VERSION}): update magmadnn"
            )
        schema, components = data.get("schema"), data.get("components")
        std = data.get("std")
        known = [1.0 if value is None else value for value in std] if isinstance(std, list) else std
        return cls(
            input_shape=_list(data, "input_shape", int),
            mean=_list(data, "mean", float),
            std=tuple(
                math.inf if given is None else value
                for given, value in zip(std or (), _list({"std": known}, "std", float), strict=True)
            ),
            task=cast(Task, data["task"]),
            missing=data.get("missing"),
            classes=_list(data, "classes", str),
            target_shape=_list(data, "target_shape", int),
            target_mean=_list(data, "target_mean", float),
            target_std=_list(data, "target_std", float),
            schema=None if schema is None else Schema.from_json(schema),
            labels=cast(Labels, data.get("labels", "text")),
            image_size=_size(data.get("image_size")),
            components=None if components is None else Components.from_json(components),
        )


def _list(data: Mapping[str, Any], key: str, kind: Callable[[Any], Any]) -> tuple[Any, ...]:
    values = data.get(key)
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise DataError(f"preparation: the saved data is damaged: {key} is {quoted(values)}")
    return tuple(values)


def _size(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise DataError(f"preparation: the saved data is damaged: image_size is {quoted(value)}")
    return value


def _numeric_target(raw: NDArray[Any]) -> Floats:
    if raw.dtype.kind not in "biuf" or raw.ndim not in (1, 2):
        raise DTypeError(
            f"target: is of type {raw.dtype} and shape {raw.shape}, expected numbers of the shape "
            "[rows] or [rows, n] for regression"
        )
    return raw.astype(np.float64)
