"""Reductions over many rows on a device, in blocks of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.cuda import module
from magmadnn.compiler.cuda.fused import cut_columns
from magmadnn.compiler.cuda.fused.columns import ColumnsVariant
from magmadnn.compiler.cuda.module import choose
from magmadnn.compiler.cuda.text.variant import Chip
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.operands import COLUMN, ROW, Operand, Result
from magmadnn.compiler.kernels.rows import Reduction, Rows, Stage
from magmadnn.compiler.lower.row_blocks import in_blocks
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.tensor import Operation
from tests.runtime.cuda.devices import DEVICES, on

PROCESSORS = Chip().processors
UNIT = np.finfo(np.float32).eps


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "columns"), [(8192, 16), (8211, 17), (20011, 7), (8211, 36)])
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
        choose(blocks.first, blocks.values[0], Chip()),
        choose(blocks.last, blocks.last_values, Chip()),
    )
    assert first is not None and last is not None
    assert first.grid[0] >= max(128, PROCESSORS)
    assert isinstance(first.variant, ColumnsVariant)
    assert np.prod(first.block) * first.variant.width >= 512  # elements that a block reads at once


@pytest.mark.parametrize(
    ("rows", "columns", "across"),
    [(802816, 256, 32), (50176, 1024, 32), (802816, 64, 16), (50176, 192, 16)],
)
def test_blocks_of_float32_come_in_one_round(rows: int, columns: int, across: int) -> None:
    kernel = Columns(
        (Operand("x", "float32"),),
        (Reduction("total", "add", ("argument", 0)),),
        (Result("y", "float32", ("value", "total"), ROW),),
    )
    values = {"row0": 0, "row1": rows, "column0": 0, "column1": columns}
    blocks = in_blocks(kernel, values | {"x": 0, "x_row": columns, "y": 0}, 0)
    assert blocks is not None
    launch = choose(blocks.first, blocks.values[0], Chip())
    assert launch is not None and isinstance(launch.variant, ColumnsVariant)
    assert launch.block[:2] == (across, 512 // across)
    assert across == 16 or launch.grid[0] <= 2 * PROCESSORS


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(1, 5), (3, 33), (100, 7), (700, 33), (2000, 128), (8211, 17), (8211, 36), (20011, 7)],
)
def test_mean_and_variance_from_one_reading(device: str, rows: int, columns: int) -> None:
    """All rows at once, in a loop, in groups of columns, in blocks; the mean is large."""
    rng = np.random.default_rng(3)
    x = (1e4 + rng.standard_normal((rows, columns))).astype(np.float32)
    x[0, 1] = 0  # far from the others, and the first
    x[:, 2] = 7.25
    node = placeholder("x", Spec(x.shape, x.dtype))
    made = [ops.mean(Operation(node), axis=0), ops.var(Operation(node), axis=0)]
    with on(device):
        there = Executable([m.node for m in made], executor="native", device="cuda")
        mean, variance = there.run({node: x})
        assert there.text({}).count("columns [") == 1
    wide = x.astype(np.float64)
    # A lane has up to 64 of the rows, and loses as many units at the most; then come 32 lanes and the blocks.
    roundings = 64 + 32 + 64
    off = (UNIT * roundings * abs(wide).mean(0)) ** 2
    np.testing.assert_allclose(mean, wide.mean(0), rtol=UNIT * (rows / 256 + 128))
    assert np.all(abs(variance - wide.var(0)) <= 2 * roundings * UNIT * wide.var(0) + off)
    assert variance[2] == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("rows", "columns", "width"), [(8211, 264, 8), (16421, 72, 8), (9001, 1028, 4), (8209, 1030, 2)]
)
def test_statistics_of_halves_by_wide_loads(
    device: str, rows: int, columns: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that are not full, blocks of few rows, a last one that is short; one value in a column."""
    chosen: list[ColumnsVariant] = []
    before = cut_columns.choose_columns

    def choose_columns(*given: Any) -> Any:
        made = before(*given)
        chosen.append(made.variant)
        return made

    monkeypatch.setitem(module._CHOICES, Columns, choose_columns)
    rng = np.random.default_rng(3)
    x = (100 + 8 * rng.standard_normal((rows, columns))).astype(as_dtype("bfloat16"))
    x[0, 1] = 0
    x[:, 2] = 7.25
    node = placeholder("x", Spec(x.shape, x.dtype))
    wide = ops.cast(Operation(node), "float32")
    made = [ops.mean(wide, axis=0), ops.var(wide, axis=0)]
    with on(device):
        there = Executable([m.node for m in made], executor="native", device="cuda")
        mean, variance = there.run({node: x})
    assert {one.width for one in chosen if one.kernel.in_pieces} == {width}
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(0), rtol=UNIT * 256)
    off = (UNIT * 128 * abs(exact).mean(0)) ** 2
    assert np.all(abs(variance - exact.var(0)) <= 256 * UNIT * exact.var(0) + off)
    assert variance[2] == 0


@pytest.mark.parametrize("device", DEVICES)
def test_deviations_of_what_is_not_finite(device: str) -> None:
    """An infinity or NaN in a block is one in the mean, and NaN in the variance."""
    x = np.ones((20011, 3), np.float32)
    x[12345, 1], x[5, 2] = np.inf, np.nan
    node = placeholder("x", Spec(x.shape, x.dtype))
    made = [ops.mean(Operation(node), axis=0), ops.var(Operation(node), axis=0)]
    with on(device):
        mean, variance = Executable([m.node for m in made], executor="native", device="cuda").run(
            {node: x}
        )
    np.testing.assert_array_equal(mean, [1, np.inf, np.nan])
    np.testing.assert_array_equal(variance, [0, np.nan, np.nan])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [9000])
