"""Reductions over many rows in blocks of rows: their bits, their precision, their work for threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.lower.row_blocks import block_rows
from magmadnn.compiler.plan.memory import arena_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.runtime.cpu.native import Instance
from magmadnn.tensor import Operation
from magmadnn.tensor import placeholder as fed

RNG = np.random.default_rng(4)
THREADS = (1, 2, 5, 16)
UNIT = np.finfo(np.float32).eps
IMAGES = ((16, 56, 56, 64), (401, 408, 64))


def reduced(shape: tuple[Any, ...], *names: str) -> tuple[Node, NativePlan]:
    """Reductions over all axes but the last, of what is fed."""
    x = placeholder("x", Spec(shape, np.dtype(np.float32)))
    axes = tuple(range(len(shape) - 1))
    made = [getattr(ops, name)(Operation(x), axis=axes).node for name in names]
    return x, native_plan(Program.of(made), check=True)


def run(
    plan: NativePlan, threads: int, values: dict[Node, Any], sizes: dict[str, int] | None = None
) -> list[Any]:
    found = Instance(plan, sizes or {}, threads).run(values, False)
    assert found is not None
    return found


def blocks_of(rows: int, columns: int) -> int:
    return -(-rows // block_rows(rows, columns))


def roundings(rows: int, columns: int) -> float:
    """How often a sum is rounded on the way from an element to the result, at most."""
    each = block_rows(rows, columns)
    return 64 + each / 64 + blocks_of(rows, columns) / 64 + 64


@pytest.mark.parametrize(
    "shape", [(8192, 16), (9001, 37), (20011, 7), (3, 5, 601, 64), (8200, 1030)]
)
def test_bits_do_not_depend_on_threads(shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    node, plan = reduced(shape, "sum", "max")
    rows, columns = x.size // shape[-1], shape[-1]
    found = [run(plan, threads, {node: x}) for threads in THREADS]
    for total, top in found:
        assert total.tobytes() == found[0][0].tobytes()
        np.testing.assert_array_equal(top, x.reshape(rows, columns).max(0))
    wide = x.reshape(rows, columns).astype(np.float64)
    allowed = UNIT * roundings(rows, columns) * abs(wide).sum(0)
    assert np.all(abs(found[0][0] - wide.sum(0)) <= allowed)


@pytest.mark.parametrize("shape", IMAGES)
def test_every_thread_has_work(shape: tuple[int, ...]) -> None:
    """The tasks of a sum over pixels: as many as there are threads, for 16 of them too."""
    _, plan = reduced(shape, "sum")
    for threads in THREADS:
        instance = Instance(plan, {}, threads, prepared=False)
        phases = instance.tasks(threads).phase(0)
        assert [len(tasks) for tasks in phases] == [threads, 1]
    assert blocks_of(int(np.prod(shape[:-1])), shape[-1]) >= 112


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(8191, 4096), (4096, 512), (8192, 15), (10**6, 8192), (100, 64), (0, 5), (3, 0)],
)
def test_smaller_and_wider_matrices_stay_one_block(rows: int, columns: int) -> None:
    """Sums of usual batches have the bits that they always had."""
    assert block_rows(rows, columns) == rows
    if rows * columns < 10**6:
        _, plan = reduced((rows, columns), "sum")
        assert not arena_of(plan, {}).rooms


@pytest.mark.parametrize(
    ("rows", "columns"), [(8192, 16), (50176, 64), (163608, 64), (10**6, 1), (8200, 4096)]
)
def test_blocks_cover_all_rows(rows: int, columns: int) -> None:
    each, blocks = block_rows(rows, columns), blocks_of(rows, columns)
    assert each % 8 == 0
    assert (blocks - 1) * each < rows <= blocks * each
    assert 2 <= blocks <= 256


def test_a_batch_of_any_size_gets_blocks_when_it_is_large() -> None:
    """One plan serves small and large batches; NaN and infinity stay in their columns."""
    x = fed("x", (None, 33), np.float32)
    scaled = ops.mean(x, axis=0) * 2.0 + np.arange(33, dtype=np.float32)
    plan = native_plan(Program.of([scaled.node]), check=True)
    (symbol,) = (str(size) for size in x.shape[:1])
    for rows in (1, 100, 8191, 8192, 30011):
        values = RNG.standard_normal((rows, 33)).astype(np.float32)
        values[rows // 2, 5], values[-1, 7] = np.nan, np.inf
        sizes = {symbol: rows}
        assert bool(arena_of(plan, sizes).rooms) == (rows >= 8192)
        (found,) = run(plan, 2, {x.node: values}, sizes)
        wanted = values.astype(np.float64).mean(0) * 2 + np.arange(33)
        np.testing.assert_array_equal(np.isnan(found), np.arange(33) == 5)
        np.testing.assert_array_equal(np.isinf(found), np.arange(33) == 7)
        allowed = UNIT * (roundings(rows, 33) * 2 + 40)
        np.testing.assert_allclose(found[8:], wanted[8:], rtol=0, atol=allowed)


def test_partial_results_share_memory_with_nothing_that_is_alive() -> None:
    """Two sums at a time, and a value that is kept across them."""
    x = placeholder("x", Spec((9001, 40), np.dtype(np.float32)))
    kept = ops.exp(Operation(x) * 0.1)
    made = [
        ops.sum(kept, axis=0),
        ops.max(kept, axis=0),
        ops.sum(kept * 2.0 - Operation(x), axis=0),
    ]
    plan = native_plan(Program.of([m.node for m in made]), check=True)
    arena = arena_of(plan, {})  # looks whether any two share memory
    assert arena.rooms
    assert "partial results of" in str(arena)
    values = RNG.standard_normal((9001, 40)).astype(np.float32)
    found = run(plan, 2, {x: values})
    wide = np.exp(values.astype(np.float64) * 0.1)
    for one, wanted in zip(
        found, (wide.sum(0), wide.max(0), (2 * wide - values).sum(0)), strict=True
    ):
        np.testing.assert_allclose(one, wanted, rtol=2e-5)
