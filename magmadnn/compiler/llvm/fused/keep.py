"""The kernel that keeps a value of each batch, or copies a value to where it belongs."""

from __future__ import annotations

from magmadnn.compiler.kernels.data_rows import Keep
from magmadnn.compiler.llvm.expressions.formulas import memory_item
from magmadnn.compiler.llvm.ir.builder import Code
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target


def write_keep(kernel: Keep, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    item = memory_item(kernel.dtype)
    source, result = frame.array("source", item), frame.array("result", item)
    goal = result.at(frame.batch * frame.integer("step"))
    with code.loop(frame.integer("column0"), frame.integer("column1")) as column:
        goal[column] = source[column]
