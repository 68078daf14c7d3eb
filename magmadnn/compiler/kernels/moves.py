"""Kernels that only bring elements to other places: boxes of a copy, rows by number and their transpose."""

from __future__ import annotations

from dataclasses import dataclass

OUTER_AXES = 4  # of a box, beside the axis along which elements are copied one after the other
# Words of a box: source; its first element there, and in the result; its first row among all rows;
# then for each outer axis its length, step in the result and step in the source; and the same for a row.
SOURCE, PLACE, TO, FIRST_ROW, AXES = range(5)
BOX_WORDS = AXES + 3 * (OUTER_AXES + 1)


@dataclass(frozen=True)
class Move:
    """Copies boxes: `result[to + i . to_steps] = x[source][place + i . steps]` for all indices i of a box.

    A row is what the last axis numbers. The rows of all boxes are counted on, those of the first box first,
    and the kernel copies the rows `row0` to `row1`. A pad is one box for its operand, and one or two for
    each side, whose source is a constant with steps of 0.

    Slots: `row0, row1`; `boxes`, how many there are; `table`, int64 [boxes, BOX_WORDS]; `result`; `x0`, `x1`,
    ...: addresses of the sources, which need not be contiguous. Places and steps count elements; those of
    sources may be negative.

    Attributes:
        item_bytes: of an element, 1, 2, 4 or 8; or 16, of several that are copied together.
        sources: how many there are.
    """

    item_bytes: int
    sources: int

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots."""
        places = (f"x{k}" for k in range(self.sources))
        return ("row0", "row1", "boxes", "table", "result", *places)


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
