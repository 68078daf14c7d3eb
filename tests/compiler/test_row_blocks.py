"""Reductions over many rows in blocks of rows: their bits, their precision, their work for threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.lower.row_blocks import block_columns, block_rows
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


@pytest.mark.parametrize("shape", [(20011, 7), (9001, 16), (8209, 32), (9001, 33), (8209, 64)])
def test_rows_are_added_in_their_order(shape: tuple[int, int]) -> None:
    """Those of 64 after each other, then these sums, then those of blocks, however many columns there are."""
    rows, columns = shape
    x = RNG.standard_normal(shape).astype(np.float32)
    node, plan = reduced(shape, "sum")
    each, zero = block_rows(rows, columns), np.zeros(columns, np.float32)
    total = zero.copy()
    for first in range(0, rows, each):
        block = zero.copy()
        for begin in range(first, min(first + each, rows), 64):
            some = zero.copy()
            for row in x[begin : min(begin + 64, first + each)]:
                some += row
            block += some
        total += block
    assert run(plan, 2, {node: x})[0].tobytes() == total.tobytes()


@pytest.mark.parametrize("shape", [(8192, 16), (9001, 37), (20011, 7), (3, 5, 601, 64)])
def test_variances_of_what_drifts(shape: tuple[int, ...]) -> None:
    """Blocks of rows differ in their means, and the last one in its length: that is most of the variance."""
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    wide = np.linspace(-3.0, 3.0, rows)[:, None] * np.arange(1, columns + 1)
    x = (wide + RNG.standard_normal((rows, columns))).astype(np.float32)
    node, plan = reduced(shape, "mean", "var")
    mean, variance = run(plan, 2, {node: x.reshape(shape)})
    exact = x.astype(np.float64)
    largest = abs(exact).max(0)
    off = UNIT * roundings(rows, columns) * largest  # of a block's mean, and of all rows'
    assert np.all(abs(mean - exact.mean(0)) <= off)
    deviation = 2 * largest * off + UNIT * roundings(rows, columns) * exact.var(0)
    assert np.all(abs(variance - exact.var(0)) <= deviation)


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
    [(8191, 4096), (4096, 512), (8192, 15), (10**6, 16512), (100, 64), (0, 5), (3, 0)],
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


# Shapes of one symbol for the first axis: reduced axes, and how many rows or matrices are left of it.
OF_ANY_SIZE: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1048583,), (0,)),  # a vector
    ((2053, 1031), (0, 1)),  # a batch's loss
    ((3, 8209, 37), (1,)),
    ((33, 8209, 33), (1,)),
    ((2, 211, 41, 31), (1, 2)),
    ((3, 1048583), (1,)),  # long rows
    ((2, 1, 853, 1657), (2, 3)),
]


def of_any_size(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[Node, NativePlan]:
    """Reductions of something computed, and of what is fed; the first size is not known."""
    x = placeholder("x", fed("x", (None, *shape[1:]), np.float32).node.spec)
    made = [ops.sum(Operation(x) * 2.0, axis=axes) + 1.0, ops.max(Operation(x), axis=axes)]
    return x, native_plan(Program.of([m.node for m in made]), check=True)


def sizes_of(x: Node, shape: tuple[int, ...]) -> dict[str, int]:
    return {str(x.shape[0]): shape[0]}


@pytest.mark.parametrize(("shape", "axes"), OF_ANY_SIZE)
def test_a_size_that_is_not_known_before(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """The same bits on any number of threads, and the digits of float64."""
    values = RNG.standard_normal(shape).astype(np.float32)
    values.flat[7] = 30.0
    x, plan = of_any_size(shape, axes)
    sizes = sizes_of(x, shape)
    assert arena_of(plan, sizes).rooms
    found = [run(plan, threads, {x: values}, sizes) for threads in THREADS]
    for total, top in found:
        assert total.tobytes() == found[0][0].tobytes()
        np.testing.assert_array_equal(top, values.max(axes))
    wide = values.astype(np.float64) * 2
    # a block of 2^13 elements in some 64 sums beside each other, of which 64 and 256 blocks are added up
    allowed = UNIT * (256 + 64 + 256 + 2) * (abs(wide).sum(axes) + 1)
    assert np.all(abs(found[0][0] - (wide.sum(axes) + 1)) <= allowed)
    if 0 not in axes:  # a sample does not know how many others there are
        alone = run(plan, 2, {x: values[1:2]}, sizes_of(x, (1,)))
        assert alone[0].tobytes() == found[0][0][1:2].tobytes()


@pytest.mark.parametrize(("shape", "axes"), OF_ANY_SIZE)
def test_all_threads_take_part(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x, plan = of_any_size(shape, axes)
    for threads in THREADS:
        tasks = Instance(plan, sizes_of(x, shape), threads, prepared=False).tasks(threads)
        assert len(tasks.phase(0)[0]) >= threads
        assert tasks.useful_threads == threads


def test_long_rows_are_cut_by_sizes() -> None:
    """Blocks are whole vectors, at least 128 of them, and none of what is small."""
    for columns in [1 << 20, 1048583, 10**8]:
        each = block_columns(columns)
        assert each % 64 == 0
        assert 128 <= -(-columns // each) <= 256
    for columns in [(1 << 20) - 1, 5, 0]:
        assert block_columns(columns) == columns


def test_what_is_stored_beside_a_long_sum_is_all_of_it() -> None:
    """Elements that the blocks store; NaN and infinity in the first and last of them stay in their rows."""
    x = fed("x", (None, None), np.float32)
    rest = x * 3.0
    made = [ops.sum(rest, axis=1), rest, ops.min(x, axis=1, keepdims=True)]
    plan = native_plan(Program.of([m.node for m in made]), check=True)
    values = RNG.standard_normal((3, 1048601)).astype(np.float32)
    values[1, -1], values[2, 17] = np.nan, np.inf
    sizes = dict(zip(map(str, x.shape), values.shape, strict=True))
    assert arena_of(plan, sizes).rooms
    total, tripled, least = run(plan, 2, {x.node: values}, sizes)
    np.testing.assert_array_equal(tripled, values * np.float32(3))
    np.testing.assert_array_equal(least, values.min(1, keepdims=True))
    np.testing.assert_allclose(total[0], 3 * values[0].astype(np.float64).sum(), atol=0.1)
    assert np.isnan(total[1])
    assert total[2] == np.inf


def walked_again(x: Operation, axis: int) -> list[Operation]:
    """What needs several walks over a row, also to know where in it an element is."""
    return [
        ops.argmax(x, axis=axis),
        ops.argmin(x * -2.0 + 1.0, axis=axis),
        ops.logsumexp(x, axis=axis),
        ops.softmax(x, axis=axis),
    ]


@pytest.mark.parametrize("shape", [(1048583,), (3, 1048601)])
def test_rows_that_are_walked_over_again(shape: tuple[int, ...]) -> None:
    """One of a length that is not known, and some of a known one: each walk has work for all threads."""
    known = len(shape) > 1
    x = fed("x", (None, shape[1]) if known else (None,), np.float32)
    plan = native_plan(Program.of([y.node for y in walked_again(x, -1)]), check=True)
    values = RNG.standard_normal(shape).astype(np.float32)
    rows = values.reshape(-1, shape[-1])
    rows[:, [77_777, 900_001]] = 9.0  # the first of equal ones counts
    rows[-1, -1] = 11.0
    sizes = sizes_of(x.node, shape)
    found = [run(plan, threads, {x.node: values}, sizes) for threads in THREADS]
    for others in found[1:]:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found[0], others, strict=True))
    largest, least, total, shares = found[0]
    np.testing.assert_array_equal(largest, values.argmax(-1))
    np.testing.assert_array_equal(least, values.argmax(-1))
    wide = values.astype(np.float64)
    exact = np.log(np.exp(wide).sum(-1))
    np.testing.assert_allclose(total, exact, rtol=4 * UNIT)
    # beside the exponential's 2 units: the sum's roundings, of terms of one sign, and the quotient's
    np.testing.assert_allclose(shares, np.exp(wide - exact[..., None]), rtol=UNIT * 600)
    for threads in THREADS:
        tasks = Instance(plan, sizes, threads, prepared=False).tasks(threads)
        phases = [tasks.phase(k) for k in range(plan.phase_count)]
        assert sum(len(phase[0]) >= threads for phase in phases) >= 3
    if known:  # a sample does not know how many others there are
        alone = run(plan, 2, {x.node: values[1:2]}, sizes_of(x.node, (1,)))
        assert all(a.tobytes() == b[1:2].tobytes() for a, b in zip(alone, found[0], strict=True))


def test_numbers_that_are_not_one_in_the_last_block() -> None:
    x = fed("x", (None,), np.float32)
    plan = native_plan(Program.of([ops.argmax(x).node, ops.argmin(x).node]), check=True)
    values = RNG.standard_normal(1048583).astype(np.float32)
    values[1048580] = np.nan
    found = run(plan, 2, {x.node: values}, sizes_of(x.node, values.shape))
    assert [int(place) for place in found] == [1048580, 1048580]


def test_rows_of_an_unknown_length_are_one_kernel() -> None:
    """Attention's, of which there are many: softmax walks over each row while it is in the cache."""
    x = fed("x", (None, None), np.float32)
    plan = native_plan(Program.of([ops.softmax(x, axis=-1).node]), check=True)
    assert len(plan.work) == 1


