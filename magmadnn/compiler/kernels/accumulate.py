"""A kernel that accumulates along an axis: running sums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Accumulate:
    """result[outer, i, column] = source[outer, 0, column] + ... + source[outer, i, column], in this order.

    With `reverse` sums begin at the other end. On the processor sums are those of NumPy's
    `add.accumulate`, bit for bit: one addition after the other, whatever way lines are cut for threads.
    On a GPU they are too, but for lines of 32 or more neighbouring elements (`columns` is 1): those are
    scanned by a warp, in an order that depends on the length alone.

    Slots: `row0, row1` and `column0, column1`, the parts of outer axis and columns; `columns, length`,
    sizes; `source` and `result`, [outer, length, columns], both contiguous.

    Attributes:
        dtype: of source, sums and result: float32, float64, int64.
        reverse: whether sums begin with the last element.
    """

    dtype: str
    reverse: bool
    slots = ("row0", "row1", "column0", "column1", "columns", "length", "source", "result")
