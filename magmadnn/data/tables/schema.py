"""Columns of a table: telling numbers from categories, and what a table's columns were.

A column is numeric when more than half of its known cells are numbers; then any other cell is an
error. Otherwise it is text, and its cells are categories.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.tables.cells import MISSING, Cells, is_number
from magmadnn.errors import DataError, quoted, shown

MOST_CATEGORIES = 256  # one input each; columns with more are names or numbers of the rows

_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Column:
    """One input column of a table.

    Attributes:
        name: from the header, or `column <index>`.
        index: its place in the file, from 0.
        categories: the texts it may hold, sorted, one input each; None: it holds numbers.
    """

    name: str
    index: int
    categories: tuple[str, ...] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that it becomes, its own or `name=category` for each category."""
        if self.categories is None:
            return (self.name,)
        return tuple(f"{self.name}={category}" for category in self.categories)


@dataclass(frozen=True)
class Schema:
    """What a table's columns were, so that another file is read the same way.

    Attributes:
        columns: the input columns.
        target: name of the target column, or None.
        target_index: its place in the file, from 0; None without one.
        target_is_text: whether the target's cells are kept as texts.
        header: whether the file had names; then columns of another file are found by name.
        width: columns of the file.
    """

    columns: tuple[Column, ...]
    target: str | None
    target_index: int | None
    target_is_text: bool
    header: bool
    width: int

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all inputs, in order."""
        return tuple(name for column in self.columns for name in column.inputs)

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        columns = [
            {
                "name": column.name,
                "index": column.index,
                "categories": None if column.categories is None else list(column.categories),
            }
            for column in self.columns
        ]
        return {
            "columns": columns,
            "target": self.target,
            "target_index": self.target_index,
            "target_is_text": self.target_is_text,
            "header": self.header,
            "width": self.width,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """The schema that `to_json` wrote; DataError if the data is something else."""
        try:
            columns = tuple(
                Column(
                    name=str(column["name"]),
                    index=int(column["index"]),
                    categories=_texts(column["categories"]),
                )
                for column in data["columns"]
            )
            target, target_index = data["target"], data["target_index"]
            return cls(
                columns=columns,
                target=None if target is None else str(target),
                target_index=None if target_index is None else int(target_index),
                target_is_text=bool(data["target_is_text"]),
                header=bool(data["header"]),
                width=int(data["width"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"columns of the training table: the saved description is damaged ({error!r})"
            ) from error


def _texts(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(map(str, values))


def is_text_column(cells: list[str]) -> bool:
    """Whether at most half of the known cells are numbers; a column of missing cells is not text."""
    if _all_numbers(cells) is not None:
        return False
    known = [cell for cell in cells if cell not in MISSING]
    return bool(known) and 2 * sum(map(is_number, known)) <= len(known)


def _all_numbers(cells: list[str]) -> NDArray[np.float64] | None:
    """The usual column, converted at once; None if some cell needs a closer look."""
    try:
        numbers = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() and "_" not in "".join(cells) else None


def numbers_of(cells: Cells, index: int) -> NDArray[np.float64]:
    """Column `index` as numbers, NaN where a cell is missing.

    Raises:
        DataError: a cell is text, NaN or infinite; names line, column and cell.
    """
    if (numbers := _all_numbers(cells.columns[index])) is not None:
        return numbers
    out = np.empty(len(cells.lines))
    for row, cell in enumerate(cells.columns[index]):
        if cell in MISSING:
            out[row] = math.nan
            continue
        if not is_number(cell):
            raise DataError(
                _at(cells, row, index) + f"is {quoted(cell)}, expected a number{_WAY_OUT}"
            )
        out[row] = float(cell)
        if not math.isfinite(out[row]):
            raise DataError(
                _at(cells, row, index) + f"is {shown(cell, 80)}, expected a finite number{_WAY_OUT}"
            )
    return out


_WAY_OUT = ": correct it, or write ? where the value is missing"


def _at(cells: Cells, row: int, index: int) -> str:
    return (
        f"{cells.source}: line {cells.lines[row]}, column {quoted(cells.names[index])}: the cell "
    )


def refuse_decimal_commas(cells: Cells, index: int) -> None:
    """Refuses a column of numbers some of which have decimal commas: it would pass for text.

    Raises:
        DataError: it is one.
    """
    known = {cell for cell in cells.columns[index] if cell not in MISSING}
    commas = sorted(filter(_DECIMAL_COMMA.fullmatch, known))
    if commas and all(map(is_number, known.difference(commas))):
        raise DataError(
            f"{cells.source}: column {quoted(cells.names[index])} holds numbers with decimal commas, "
            f"{shown(commas[0], 80)} for instance: write decimal points"
        )


def categories_of(cells: Cells, index: int) -> tuple[str, ...]:
    """The texts of a column, sorted.

    Raises:
        DataError: numbers with decimal commas, or more texts than can be one input each.
    """
    refuse_decimal_commas(cells, index)
    known = [cell for cell in cells.columns[index] if cell not in MISSING]
    found = tuple(sorted(set(known)))
    name = cells.names[index]
    if len(found) > MOST_CATEGORIES:
        raise DataError(
            f"{cells.source}: column {quoted(name)} holds {len(found)} different texts in {len(known)} "
            f"rows, at most {MOST_CATEGORIES} can become inputs: leave the column out"
        )
    return found


def indicators(cells: Cells, index: int, categories: tuple[str, ...]) -> NDArray[np.float64]:
    """One column per category: 1 where the cell is that category, else 0; NaN where missing.

    Raises:
        DataError: a cell is none of the categories.
    """
    place = {category: number for number, category in enumerate(categories)}
    out = np.zeros((len(cells.lines), len(categories)))
    for row, cell in enumerate(cells.columns[index]):
        if cell in MISSING:
            out[row] = math.nan
        elif cell in place:
            out[row, place[cell]] = 1.0
        else:
            raise DataError(
                _at(cells, row, index)
                + f"is {quoted(cell)}, which the training table does not hold: "
                f"known are {shown(', '.join(categories), 4000)}"
            )
    return out
