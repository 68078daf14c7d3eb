"""Tables and columns of other libraries as plain arrays: the inputs of a model, and its targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data._structure import as_array
from magmadnn.data.tables.cell_grid import Floats, listed
from magmadnn.data.tables.chosen_columns import Choice, Names, choose
from magmadnn.data.tables.frames import FrameGrid
from magmadnn.data.tables.libraries import (
    NEITHER,
    RawColumn,
    is_column,
    is_table,
    raw_column,
    raw_table,
)
from magmadnn.data.tables.reading import Missing, schema_of, table_like
from magmadnn.data.tables.schema import Schema, Target
from magmadnn.data.tables.values import KINDS, Values, refused_dates, settled
from magmadnn.errors import DataError, DTypeError, ShapeError, quoted


@dataclass(frozen=True, eq=False)
class PlainTarget:
    """A target as an array.

    Attributes:
        values: texts (`<U`) or numbers [rows], or numbers [rows, targets].
        columns: the names that it came with; none for an array.
        names_classes: whether its library says that values name categories.
    """

    values: NDArray[Any]
    columns: tuple[Target, ...] = ()
    names_classes: bool = False


def is_foreign_data(value: Any) -> bool:
    """Whether it is a table or a column of another library, or an array of objects."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "OV" and (value.dtype.kind == "O" or is_table(value))
    return not isinstance(value, NEITHER) and (is_table(value) or is_column(value))


def learn_columns(
    frame: Any,
    what: str,
    *,
    ignore: Names = (),
    categories: Names = (),
    targets: tuple[Target, ...] = (),
) -> Schema:
    """What the columns of a table of inputs are.

    Args:
        frame: the table.
        what: how messages call it.
        ignore: columns to leave out.
        categories: columns whose values name categories.
        targets: names of the targets, which stand elsewhere.

    Raises:
        DataError: a column that only numbers the rows, or is a target; or one that cannot be an input.
        DTypeError: a column of dates, lists or the like.
    """
    grid = FrameGrid(raw_table(frame, what), what)
    choice = choose(grid, target=None, ignore=ignore, categories=categories)
    _refuse_row_numbers(grid, choice)
    schema = schema_of(grid, choice)
    for target in targets:
        if target.name in {column.name for column in schema.columns}:
            name = quoted(target.name)
            raise DataError(
                f"{what}: the target {name} stands among the inputs' columns too, so that the network "
                f"would be told what it is to predict: leave it out, x.drop(columns={name}); if the "
                "target is something else, rename it"
            )
    return replace(schema, targets=targets)


def _refuse_row_numbers(grid: FrameGrid, choice: Choice) -> None:
    if choice.left_out:
        name = quoted(grid.names[choice.left_out[0]])
        raise DataError(
            f"{grid.source}: column {name} only numbers the rows: leave it out, "
            f"x.drop(columns={name}), or, reading a file with pandas, say index_col=0"
        )


def inputs_like(frame: Any, what: str, schema: Schema, missing: Missing | None) -> Floats:
    """The inputs of a table [rows, inputs] with the columns of an earlier one, found by their names.

    Args:
        frame: the table.
        what: how messages call it.
        schema: of the earlier one.
        missing: "mean": missing values are NaN; otherwise they are an error.

    Raises:
        DataError, DTypeError: columns that are missing, new or of another kind; missing values.
        UnknownNameError: a column is missing; names the nearest.
    """
    grid = FrameGrid(raw_table(frame, what), what)
    filled: Missing | None = "mean" if missing == "mean" else None
    return table_like(grid, schema, filled, with_target=False, strict=True).x


def inputs_in_order(frame: Any, what: str) -> Floats:
    """The inputs of a table [rows, columns], all numbers, in the order of its columns.

    Raises:
        DataError, DTypeError: columns that are no numbers; missing values.
    """
    return inputs_like(frame, what, learn_columns(frame, what), None)


def plain_target(value: Any, what: str) -> PlainTarget:
    """A target as an array, with the names that it came with.

    Texts become `<U` [rows], numbers and truth values keep their dtype, durations become seconds. A table of
    one column is [rows], of several [rows, columns], all numbers. Arrays and lists stay what they are.

    Raises:
        DataError: missing values, or several columns that are not all numbers.
        DTypeError: dates, lists or the like.
    """
    if is_table(value):
        table = raw_table(value, what)
        names = table.names if table.is_named else [""] * len(table.names)
        columns = [raw_column(c, n) for c, n in zip(table.columns, names, strict=True)]
        return _column(columns[0], what) if len(columns) == 1 else _columns(columns, what)
    if is_column(value) or (isinstance(value, np.ndarray) and value.dtype.kind == "O"):
        return _column(raw_column(value), what)
    return PlainTarget(as_array(value, what))


def _column(column: RawColumn, what: str) -> PlainTarget:
    if column.values.ndim != 1:
        raise ShapeError(f"{what}: objects must have one axis, got shape {column.values.shape}")
    values = settled(replace(column, is_category=False), what)  # numbers may name classes
    named = (Target(column.name, None, values.kind == "category"),) if column.name else ()
    return PlainTarget(_known(values, what), named, column.is_category)


def _columns(columns: Sequence[RawColumn], what: str) -> PlainTarget:
    """Several targets, all numbers."""
    if not columns:
        raise DataError(f"{what}: is a table without columns")
    known = []
    for column in columns:
        at = f"{what}: column {quoted(column.name)}"
        values = settled(column, at)
        if values.kind == "category":
            raise DTypeError(
                f"{at} holds {KINDS[values.kind]}: of several targets each must be numeric"
            )
        known.append(_known(values, at).astype(np.float64))
    named = tuple(Target(column.name, None) for column in columns if column.name)
    return PlainTarget(np.stack(known, axis=1), named)


def _known(values: Values, what: str) -> NDArray[Any]:
    """The values of a target, none of which is missing."""
    if values.kind in ("date", "instant"):
        raise refused_dates(what)
    data = values.data
    bad = np.array([v is None for v in data]) if data.dtype.kind == "O" else _nan(data)
    if bad.any():
        rows = np.flatnonzero(bad)
        raise DataError(
            f"{what}: values are missing in {listed('row', rows)}: leave these rows out"
        )
    return data.astype(str) if values.kind == "category" else data


def _nan(data: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isnan(data) if data.dtype.kind == "f" else np.zeros(len(data), bool)
