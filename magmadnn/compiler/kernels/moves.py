"""Kernels that only bring elements to other places: runs of a copy, rows by number and their transpose."""

from __future__ import annotations

from dataclasses import dataclass

MOVE_WORDS = 5  # of a run: place in the result, source, place there, step there, how many elements


@dataclass(frozen=True)
class Move:
    """Copies the runs `row0` to `row1` of a table: `result[to + i] = x[source][place + i * step]`.

    Slots: `row0, row1`; `table`, int64 [runs, 5]; `result`; `x0`, `x1`, ...: addresses of the sources, which
    need not be contiguous. Places and steps count elements and may be negative.

    Attributes:
        item_bytes: of an element, 1, 2, 4 or 8.
        sources: how many there are.
    """

    item_bytes: int
    sources: int

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots."""
        return ("row0", "row1", "table", "result", *(f"x{k}" for k in range(self.sources)))


FAULTS = "faults"  # the slot of a word that is not 0 once a row was asked for that is not there
_PICK_SLOTS = (
    "row0", "row1", "column0", "column1", "columns", "count", "picks", "index", "source", "result",
    FAULTS,
)  # fmt: skip


@dataclass(frozen=True)
class Pick:
    """result[outer, pick, column] = source[outer, index[pick], column], rows by number.

    Rows are pairs of outer and pick. A number that is not from 0 to `count - 1` sets `faults[0]` to 1, and
    nothing is read or written for it. Slots: `row0, row1, column0, column1`, the part of the result;
    `columns, count, picks`, sizes; `index`, `source`, `result`, all contiguous; `faults`, int64.

    Attributes:
        item_bytes: of an element, 1, 2, 4 or 8.
        index_dtype: of the numbers.
    """

    item_bytes: int
    index_dtype: str
    slots = _PICK_SLOTS


@dataclass(frozen=True)
class AddPicked:
    """result[outer, i, column] = the sum of source[outer, pick, column] over picks with index[pick] = i.

    Sums begin with 0 and are taken in the order of picks. Rows are the outer axis; else as `Pick`.

    Attributes:
        dtype: of source and result.
        index_dtype: of the numbers.
    """

    dtype: str
    index_dtype: str
    slots = _PICK_SLOTS
