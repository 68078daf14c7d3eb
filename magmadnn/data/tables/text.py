"""Columns of a text file: telling numbers from dates and categories.

A column is numeric when more than half of its known cells are numbers; then any other cell is an
error. One of dates alone, as ISO 8601 writes them, holds dates. Otherwise it is text, and its cells are
categories.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.tables.cell_grid import Floats, Texts
from magmadnn.data.tables.cells import MISSING, Cells, to_number
from magmadnn.data.tables.dates import EXAMPLES, day, written, written_kind
from magmadnn.data.tables.values import Kind
from magmadnn.errors import DataError, quoted, shown

_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?")
_TRUTH = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}
_EXPECTED: dict[str, str] = {"bool": "true or false"} | {
    kind: f"a date such as {example}, as in training" for kind, example in EXAMPLES.items()
}
_LONGEST_CLASS = 1000  # letters
_WAY_OUT = ": correct it, or write ? where the value is missing"


class TextGrid:
    """The cells of a file as a `Grid`; the attributes are described there."""

    without_rows = 'missing="drop" to leave the rows out'

    def __init__(self, cells: Cells) -> None:
        self._cells, self._columns, self._decimal = cells, cells.columns, cells.decimal
        self.source, self.names, self.header = cells.source, cells.names, cells.header
        self.unnamed, self.delimiter = cells.unnamed, cells.delimiter
        self.rows = len(cells.lines)
        self.lines: NDArray[np.int64] | None = np.array(cells.lines, np.int64)
        self._converted: dict[int, Floats | None] = {}  # by column: each is asked for several times

    def kind(self, index: int) -> Kind:
        """Dates or categories if at most half of the known cells are numbers; numbers if all are missing."""
        if self._all_numbers(index) is not None:
            return "number"
        cells = self._columns[index]
        known = [cell for cell in cells if cell not in MISSING]
        counted = sum(to_number(cell, self._decimal) is not None for cell in known)
        if not known or 2 * counted > len(known):
            return "number"
        return written_kind(known) or "category"

    def missing(self, index: int) -> NDArray[np.bool_]:
        """See `Grid`."""
        if self._all_numbers(index) is not None:
            return np.zeros(self.rows, bool)
        return np.array([cell in MISSING for cell in self._columns[index]], bool)

    def numbers(self, index: int, kind: Kind = "number") -> Floats:
        """See `Grid`; truth values are `true` and `false`, or 1 and 0, dates as ISO 8601 writes them.

        Raises:
            DataError: a cell is text or infinite; names line, column and cell.
        """
        if kind == "number" and (numbers := self._all_numbers(index)) is not None:
            return numbers
        if kind == "duration":
            raise DataError(
                f"{self.source}: column {quoted(self.names[index])} held durations in training, which are "
                "not read from text: predict from Python, with a table of pandas, polars or pyarrow"
            )
        out = np.empty(self.rows)
        for row, cell in enumerate(self._columns[index]):
            if cell in MISSING:
                out[row] = math.nan
                continue
            value = self._number(cell, kind)
            if value is None:
                self.refuse_decimal_commas(index)
                expected = _EXPECTED.get(kind, f"a number{self._comma_words()}")
                raise DataError(
                    self._at(row, index) + f"{quoted(cell)}, expected {expected}{_WAY_OUT}"
                )
            if not math.isfinite(value):
                raise DataError(
                    self._at(row, index) + f"{shown(cell, 80)}, expected a finite number{_WAY_OUT}"
                )
            out[row] = value
        return out

    def _number(self, cell: str, kind: Kind) -> float | None:
        """A cell that is not missing, as a number of a kind; None if it is none."""
        if kind == "bool":
            return _TRUTH.get(cell.lower())
        if kind == "date" or kind == "instant":
            date = written(cell, kind)
            return None if date is None else day(date)
        return to_number(cell, self._decimal)

    def texts(self, index: int) -> Texts:
        """See `Grid`."""
        self.refuse_decimal_commas(index)
        found = [None if cell in MISSING else cell for cell in self._columns[index]]
        return np.array(found, object)

    def raw(self, index: int, as_text: bool) -> NDArray[Any]:
        """See `Grid`; numbers are float64.

        Raises:
            DataError: a text that is too long for the name of a class.
        """
        if not as_text:
            return self.numbers(index).copy()
        longest = max(map(len, self._columns[index]))
        if longest > _LONGEST_CLASS:  # an array of texts takes room for the longest in every row
            raise DataError(
                f"{self.source}: the target {quoted(self.names[index])} holds a text of {longest} letters, "
                f"expected the names of classes, of at most {_LONGEST_CLASS}: name another column"
            )
        return np.array(self._columns[index])

    def refuse_decimal_commas(self, index: int) -> None:
        """Refuses a column of numbers some of which have decimal commas: it would pass for text.

        Raises:
            DataError: it is one.
        """
        if self._decimal == ",":
            return
        known = {cell for cell in self._columns[index] if cell not in MISSING}
        commas = sorted(filter(_DECIMAL_COMMA.fullmatch, known))
        if commas and all(to_number(cell) is not None for cell in known.difference(commas)):
            raise DataError(
                f"{self.source}: column {quoted(self.names[index])} holds numbers with decimal commas, "
                f"{shown(commas[0], 80)} "
                'for instance: give decimal="," or write decimal points'
            )

    def _comma_words(self) -> str:
        return " with a decimal comma" if self._decimal == "," else ""

    def _at(self, row: int, index: int) -> str:
        line = self._cells.lines[row]
        return f"{self.source}: line {line}, column {quoted(self.names[index])}: the cell is "

    def _all_numbers(self, index: int) -> Floats | None:
        """The usual column, which has no missing cell; None if some cell needs a closer look."""
        if index not in self._converted:
            self._converted[index] = (
                None if self._decimal != "." else _as_floats(self._columns[index])
            )
        return self._converted[index]


def _as_floats(cells: list[str]) -> Floats | None:
    """Finite numbers, converted at once, not to be written to; None if some cell is something else."""
    try:
        numbers = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None
    if not np.isfinite(numbers).all() or "_" in "".join(cells):
        return None
    numbers.flags.writeable = False
    return numbers
