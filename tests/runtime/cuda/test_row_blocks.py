"""Reductions over many rows on a device, in blocks of rows."""

from __future__ import annotations

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.cuda.module import choose
from magmadnn.compiler.cuda.text.variant import Chip
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.operands import ROW, Operand, Result
from magmadnn.compiler.kernels.rows import Reduction
from magmadnn.compiler.lower.row_blocks import in_blocks
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.runtime import Executable
from magmadnn.tensor import Operation
from tests.runtime.cuda.devices import DEVICES, on

PROCESSORS = Chip().processors
UNIT = np.finfo(np.float32).eps


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "columns"), [(8192, 16), (8211, 17), (20011, 7)])
def test_sums_over_many_rows(device: str, rows: int, columns: int) -> None:
    """A result, and what is made of it, twice: each run finds the same bits."""
    x = np.random.default_rng(3).standard_normal((rows, columns)).astype(np.float32)
    node = placeholder("x", Spec(x.shape, x.dtype))
    made = [ops.mean(Operation(node), axis=0) * 2.0 + 1.0, ops.max(Operation(node), axis=0)]
    with on(device):
        there = Executable([m.node for m in made], executor="native", device="cuda")
        mean, top = there.run({node: x})
        again, _ = there.run({node: x})
    assert mean.tobytes() == again.tobytes()
    np.testing.assert_array_equal(top, x.max(0))
    # a lane has some rows of a block, 32 lanes follow; as many again of blocks; then the mean's own
    allowed = UNIT * (rows / 256 + 128) * abs(x.astype(np.float64)).mean(0) * 2 + 8 * UNIT
    assert np.all(abs(mean - (x.astype(np.float64).mean(0) * 2 + 1)) <= allowed)


@pytest.mark.parametrize(("rows", "columns"), [(16 * 56 * 56, 64), (401 * 408, 64), (10**6, 3)])
def test_there_is_a_block_for_each_multiprocessor(rows: int, columns: int) -> None:
    kernel = Columns(
        (Operand("x", "float32"),),
        (Reduction("total", "add", ("argument", 0)),),
        (Result("y", "float32", ("value", "total"), ROW),),
    )
    values = {
        "row0": 0,
        "row1": rows,
        "column0": 0,
        "column1": columns,
        "x": 0,
        "x_row": columns,
        "y": 0,
    }
    blocks = in_blocks(kernel, values, 0)
    assert blocks is not None
    first, last = (
        choose(blocks.first, blocks.values, Chip()),
        choose(blocks.last, blocks.last_values, Chip()),
    )
    assert first is not None and last is not None
    assert first.grid[0] >= max(128, PROCESSORS)
    assert np.prod(first.block) >= 512