def test_a_sum_over_all_of_a_batch_stores_none_of_its_elements() -> None:
    """Cheap ones of values that lie in memory; not what is slow, and nothing that a product would compute."""
    x, y = fed("x", (None, 37, 3), np.float32), fed("y", (None, 37, 3), np.float32)
    w = RNG.standard_normal((3, 5)).astype(np.float32)
    row = np.arange(3, dtype=np.float32)
    made = {  # kernels
        "squares": (ops.sum((x - y) ** 2), 1),
        "largest": (ops.max(ops.abs(x * 2.0 - 1.0)) * 3.0, 1),
        "two": (ops.sum(x * x) / (ops.sum(y * y) + 1.0), 1),
        "slow": (ops.sum(ops.exp(x)), 2),
        "a row": (ops.sum(x * row), 2),
        "a product's": (ops.sum((x @ w) * 2.0), 2),
        "read twice": (ops.sum(x * 2.0) + (x * 2.0), 3),
    }
    for batch in (1, 11, 10007):
        values = {n.node: RNG.standard_normal((batch, 37, 3)).astype(np.float32) for n in (x, y)}
        a, b = (v.astype(np.float64) for v in values.values())
        wanted = {
            "squares": ((a - b) ** 2).sum(), "largest": 3 * abs(a * 2 - 1).max(),
            "two": (a * a).sum() / ((b * b).sum() + 1), "slow": np.exp(a).sum(),
            "a row": (a * row).sum(), "a product's": (a @ w * 2).sum(),
            "read twice": (a * 2).sum() + a * 2,
        }  # fmt: skip
        for name, (result, kernels) in made.items():
            plan = native_plan(Program.of([result.node]), check=True)
            assert len(plan.work) == kernels, (name, plan.work)
            given = {n: v for n, v in values.items() if n in plan.program.placeholders}
            sizes = {str(n.shape[0]): batch for n in given}
            bits = [run(plan, threads, given, sizes)[0] for threads in THREADS]
            assert len({one.tobytes() for one in bits}) == 1, name
            # a term's own roundings and some 600 of the sum, of terms that may have both signs
            size = max(abs(a).sum() * 30, 1.0)
            np.testing.assert_allclose(bits[0], wanted[name], rtol=0, atol=UNIT * 600 * size)
