"""The kernel that moves addresses on from batch to batch."""

from __future__ import annotations

from magmadnn.compiler.kernels.data_rows import Advance
from magmadnn.compiler.llvm.ir.builder import I64, POINTER, Code
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target


def write_advance(kernel: Advance, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    table = frame.array("table", I64)
    with code.loop(0, frame.integer("count")) as number:
        place, base, step = (3 * number + k for k in range(3))
        goal = code.array(table.viewed(POINTER)[place], I64)
        goal[0] = table[base] + frame.batch * table[step]
