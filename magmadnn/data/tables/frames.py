"""Tables of other libraries as a `Grid`: columns by name, each settled when it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.tables.cell_grid import Floats, Texts
from magmadnn.data.tables.cells import UNNAMED
from magmadnn.data.tables.libraries import RawTable, raw_column
from magmadnn.data.tables.values import (
    KINDS,
    Kind,
    Values,
    refuse_numbers_as_text,
    settled,
    text_of,
)
from magmadnn.errors import DataError


class FrameGrid:
    """A table of another library as a `Grid`; the attributes are described there.

    Args:
        table: its columns.
        source: how messages call it.
    """

    lines: NDArray[np.int64] | None = None
    without_rows = "leave the rows out"

    def __init__(self, table: RawTable, source: str) -> None:
        self.source, self.names, self.header = source, table.names, table.is_named
        self.rows, self._table = table.rows, table
        self.unnamed = bool(table.names) and table.names[0] in UNNAMED
        self._settled: dict[int, Values] = {}

    def values(self, index: int) -> Values:
        """The values of a column.

        Raises:
            DataError, DTypeError: they are nothing that a network can take.
        """
        if index not in self._settled:
            column = raw_column(self._table.columns[index], self.names[index])
            self._settled[index] = settled(column, self._at(index))
        return self._settled[index]

    def kind(self, index: int) -> Kind:
        """See `Grid`.

        Raises:
            DataError: numbers are written as texts, and nobody said that they are categories.
        """
        values = self.values(index)
        if values.texts:
            refuse_numbers_as_text(values.data, self._at(index))
        return values.kind

    def missing(self, index: int) -> NDArray[np.bool_]:
        """See `Grid`."""
        data = self.values(index).data
        if data.dtype.kind == "O":
            return np.array([value is None for value in data], bool)
        return np.isnan(data) if data.dtype.kind == "f" else np.zeros(self.rows, bool)

    def numbers(self, index: int, kind: Kind = "number") -> Floats:
        """See `Grid`; truth values pass for the numbers 1 and 0, and these for truth values."""
        values = self.values(index)
        fits = values.kind == kind or (values.kind == "bool" and kind == "number")
        if values.kind == "number" and kind == "bool":
            known = values.data[~self.missing(index)]
            fits = bool(((known == 0) | (known == 1)).all())
        if not fits:
            raise DataError(
                f"{self._at(index)} holds {KINDS[values.kind]}, expected {KINDS[kind]} as in training"
            )
        return values.data.astype(np.float64)

    def texts(self, index: int) -> Texts:
        """See `Grid`; numbers and truth values by the texts that they are written with."""
        values = self.values(index)
        if values.kind == "category":
            return values.data
        if values.kind in ("duration", "date", "instant"):
            raise DataError(f"{self._at(index)} holds {KINDS[values.kind]}, expected categories")
        missing = self.missing(index)
        written = [None if no else text_of(v) for no, v in zip(missing, values.data, strict=True)]
        if values.kind == "bool":  # with missing values these are 1.0 and 0.0
            written = [
                None if no else str(bool(v)) for no, v in zip(missing, values.data, strict=True)
            ]
        found = np.empty(self.rows, object)
        found[:] = written
        return found

    def raw(self, index: int, as_text: bool) -> NDArray[Any]:
        """See `Grid`."""
        if not as_text:
            return self.values(index).data
        texts = self.texts(index)
        return np.array(["" if text is None else text for text in texts])

    def _at(self, index: int) -> str:
        return f"{self.source}: column {self.names[index]!r}"
