"""The kernel that fetches a batch: rows of a data set in the order of a permutation."""

from __future__ import annotations

from magmadnn.compiler.kernels.data_rows import Gather
from magmadnn.compiler.llvm.expressions.formulas import cast, memory_item
from magmadnn.compiler.llvm.ir.builder import I64, Code, item_bytes
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target


def write_gather(kernel: Gather, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    source = frame.array("source", memory_item(kernel.dtype))
    result = frame.array("result", memory_item(kernel.result_dtype))
    order, columns = frame.array("order", I64), frame.integer("columns")
    lanes = target.lanes(max(item_bytes(source.item), item_bytes(result.item)))
    first, step = frame.batch * frame.integer("batch_rows"), frame.integer("source_row")
    end = frame.integer("row1")
    with code.loop(frame.integer("row0"), end) as row:
        following = source.at(order[first + code.smaller(row + 1, end - 1)] * step)
        origin = source.at(order[first + row] * step)
        goal = result.at(row * frame.integer("result_row"))
        with code.choose(columns >= lanes) as (wide, narrow):
            with wide:
                whole = columns - columns % lanes
                with code.loop(0, whole, lanes) as column:
                    code.prefetch(following, column, written=False)  # rows lie anywhere
                    goal.put(column, cast(code, origin.vector(column, lanes), goal.item))
                with code.when(whole < columns):  # the last ones, some of them a second time
                    last = columns - lanes
                    goal.put(last, cast(code, origin.vector(last, lanes), goal.item))
            with narrow, code.loop(0, columns) as column:
                goal[column] = cast(code, origin[column], goal.item)
