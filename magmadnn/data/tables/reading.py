"""Tables in delimited text: numbers and categories in columns, one of them the target."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.tables.cells import MISSING, Cells, read_cells
from magmadnn.data.tables.schema import (
    Column,
    Schema,
    categories_of,
    indicators,
    is_text_column,
    numbers_of,
    refuse_decimal_commas,
)
from magmadnn.errors import ArgumentError, DataError, UnknownNameError, quoted
from magmadnn.storage.input_files import check_room, input_path

Missing = Literal["mean", "drop"]

_SHOWN = 5  # lines or names that a message lists
_LONGEST_CLASS = 1000  # letters


@dataclass(frozen=True, eq=False)
class Table:
    """A table read from a file.

    Attributes:
        source: the file.
        x: inputs, float64 [rows, inputs]; NaN where a value is missing.
        target: float64 [rows], or texts; None if no column is the target.
        lines: the file's line of each row, from 1.
        schema: names, categories and places of the columns.
        delimiter: what separates fields; " " is any white space.
        dropped: rows left out because a value was missing.
    """

    source: str
    x: NDArray[np.float64]
    target: NDArray[Any] | None
    lines: NDArray[np.int64]
    schema: Schema
    delimiter: str
    dropped: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs, each that of its column, or `column=category`."""
        return self.schema.inputs

    @property
    def target_name(self) -> str | None:
        """Name of the target column."""
        return self.schema.target

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The different texts of a text target, sorted; None for numbers."""
        if self.target is None or not self.schema.target_is_text:
            return None
        return tuple(np.unique(self.target).tolist())


def read_table(
    path: str | os.PathLike[str],
    target: str | int | None = -1,
    missing: Missing | None = None,
    *,
    ignore: Sequence[str | int] = (),
    delimiter: str | None = None,
    header: bool | None = None,
) -> Table:
    """Reads a table from text in UTF-8.

    The delimiter (tab, `;`, `|`, `,` or white space) and a header are detected. Fields may stand in
    double quotes. A column is numeric when more than half of its known cells are numbers. A text
    column becomes one input per category (`name=category`, 1 or 0); a text target stays text, and
    its sorted different texts are the classes. Missing is `?` or an empty cell. While it is read, a
    table takes about 100 bytes of memory a cell; much larger data belongs in .npy files.

    Args:
        path: the file.
        target: column by name or by number, counted from 0, or from the end if negative (a text
            of digits that is no name counts as a number); None: all columns are inputs.
        missing: None: a missing value is an error. "mean": it stays NaN in `x`, and `Preparation`
            fills it with the training rows' mean. "drop": its row is left out.
        ignore: columns to leave out, by name or number.
        delimiter: to be used instead of the detected one; " " is any white space.
        header: whether the first row holds names, instead of what is detected.

    Raises:
        FileError: the file cannot be read.
        DataError: no rows, rows of unequal length, a missing, non-numeric or infinite value.
        UnknownNameError: a column name that the header does not have.
        ArgumentError: a column number or a value of `missing` that does not exist.
    """
    check_missing(missing)
    cells = read_cells(input_path("read_table: the file", path), delimiter=delimiter, header=header)
    target_index = None if target is None else _column_number(cells, target, "target")
    left_out = {_column_number(cells, name, "ignored") for name in ignore} | {target_index}
    columns = tuple(
        _column(cells, index) for index in range(len(cells.names)) if index not in left_out
    )
    if not columns:
        raise DataError(
            f"{cells.source}: has {len(cells.names)} column and no inputs beside the target: "
            "expected fields separated by tabs, semicolons, bars, commas or blanks"
        )
    if target_index is not None:
        refuse_decimal_commas(cells, target_index)
    schema = Schema(
        columns=columns,
        target=None if target_index is None else cells.names[target_index],
        target_index=target_index,
        target_is_text=target_index is not None and is_text_column(cells.columns[target_index]),
        header=cells.header,
        width=len(cells.names),
    )
    return _table(cells, schema, [column.index for column in columns], target_index, missing)


def read_table_like(
    path: str | os.PathLike[str],
    schema: Schema,
    missing: Missing | None = None,
    *,
    with_target: bool = True,
) -> Table:
    """Reads a table with the columns and categories of an earlier one.

    Columns are found by name if both files have a header, in any order and among others; otherwise
    by their place, and the target may then be absent.

    Args:
        path: the file.
        schema: of the earlier table.
        missing: as for `read_table`.
        with_target: whether the target is read and must be there.

    Raises:
        FileError, DataError: as for `read_table`; also a column or a category that does not fit.
        UnknownNameError: a column is not in the header.
    """
    check_missing(missing)
    expected = [column.name for column in schema.columns] if schema.header else []
    cells = read_cells(input_path("read_table_like: the file", path), expected_names=expected)
    inputs, target_index = _places(cells, schema, with_target)
    return _table(cells, schema, inputs, target_index, missing)


def check_missing(missing: object) -> None:
    """Refuses words other than those for what to do with missing values."""
    if missing not in (None, "mean", "drop"):
        raise UnknownNameError.of("missing", missing, ["mean", "drop"])


def _column(cells: Cells, index: int) -> Column:
    text = is_text_column(cells.columns[index])
    return Column(cells.names[index], index, categories_of(cells, index) if text else None)


def _column_number(cells: Cells, column: str | int, what: str) -> int:
    """The place of a column given by name or number."""
    names = cells.names
    if column in names:
        return names.index(str(column))
    try:
        wanted = operator.index(int(column) if isinstance(column, str) else column)
    except (TypeError, ValueError):
        raise _unknown_column(cells, column, what) from None
    if not -len(names) <= wanted < len(names):
        raise ArgumentError(
            f"{cells.source}: {what} column {wanted} does not exist: there are {len(names)} "
            f"columns, 0..{len(names) - 1} or from the end -1..-{len(names)}"
        )
    return wanted % len(names)


def _unknown_column(cells: Cells, name: object, what: str) -> ArgumentError:
    if not cells.header:
        return ArgumentError(
            f"{cells.source}: {what} column {quoted(name)} is not known: the file has no header, so "
            f"columns are known by number, 0..{len(cells.names) - 1}"
        )
    return UnknownNameError.of(f"{cells.source}: {what} column", name, cells.names)


def _places(cells: Cells, schema: Schema, with_target: bool) -> tuple[list[int], int | None]:
    """Where the inputs and the target of `schema` stand in another file."""
    if schema.target is None and with_target:
        raise ArgumentError(f"{cells.source}: the earlier table had no target column to be read")
    if schema.header and cells.header:
        inputs = [_column_number(cells, column.name, "input") for column in schema.columns]
        wanted = schema.target if with_target else None
        return inputs, None if wanted is None else _column_number(cells, wanted, "target")
    width, target = len(cells.names), schema.target_index
    if width == schema.width:
        return [column.index for column in schema.columns], target if with_target else None
    if width == schema.width - 1 and target is not None and not with_target:
        return [column.index - (column.index > target) for column in schema.columns], None
    without = "" if with_target or target is None else f", or {schema.width - 1} without the target"
    raise DataError(
        f"{cells.source}: has {width} columns, expected {schema.width} as in the training "
        f"table{without}"
    )


def _table(
    cells: Cells, schema: Schema, inputs: list[int], target: int | None, missing: Missing | None
) -> Table:
    """Converts the cells; rows with missing values are kept, refused or left out."""
    used = [*inputs, *([] if target is None else [target])]
    bad = np.zeros(len(cells.lines), bool)
    for index in used:
        bad |= [cell in MISSING for cell in cells.columns[index]]
    if missing is None and bad.any():
        raise _missing_error(cells, used, bad)
    check_room(cells.path, 8 * len(cells.lines) * len(schema.inputs), "leave out columns of text")
    x = np.empty((len(cells.lines), len(schema.inputs)))
    low = 0
    for column, index in zip(schema.columns, inputs, strict=True):
        high = low + len(column.inputs)
        if column.categories is None:
            x[:, low] = numbers_of(cells, index)
        else:
            x[:, low:high] = indicators(cells, index, column.categories)
        low = high
    values = None if target is None else _target(cells, schema, target, missing)
    table = Table(cells.source, x, values, np.array(cells.lines), schema, cells.delimiter)
    return _without_rows(table, bad) if missing == "drop" and bad.any() else table


def _target(cells: Cells, schema: Schema, index: int, missing: Missing | None) -> NDArray[Any]:
    if missing == "mean":
        bad = np.array([cell in MISSING for cell in cells.columns[index]])
        if bad.any():
            raise DataError(
                f"{cells.source}: the target {quoted(cells.names[index])} is missing in "
                f"{_lines(cells, bad)}: only inputs can be filled, so leave these rows out with "
                'missing="drop"'
            )
    if not schema.target_is_text:
        return numbers_of(cells, index)
    longest = max(map(len, cells.columns[index]))
    if longest > _LONGEST_CLASS:  # an array of texts takes room for the longest in every row
        raise DataError(
            f"{cells.source}: the target {quoted(cells.names[index])} holds a text of {longest} letters, "
            f"expected the names of classes, of at most {_LONGEST_CLASS}: name another column"
        )
    return np.array(cells.columns[index])


def _without_rows(table: Table, bad: NDArray[np.bool_]) -> Table:
    if bad.all():
        raise DataError(
            f"{table.source}: every row has a missing value, so none is left: "
            'use missing="mean" or leave out the columns without values'
        )
    target = None if table.target is None else table.target[~bad]
    return replace(
        table,
        x=table.x[~bad],
        target=target,
        lines=table.lines[~bad],
        dropped=int(bad.sum()),
    )


def _missing_error(cells: Cells, used: list[int], bad: NDArray[np.bool_]) -> DataError:
    columns = [
        cells.names[index]
        for index in used
        if any(cell in MISSING for cell in cells.columns[index])
    ]
    more = ", ..." if len(columns) > _SHOWN else ""
    return DataError(
        f"{cells.source}: values are missing in {_lines(cells, bad)} (columns "
        f'{", ".join(map(quoted, columns[:_SHOWN]))}{more}): use missing="mean" to fill them or '
        'missing="drop" to leave the rows out'
    )


def _lines(cells: Cells, bad: NDArray[np.bool_]) -> str:
    """`1 row (line 7)`, or `6 rows (lines 88, 167, 193, 267, 288, ...)`."""
    lines = [cells.lines[row] for row in np.flatnonzero(bad)]
    listed = ", ".join(map(str, lines[:_SHOWN])) + (", ..." if len(lines) > _SHOWN else "")
    return f"1 row (line {listed})" if len(lines) == 1 else f"{len(lines)} rows (lines {listed})"
