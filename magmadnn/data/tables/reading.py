"""Tables: numbers and categories in columns, some of them targets; from text and from other libraries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.data.tables.cell_grid import Grid, categories_of, matrix, names_text, rows_text
from magmadnn.data.tables.cells import read_cells
from magmadnn.data.tables.chosen_columns import Choice, Names, choose, column_number
from magmadnn.data.tables.frames import FrameGrid
from magmadnn.data.tables.libraries import raw_table
from magmadnn.data.tables.schema import Column, Schema, Target
from magmadnn.data.tables.text import TextGrid
from magmadnn.data.tables.values import refused_dates
from magmadnn.errors import ArgumentError, DataError, UnknownNameError, quoted
from magmadnn.storage.input_files import input_path

Missing = Literal["mean", "drop"]


@dataclass(frozen=True, eq=False)
class Table:
    """A table that was read.

    Attributes:
        source: the file, or how messages call a table of another library.
        x: inputs, float64 [rows, inputs]; NaN where a value is missing.
        target: numbers or texts [rows], or numbers [rows, targets]; None if no column is a target.
        lines: the file's line of each row, from 1; None where there is no file.
        schema: names, categories and places of the columns.
        delimiter: what separates fields; " " is any white space; "" where there is no file.
        dropped: rows left out because a value was missing.
        notes: what somebody should know about the columns, a line each.
    """

    source: str
    x: NDArray[np.float64]
    target: NDArray[Any] | None
    lines: NDArray[np.int64] | None
    schema: Schema
    delimiter: str = ""
    dropped: int = 0
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs, each that of its column, or `column=category`."""
        return self.schema.inputs

    @property
    def target_name(self) -> str | None:
        """Name of the target column, if it is a single one."""
        return self.schema.target

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The different texts of a text target, sorted; None for numbers."""
        if self.target is None or not self.schema.target_is_text:
            return None
        return tuple(np.unique(self.target).tolist())


@checked_call
def read_table(
    path: str | os.PathLike[str],
    target: Names | None = -1,
    missing: Missing | None = None,
    *,
    ignore: Names = (),
    features: Names | None = None,
    categories: Names = (),
    delimiter: str | None = None,
    header: bool | None = None,
    decimal: str = ".",
) -> Table:
    """Reads a table from text in UTF-8, which may be packed (.gz, .xz, .bz2).

    The delimiter (tab, `;`, `|`, `,` or white space) and a header are detected. Fields may stand in
    double quotes. A column is numeric when more than half of its known cells are numbers. A text
    column becomes one input per category (`name=category`, 1 or 0); a text target stays text, and
    its sorted different texts are the classes. Missing is an empty cell, `?`, `NA`, `N/A`, `n/a`, `nan`,
    `NaN`, `null`, `NULL`, `<NA>` or `#N/A`. While it is read, a table takes about 100 bytes of memory a cell;
    much larger data belongs in .npy files.

    A column that only names or numbers the rows is left out, and `Table.notes` says so: the first one, if it
    alone has no name (or is called `Unnamed: 0`) and all its values differ; and one that is called `id`,
    `index`, `row` or the like, if it counts the rows in their order, from 0 or 1. With `features` all is
    taken that is named there.

    Args:
        path: the file.
        target: column by name or by number, counted from 0, or from the end if negative (a text
            of digits that is no name counts as a number); several, all numeric, in a list; None: all
            columns are inputs.
        missing: None: a missing value is an error. "mean": it stays NaN in `x`, and `Preparation`
            fills it with the training rows' mean. "drop": its row is left out.
        ignore: columns to leave out, by name or number.
        features: the inputs, by name or number, in this order; None: all columns but the others.
        categories: inputs whose values name categories though they are numbers.
        delimiter: to be used instead of the detected one; " " is any white space.
        header: whether the first row holds names, instead of what is detected.
        decimal: the decimal sign of numbers: a point, or a comma; then a point is no part of a number.

    Raises:
        FileError: the file cannot be read.
        DataError: no rows, rows of unequal length, a missing, non-numeric or infinite value.
        UnknownNameError: a column name that the header does not have.
        ArgumentError: a column number or a value of `missing` that does not exist, or a column that shall be
            two things at once.
    """
    check_missing(missing)
    grid = text_grid(path, delimiter=delimiter, header=header, decimal=decimal)
    choice = choose(grid, target=target, ignore=ignore, features=features, categories=categories)
    for index in choice.targets:
        grid.refuse_decimal_commas(index)
    schema = schema_of(grid, choice, decimal)
    table = table_of(grid, schema, choice.inputs, choice.targets, missing, choice.notes)
    return replace(table, delimiter=grid.delimiter)


def read_table_like(
    path: str | os.PathLike[str],
    schema: Schema,
    missing: Missing | None = None,
    *,
    with_target: bool = True,
    decimal: str | None = None,
) -> Table:
    """Reads a table with the columns and categories of an earlier one.

    Columns are found by name if both files have a header, in any order and among others; otherwise
    by their place, and the targets may then be absent.

    Args:
        path: the file.
        schema: of the earlier table.
        missing: as for `read_table`.
        with_target: whether the targets are read and must be there.
        decimal: the decimal sign of numbers; None: that of the earlier table.

    Raises:
        FileError, DataError: as for `read_table`; also a column or a category that does not fit.
        UnknownNameError: a column is not in the header.
    """
    check_missing(missing)
    expected = [column.name for column in schema.columns] if schema.header else []
    sign = schema.decimal if decimal is None else decimal
    grid = text_grid(path, decimal=sign, expected_names=expected)
    table = table_like(grid, schema, missing, with_target=with_target)
    return replace(table, delimiter=grid.delimiter)


def frame_table(
    frame: Any,
    target: Names | None,
    missing: Missing | None = None,
    *,
    ignore: Names = (),
    features: Names | None = None,
    categories: Names = (),
    source: str = "table",
) -> Table:
    """The same from a table of another library (`libraries.is_table`); rows are counted from 0 in messages.

    Raises:
        DataError, DTypeError: as for `read_table`; also columns that are no numbers or texts.
        UnknownNameError, ArgumentError: as for `read_table`.
    """
    check_missing(missing)
    grid = FrameGrid(raw_table(frame, source), source)
    choice = choose(grid, target=target, ignore=ignore, features=features, categories=categories)
    schema = schema_of(grid, choice)
    return table_of(grid, schema, choice.inputs, choice.targets, missing, choice.notes)


def frame_like(
    frame: Any,
    schema: Schema,
    missing: Missing | None = None,
    *,
    with_target: bool = True,
    source: str = "table",
) -> Table:
    """A table of another library with the columns of an earlier one; see `table_like`.

    Raises:
        DataError, DTypeError, UnknownNameError: as `table_like`.
    """
    grid = FrameGrid(raw_table(frame, source), source)
    return table_like(grid, schema, missing, with_target=with_target, strict=True)


def text_grid(path: str | os.PathLike[str], **options: Any) -> TextGrid:
    """The cells of a text file."""
    return TextGrid(read_cells(input_path("table: the file", path), **options))


def check_missing(missing: object) -> None:
    """Refuses words other than those for what to do with missing values."""
    if missing not in (None, "mean", "drop"):
        raise UnknownNameError.of("missing", missing, ["mean", "drop"])


def schema_of(grid: Grid, choice: Choice, decimal: str = ".") -> Schema:
    """What the chosen columns are.

    Raises:
        DataError: a column that is neither numbers nor few texts, or several targets of which one is text.
    """
    targets = tuple(_target(grid, index) for index in choice.targets)
    if len(targets) > 1 and (texts := [target.name for target in targets if target.is_text]):
        raise DataError(
            f"{grid.source}: the target {quoted(texts[0])} holds texts: of several targets each must be "
            "numeric"
        )
    return Schema(
        columns=tuple(_column(grid, index, index in choice.categories) for index in choice.inputs),
        targets=targets,
        ignored=tuple(grid.names[index] for index in choice.ignored),
        header=grid.header,
        width=len(grid.names),
        decimal=decimal,
    )


def _column(grid: Grid, index: int, forced: bool) -> Column:
    name = grid.names[index]
    if forced:
        return Column(name, index, categories_of(grid, index, as_asked=True), "category")
    kind = grid.kind(index)
    categories = categories_of(grid, index) if kind == "category" else None
    return Column(name, index, categories, kind)


def _target(grid: Grid, index: int) -> Target:
    kind = grid.kind(index)
    if kind in ("date", "instant"):
        raise refused_dates(f"{grid.source}: the target {quoted(grid.names[index])}")
    return Target(grid.names[index], index, kind == "category")


def table_like(
    grid: Grid, schema: Schema, missing: Missing | None, *, with_target: bool, strict: bool = False
) -> Table:
    """The rows of a table with the columns of an earlier one; see `read_table_like`.

    Args:
        grid: the table.
        schema: of the earlier one.
        missing: as for `read_table`.
        with_target: whether targets are read.
        strict: whether a column that the earlier table did not have is an error.

    Raises:
        DataError: as for `read_table`; also a column or a category that does not fit.
        UnknownNameError: a column is not there.
    """
    inputs, targets = _places(grid, schema, with_target)
    if strict and schema.header and grid.header:
        known = {*schema.ignored, *schema.target_names, *(column.name for column in schema.columns)}
        if extra := [name for name in grid.names if name not in known]:
            raise DataError(
                f"{grid.source}: has the column{'s' * (len(extra) > 1)} {names_text(extra)}, which the "
                "training table did not have: leave them out"
            )
    return table_of(grid, schema, inputs, targets, missing)


def _places(grid: Grid, schema: Schema, with_target: bool) -> tuple[list[int], list[int]]:
    """Where the inputs and the targets of `schema` stand in another table."""
    if not schema.targets and with_target:
        raise ArgumentError(f"{grid.source}: the earlier table had no target column to be read")
    wanted = schema.targets if with_target else ()
    if schema.header and grid.header:
        absent = [column.name for column in schema.columns if column.name not in grid.names]
        if len(absent) > 1:
            raise DataError(
                f"{grid.source}: lacks the columns {names_text(absent)} of the training table: it has "
                f"{names_text(grid.names)}"
            )
        inputs = [column_number(grid, column.name, "input") for column in schema.columns]
        return inputs, [column_number(grid, target.name, "target") for target in wanted]
    width, away = len(grid.names), {t.index for t in schema.targets if t.index is not None}
    if width == schema.width:
        found = [target.index for target in wanted if target.index is not None]
        return [column.index for column in schema.columns], found
    if width == schema.width - len(away) and not with_target:
        return [c.index - sum(k < c.index for k in away) for c in schema.columns], []
    without = (
        "" if with_target or not away else f", or {schema.width - len(away)} without the target"
    )
    raise DataError(
        f"{grid.source}: has {width} columns, expected {schema.width} as in the training "
        f"table{without}"
    )


def table_of(
    grid: Grid,
    schema: Schema,
    inputs: Sequence[int],
    targets: Sequence[int],
    missing: Missing | None,
    notes: Sequence[str] = (),
) -> Table:
    """The values of the columns; rows with missing values are kept, refused or left out.

    Args:
        grid: the table.
        schema: what its columns are.
        inputs: where they stand in it.
        targets: where these stand; none if they are not read.
        missing: as for `read_table`.
        notes: of the table.

    Raises:
        DataError: values are missing that must not be, or are something else than the schema says.
    """
    bad = np.zeros(grid.rows, bool)
    for index in (*inputs, *targets):
        bad |= grid.missing(index)
    if missing is None and bad.any():
        raise _missing_error(grid, [*inputs, *targets], bad)
    x = matrix(grid, schema.columns, inputs)
    if missing == "mean":
        for index in targets:
            _refuse_missing_target(grid, index)
    values = _target_values(grid, schema, targets)
    table = Table(grid.source, x, values, grid.lines, schema, notes=tuple(notes))
    return _without_rows(table, bad) if missing == "drop" and bad.any() else table


def _target_values(grid: Grid, schema: Schema, places: Sequence[int]) -> NDArray[Any] | None:
    """Texts or numbers [rows], or numbers [rows, targets]."""
    if not places:
        return None
    found = [
        grid.raw(index, target.is_text)
        for index, target in zip(places, schema.targets, strict=True)
    ]
    return found[0] if len(found) == 1 else np.stack([c.astype(np.float64) for c in found], axis=1)


def _refuse_missing_target(grid: Grid, index: int) -> None:
    bad = np.flatnonzero(grid.missing(index))
    if bad.size:
        how = "" if grid.lines is None else ' with missing="drop"'
        raise DataError(
            f"{grid.source}: the target {quoted(grid.names[index])} is missing in {rows_text(grid, bad)}: "
            f"only inputs can be filled, so leave these rows out{how}"
        )


def _without_rows(table: Table, bad: NDArray[np.bool_]) -> Table:
    if bad.all():
        raise DataError(
            f"{table.source}: every row has a missing value, so none is left: "
            'use missing="mean" or leave out the columns without values'
        )
    return replace(
        table,
        x=table.x[~bad],
        target=None if table.target is None else table.target[~bad],
        lines=None if table.lines is None else table.lines[~bad],
        dropped=int(bad.sum()),
    )


def _missing_error(grid: Grid, used: Sequence[int], bad: NDArray[np.bool_]) -> DataError:
    columns = [grid.names[index] for index in used if grid.missing(index).any()]
    return DataError(
        f"{grid.source}: values are missing in {rows_text(grid, np.flatnonzero(bad))} (columns "
        f'{names_text(columns)}): use missing="mean" to fill them or {grid.without_rows}'
    )