def test_batch_norm_is_what_it_is_on_the_processor(device: str, batch: int) -> None:
    """Training steps of a network with BatchNorm, with and without blocks of rows."""
    rng = np.random.default_rng(5)
    x = (3 + rng.standard_normal((batch, 12))).astype(np.float32)
    y = rng.integers(0, 3, batch)

    def trained(where: str) -> md.Model:
        layers = [
            md.layers.Input((12,)),
            md.layers.Dense(16),
            md.layers.BatchNorm(),
            md.layers.Dense(3),
        ]
        net = md.Model(
            layers, loss="cross_entropy", optimizer=md.optim.SGD(0.1), seed=5, device=where
        )
        net.fit(x, y, epochs=1, batch_size=batch, verbose=False)
        return net

    here = trained("cpu").values()
    with on(device):
        there = trained("cuda").values()
    for name, value in here.items():
        np.testing.assert_allclose(there[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1048583,), (0,)), ((2053, 1031), (0, 1)), ((3, 8209, 37), (1,)), ((2, 1048601), (1,))],
)
def test_a_batch_of_any_size(device: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """A sum of what is computed, over few long rows or matrices whose number is not known beforehand."""
    x = np.random.default_rng(5).uniform(0.5, 1.5, shape).astype(np.float32)
    fed = md.placeholder("x", (None, *shape[1:]), np.float32)
    made = [ops.mean(fed * 2.0, axis=axes) + 1.0, ops.max(fed, axis=axes), fed - 1.0]
    with on(device):
        there = Executable([m.node for m in made], executor="native", device="cuda")
        mean, top, less = there.run({fed.node: x})
        again, _, _ = there.run({fed.node: x})
    assert np.asarray(mean).tobytes() == np.asarray(again).tobytes()
    np.testing.assert_array_equal(top, x.max(axes))
    np.testing.assert_array_equal(less, x - np.float32(1))
    np.testing.assert_allclose(mean, 2 * x.astype(np.float64).mean(axes) + 1, rtol=64 * UNIT)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1 << 20), (1, 1048583), (2, 5000009)])
def test_long_rows_have_a_block_for_each_multiprocessor(rows: int, columns: int) -> None:
    kernel = Rows(
        (Operand("x", "float32"),),
        (
            Stage(
                reduce=(Reduction("total", "add", ("argument", 0)),),
                store_row=(Result("y", "float32", ("value", "total"), COLUMN),),
            ),
        ),
    )
    values = {"row0": 0, "row1": rows, "column0": 0, "column1": columns}
    blocks = in_blocks(kernel, values | {"x": 0, "x_row": columns, "y": 0}, 0)
    assert blocks is not None
    launches = [choose(blocks.first, own, Chip()) for own in blocks.values]
    assert sum(one.grid[0] for one in launches if one is not None) >= 128


@pytest.mark.parametrize("device", DEVICES)
def test_long_rows_that_are_walked_over_again(device: str) -> None:
    """The first of equal places in a row of unknown length; places and softmax of two of a known one."""
    rng = np.random.default_rng(5)
    line, wide = md.placeholder("line", ("n",)), md.placeholder("wide", (2, 1048601))
    made = [ops.argmax(line), ops.argmin(-wide, axis=1), ops.softmax(wide, axis=1)]
    fed = rng.standard_normal(1048583).astype(np.float32)
    fed[[77_777, 900_001]] = 9.0
    x = rng.standard_normal((2, 1048601)).astype(np.float32)
    with on(device):
        run = Executable([y.node for y in made], executor="native", device="cuda", check=True)
        largest, places, shares = run.run({line.node: fed, wide.node: x})
    assert largest == 77_777
    np.testing.assert_array_equal(places, x.argmax(1))
    exact = np.exp(x.astype(np.float64))
    exact /= exact.sum(1, keepdims=True)
    # a sum of terms of one sign, some hundred roundings in a block and behind it; exponentials, a quotient
    np.testing.assert_allclose(shares, exact, rtol=UNIT * 600)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("columns", [128, 256])
def test_statistics_by_blocks_of_one_round(device: str, columns: int) -> None:
    """Means, and deviations from them, beside float64; the last block of rows is not full."""
    shape = 8211, columns
    x = (np.random.default_rng(4).standard_normal(shape) + 3).astype(np.float32)
    node = placeholder("x", Spec(shape, x.dtype))
    wanted = [ops.mean(Operation(node), axis=0), ops.var(Operation(node), axis=0)]
    with on(device):
        run = Executable([one.node for one in wanted], executor="native", device="cuda")
        mean, variance = run.run({node: x})
    wide = x.astype(np.float64)
    # a lane has some rows of a block, 16 lanes follow; as many again of blocks; then the mean's own
    allowed = 8 * UNIT * np.sqrt(shape[0])
    assert np.all(abs(mean - wide.mean(0)) <= allowed * abs(wide).mean(0))
    assert np.all(abs(variance - wide.var(0)) <= allowed * wide.var(0))
