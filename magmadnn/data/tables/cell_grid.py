"""What is asked of a table, whether it stands in a text file or came from another library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.tables.cells import to_number
from magmadnn.data.tables.schema import Column
from magmadnn.data.tables.values import Kind, text_of
from magmadnn.errors import DataError, quoted, shown
from magmadnn.storage.input_files import check_room

Floats = NDArray[np.float64]
Texts = NDArray[Any]  # objects: texts, None where missing

MOST_CATEGORIES = 256  # one input each; columns with more are names or numbers of the rows

_FEW_ROWS = 20  # of which each may have a category of its own
_SHOWN = 5  # rows, lines or names that a message lists


class Grid(Protocol):
    """Columns of values.

    Attributes:
        source: how messages call the table.
        names: of the columns.
        header: whether the table has names of its own.
        unnamed: the first column, if it alone has no name: what an index of rows leaves in a file.
        rows: their number.
        lines: the line of each row in its file, from 1; None where there is none.
        without_rows: how rows with missing values are left out.
    """

    source: str
    names: tuple[str, ...]
    header: bool
    unnamed: bool
    rows: int
    lines: NDArray[np.int64] | None
    without_rows: str

    def kind(self, index: int) -> Kind:
        """What a column holds."""
        ...

    def missing(self, index: int) -> NDArray[np.bool_]:
        """Where its values are missing."""
        ...

    def numbers(self, index: int, kind: Kind = "number") -> Floats:
        """Its values as numbers of a kind that is no category; NaN where missing.

        Raises:
            DataError, DTypeError: they are something else.
        """
        ...

    def texts(self, index: int) -> Texts:
        """Its values as texts.

        Raises:
            DataError: they are numbers that are written in another way, so that they pass for texts.
        """
        ...

    def raw(self, index: int, as_text: bool) -> NDArray[Any]:
        """Its values as a target: texts, or numbers with the dtype that they have."""
        ...


def rows_text(grid: Grid, rows: Sequence[int] | NDArray[Any]) -> str:
    """`1 row (line 7)`, `6 rows (lines 88, 167, 193, 267, 288, ...)`, or `1 row (row 6)`."""
    if grid.lines is None:
        return listed("row", rows)
    return listed("line", [int(grid.lines[row]) for row in rows])


def listed(word: str, numbers: Sequence[int] | NDArray[Any]) -> str:
    """`1 row (line 7)`, `6 rows (lines 88, 167, ...)`."""
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    if len(numbers) == 1:
        return f"1 row ({word} {shown})"
    return f"{len(numbers)} rows ({word}s {shown})"


def names_text(names: Sequence[str]) -> str:
    """The first names, in quotes."""
    return ", ".join(map(quoted, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")


def row_text(grid: Grid, row: int) -> str:
    """`line 7`, or `row 6`."""
    return f"row {row}" if grid.lines is None else f"line {grid.lines[row]}"


def categories_of(grid: Grid, index: int, as_asked: bool = False) -> tuple[str, ...]:
    """The different texts of a column, sorted.

    Args:
        grid: the table.
        index: the column.
        as_asked: whether somebody said that it holds categories. Then it may hold numbers, of which 3, 3.0
            and 03 are the same, and more than one category for each two rows.

    Raises:
        DataError: more than can be one input each, or numbers in disguise.
    """
    known = [text for text in grid.texts(index) if text is not None]
    known = list(map(plain_number, known)) if as_asked else known
    found = tuple(sorted(set(known)))
    most = MOST_CATEGORIES if as_asked or len(known) <= _FEW_ROWS else len(known) // 2
    if len(found) > min(most, MOST_CATEGORIES):
        name = grid.names[index]
        raise DataError(
            f"{grid.source}: column {quoted(name)} holds {len(found)} different texts in {len(known)} rows, "
            f"too many for categories (at most {min(most, MOST_CATEGORIES)}): leave the column out with "
            f"ignore=[{name!r}]"
        )
    return found


def plain_number(text: str) -> str:
    """The plain spelling of a number, `3` for 3.0 and 03; another text as it is."""
    try:
        return str(int(text))
    except ValueError:
        number = to_number(text)
    return text if number is None else text_of(number)


def indicators(grid: Grid, index: int, categories: tuple[str, ...]) -> Floats:
    """One column per category: 1 where the value is that category, else 0; NaN where missing.

    Raises:
        DataError: a value is none of the categories.
    """
    place = {category: number for number, category in enumerate(categories)}
    out = np.zeros((grid.rows, len(categories)))
    for row, text in enumerate(grid.texts(index)):
        if text is None:
            out[row] = np.nan
        elif (number := place.get(text, place.get(plain_number(text)))) is not None:
            out[row, number] = 1.0
        else:
            at = f"{grid.source}: {row_text(grid, row)}, column {quoted(grid.names[index])}"
            raise DataError(
                f"{at}: {quoted(text)} is none of the categories of the training table: known are "
                f"{shown(', '.join(categories), 4000)}"
            )
    return out


def matrix(grid: Grid, columns: Sequence[Column], places: Sequence[int]) -> Floats:
    """The inputs of a table [rows, inputs], NaN where a value is missing.

    Args:
        grid: the table.
        columns: what its inputs are.
        places: where they stand.

    Raises:
        DataError, DTypeError: a column is not what it should be.
    """
    width = sum(len(column.inputs) for column in columns)
    check_room(grid.source, 8 * grid.rows * width, "leave out columns of text")
    x = np.empty((grid.rows, width))
    low = 0
    for column, index in zip(columns, places, strict=True):
        high = low + len(column.inputs)
        if column.categories is None:
            x[:, low] = grid.numbers(index, column.kind)
        else:
            x[:, low:high] = indicators(grid, index, column.categories)
        low = high
    return x
