"""Copies of values with one constant around them: a kernel over rows that finds each element by its indices.

A table of boxes (`Move`) is looked up for each row of a box, and the constants beside a row are boxes of
their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from magmadnn.compiler.kernels.operands import PADDED, ROW_AXES, PaddedOperand, Result
from magmadnn.compiler.kernels.rows import NARROW_ROW, Rows, Stage
from magmadnn.compiler.padding import padding_of
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.cpu.slot_values import padded_numbers

from .hazards import Span

_DTYPES = ("float32", "float64", "bfloat16", "float16")


def padded_copy(
    node: Node, operand: Array, result: Array, sizes: Mapping[str, int], places: tuple[Span, Span]
) -> tuple[Rows, dict[str, int]] | None:
    """The kernel of a movement and the values of its slots; None where boxes are needed, or as good.

    Args:
        node: a movement of one operand.
        operand: an array that lies as the operand does.
        result: the same of the result.
        sizes: of symbolic dimensions.
        places: the first address of both, and those of the memory that they lie in behind it.
    """
    (source, source_end), (goal, goal_end) = places
    columns = result.shape[-1] if result.ndim else 0
    apart = source_end <= goal or goal_end <= source  # else a part of it lies there already
    if node.dtype.name not in _DTYPES or columns < NARROW_ROW or not apart:
        return None
    if not result.size or not operand.size or not result.flags.c_contiguous:
        return None
    found = padding_of(node, operand, result.shape, sizes)
    if found is None or len(found.axes) > ROW_AXES:
        return None
    edges, dtype = found.has_edges, node.dtype.name
    read = PaddedOperand("x0", dtype, PADDED, len(found.axes), "", found.fill, edges)
    stored = Result("y0", dtype, ("argument", 0))
    wide = "float64" if dtype == "float64" else "float32"
    kernel = Rows((read,), (Stage(store=(stored,)),), wide)
    values = {"row0": 0, "row1": math.prod(result.shape[:-1]), "column0": 0, "column1": columns}
    values |= {"x0": source, "y0": goal, "y0_row": columns}
    values |= zip(read.slots[1:], padded_numbers(found, read), strict=True)
    return kernel, values
