"""The kernel that fetches a batch: rows of a data set in the order of a permutation."""

from __future__ import annotations

from dataclasses import dataclass

from .builder import I64, Code, item_bytes
from .formulas import cast, memory_item
from .kernel import Frame
from .target import Target


@dataclass(frozen=True)
class Gather:
    """result[i] = source[order[batch * batch_rows + i]] for rows `row0` to `row1` of the batch.

    Slots: `row0, row1, columns, batch_rows`; `source, source_row`, `result, result_row`, addresses and
    elements from row to row; `order`, int64.

    Attributes:
        dtype: of the data set.
        result_dtype: of the batch, such as float32 for bytes of images.
    """

    dtype: str
    result_dtype: str
    slots = (
        "row0", "row1", "columns", "batch_rows", "source", "source_row", "order", "result",
        "result_row",
    )  # fmt: skip

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        source = frame.array("source", memory_item(self.dtype))
        result = frame.array("result", memory_item(self.result_dtype))
        order, columns = frame.array("order", I64), frame.integer("columns")
        lanes = target.lanes(max(item_bytes(source.item), item_bytes(result.item)))
        first = frame.batch * frame.integer("batch_rows")
        with code.loop(frame.integer("row0"), frame.integer("row1")) as row:
            origin = source.at(order[first + row] * frame.integer("source_row"))
            goal = result.at(row * frame.integer("result_row"))
            whole = columns - columns % lanes
            with code.loop(0, whole, lanes) as column:
                goal.put(column, cast(code, origin.vector(column, lanes), goal.item))
            with code.loop(whole, columns) as column:
                goal[column] = cast(code, origin[column], goal.item)
