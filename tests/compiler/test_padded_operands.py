"""Pads, shifts and gradients of slices: found by indices where formulas read them, few boxes where not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.cuda.fused.rows import RowsVariant
from magmadnn.compiler.cuda.module import choose
from magmadnn.compiler.cuda.text.variant import Chip
from magmadnn.compiler.kernels.operands import PADDED
from magmadnn.compiler.plan.frames import frames_of
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Spec
from magmadnn.graph.node import Node, placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.boxes import boxes_of
from magmadnn.runtime.cpu.native import Instance
from magmadnn.runtime.cpu.slot_values import slot_values
from magmadnn.tensor import Operation
from tests.compiler.sample_programs import BATCH
from tests.runtime.cuda.devices import DEVICES, on

Make = Callable[[Any], Any]
SHAPE = (BATCH, 5, 4, 37)


def padded(x: Any, widths: tuple[tuple[int, int], ...], value: float = 0.0) -> Any:
    """The same of operations and of arrays."""
    if isinstance(x, Operation):
        return ops.pad(x, widths, value=value)
    return np.pad(x, widths, constant_values=value)


def summed(x: Any) -> Any:
    return ops.sum(x, -1) if isinstance(x, Operation) else np.sum(x, -1)


def largest(x: Any) -> Any:
    return (
        ops.max(x, -1, keepdims=True) if isinstance(x, Operation) else np.max(x, -1, keepdims=True)
    )


def place_of_largest(x: Any) -> Any:
    return ops.argmax(x, -1) if isinstance(x, Operation) else np.argmax(x, -1)


def turned(x: Any) -> Any:
    axes = (2, 1, 0, 3)
    return ops.transpose(x, axes) if isinstance(x, Operation) else np.transpose(x, axes)


def twice(x: Any) -> Any:
    return x * (x + 1)


NONE = (0, 0)
WAYS: dict[str, Make] = {
    "all around": lambda x: padded(x, ((1, 2), (0, 1), (2, 0), (3, 5))) + 1,
    "whole rows": lambda x: padded(x, (NONE, (1, 1), (2, 1), NONE), 2) * 3,
    "one axis in the middle": lambda x: padded(x, (NONE, NONE, (0, 3), NONE)) - 1,
    "within rows only": lambda x: padded(x, (NONE, NONE, NONE, (0, 9)), 1) + 2,
    "two pads that overlap": lambda x: padded(x, (NONE, NONE, NONE, (4, 0)))
    + padded(x, (NONE, NONE, NONE, (1, 3)), 2),
    "beside the whole": lambda x: padded(x[:, :4], (NONE, (1, 0), NONE, NONE)) * x,
    "turned before": lambda x: padded(turned(x), (NONE, (1, 1), (1, 0), (0, 2))) * 2,
    "a part": lambda x: padded(x[:, 1:4, ::-1, 2:], (NONE, (1, 1), (1, 0), (2, 0))) * 2,
    "one column": lambda x: padded(x[..., 3:4], (NONE, NONE, NONE, (17, 20)), 5) + 1,
    "one row, repeated": lambda x: padded(x[:, :1], (NONE, (2, 0), NONE, (1, 0)), 3) + 1,
    "sums of rows": lambda x: summed(padded(x, (NONE, (1, 0), (0, 2), (1, 4)), 2)) * 2,
    "sums, and more": lambda x: summed(padded(x, (NONE, NONE, (1, 1), (3, 0)), 1) * 3) + 1,
    "largest of whole rows": lambda x: largest(padded(x, (NONE, (1, 0), (0, 2), NONE), 1)) + 1,
    "where the largest is": lambda x: place_of_largest(padded(x, (NONE, (1, 0), NONE, (2, 2)), 1)),
    "less the largest": lambda x: padded(x, (NONE, (1, 0), NONE, (2, 2)), 1)
    - largest(padded(x, (NONE, (1, 0), NONE, (2, 2)), 1)),
    "two readers": lambda x: twice(padded(x, (NONE, NONE, (1, 0), (0, 1)))),
}  # fmt: skip


def made(way: Make, dtype: str) -> tuple[Node, Operation]:
    x = placeholder("x", Spec(SHAPE, as_dtype(dtype)))
    return x, way(Operation(x))


def kinds(nodes: list[Node], rounding: bool = True) -> list[RegionKind]:
    plan = native_plan(Program.of(nodes), check=True, rounding=rounding)
    return [work.region.kind for work in plan.work]


def drawn(batch: int, dtype: str) -> Any:
    """Small whole numbers: what is done to them is exact in every dtype."""
    rng = np.random.default_rng(batch)
    return rng.integers(0, 3, (batch, *SHAPE[1:])).astype(as_dtype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("name", WAYS)
def test_formulas_find_elements_by_their_indices(name: str, dtype: str) -> None:
    x, result = made(WAYS[name], dtype)
    for rounding in (True, False):
        plan = native_plan(Program.of([result.node]), check=True, rounding=rounding)
        assert [work.region.kind for work in plan.work] == [RegionKind.ROWS]
        (lowered,) = (work.lowered for work in plan.work)
        assert lowered is not None and PADDED in [spread for _, _, spread in lowered.reads]
    run = Executable([result.node], executor="native", check=True)
    for batch in (7, 1, 0):
        values = drawn(batch, dtype)
        (found,) = run.run({x: values})
        wide = values.astype(np.float64)
        np.testing.assert_array_equal(found.astype(np.float64), WAYS[name](wide))


def test_truth_values_and_what_is_not_finite() -> None:
    x = placeholder("x", Spec((3, 40), np.dtype(np.bool_)))
    y = placeholder("y", Spec((3, 40), np.dtype(np.float32)))
    edges = ((1, 0), (2, 3))
    chosen = ops.where(
        ops.pad(Operation(x), edges, value=1), ops.pad(Operation(y), edges, value=-np.inf), 0.5
    )
    truth = np.arange(120).reshape(3, 40) % 3 == 0
    values = np.where(truth, np.nan, np.arange(120.0).reshape(3, 40)).astype(np.float32)
    (found,) = Executable([chosen.node], executor="native", check=True).run({x: truth, y: values})
    expected = np.full((4, 45), -np.inf)
    expected[1:, 2:42] = np.where(truth, np.nan, 0.5)
    np.testing.assert_array_equal(found, expected)
    assert kinds([chosen.node]) == [RegionKind.ROWS]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_are_cut_anywhere(threads: int) -> None:
    x = placeholder("x", Spec((20, 30, 100), np.dtype(np.float32)))
    result = ops.pad(Operation(x), ((1, 1), (2, 3), (0, 5))) * 2.0
    values = np.random.default_rng(1).standard_normal((20, 30, 100)).astype(np.float32)
    plan = native_plan(Program.of([result.node]))
    found = Instance(plan, {}, threads).run({x: values}, guard=False)
    assert found is not None
    np.testing.assert_array_equal(
        found[0], np.pad(values, ((1, 1), (2, 3), (0, 5))) * np.float32(2)
    )


def test_rows_are_reduced_too() -> None:
    """Softmax of a pad that is added to something: several walks over each row."""
    x = placeholder("x", Spec((BATCH, 6, 50), np.dtype(np.float32)))
    y = placeholder("y", Spec((BATCH, 8, 64), np.dtype(np.float32)))
    result = ops.softmax(ops.pad(Operation(x), ((0, 0), (1, 1), (9, 5)), value=0.5) + Operation(y))
    assert kinds([result.node]) == [RegionKind.ROWS]
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((9, 6, 50), (9, 8, 64)))
    (found,) = Executable([result.node], executor="native", check=True).run({x: a, y: b})
    logits = np.pad(a.astype(np.float64), ((0, 0), (1, 1), (9, 5)), constant_values=0.5) + b
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    np.testing.assert_allclose(found, shares / shares.sum(-1, keepdims=True), rtol=2e-6)


def gates(x: Operation) -> Operation:
    """A cell that cuts its sums into four."""
    i, f, g, o = (x[:, 40 * k : 40 * k + 40] for k in range(4))
    return ops.sigmoid(o) * ops.tanh(ops.sigmoid(f) * 0.5 + ops.sigmoid(i) * ops.tanh(g))


def test_the_gradient_of_slices_is_one_kernel_more() -> None:
    """Each slice's gradient is zeros around it, and they are added: nothing of that lies in memory."""
    x = placeholder("x", Spec((BATCH, 160), np.dtype(np.float64)))
    (node,) = gradient(ops.sum(gates(Operation(x))).node, [x])
    found = kinds([node])
    assert RegionKind.MOVE not in found and len(found) == 2
    values = np.random.default_rng(3).standard_normal((5, 160))
    (slope,) = Executable([node], executor="native", check=True).run({x: values})

    def total(v: Any) -> Any:
        i, f, g, o = (v[:, 40 * k : 40 * k + 40] for k in range(4))
        i, f, o = (1 / (1 + np.exp(-one)) for one in (i, f, o))
        return (o * np.tanh(f * 0.5 + i * np.tanh(g))).sum()

    way, small = np.random.default_rng(4).standard_normal(values.shape), 1e-6
    expected = (total(values + small * way) - total(values - small * way)) / (2 * small)
    assert abs((slope * way).sum() - expected) < 1e-6 * np.abs(slope * way).sum()


NOT: dict[str, Make] = {
    "an output": lambda x: ops.pad(x, ((0, 0), (0, 0), (1, 1), (0, 3))),
    "a factor": lambda x: ops.pad(x, ((0, 0), (0, 0), (1, 1), (0, 3))) @ np.ones((40, 3), "float32"),
    "windows": lambda x: ops.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))[:, ::2] * 2.0,
    "short rows": lambda x: ops.pad(x[..., :9], ((0, 0), (0, 0), (1, 1), (0, 3))) * 2.0,
    "reduced along another axis": lambda x: ops.sum(ops.pad(x, ((0, 0), (0, 0), (1, 1), (0, 3))), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT)
def test_other_readers_get_a_copy(name: str) -> None:
    x, result = made(NOT[name], "float32")
    assert RegionKind.MOVE in kinds([result.node])
    values = drawn(3, "float32")
    (found,) = Executable([result.node], executor="native", check=True).run({x: values})
    (expected,) = Executable([result.node], executor="reference").run({x: values})
    np.testing.assert_array_equal(found, expected)


def test_every_second_element_is_no_pad() -> None:
    x = placeholder("x", Spec((4, 80), np.dtype(np.float32)))
    (node,) = gradient(ops.sum(ops.square(Operation(x)[:, ::2])).node, [x])
    result = Operation(node) + 1.0
    assert RegionKind.MOVE in kinds([result.node])
    values = np.arange(320, dtype=np.float32).reshape(4, 80)
    (found,) = Executable([result.node], executor="native", check=True).run({x: values})
    np.testing.assert_array_equal(found, np.where(np.arange(80) % 2, 0, 2 * values) + 1)


def test_a_copy_has_as_many_boxes_whatever_its_size() -> None:
    """Of 55 MB: one box for the operand, two for each axis with edges; no table of elements."""
    counts = []
    for side in (8, 224):
        x = placeholder("x", Spec((4, side, side, 64), np.dtype(np.float32)))
        node = ops.pad(Operation(x), ((0, 0), (3, 3), (3, 3), (0, 0))).node
        result, source = (np.broadcast_to(np.empty((), np.float32), n.shape) for n in (node, x))
        strides = [np.empty(n.shape, np.float32).strides for n in (node, x)]
        result, source = (
            np.lib.stride_tricks.as_strided(a, a.shape, s)
            for a, s in zip((result, source), strides, strict=True)
        )
        table, constants = boxes_of(node, result, [source], {})
        counts.append(len(table))
        assert constants.size <= 8
    assert max(counts) <= 8  # rows of more than 2^14 elements are cut, so that threads share them


@pytest.mark.parametrize(("left", "width"), [(8, 4), (2, 2), (1, 1)])
def test_no_edge_lies_within_elements_that_a_device_loads_together(left: int, width: int) -> None:
    x = placeholder("x", Spec((3, 6, 48), np.dtype(np.float32)))
    result = ops.pad(Operation(x), ((0, 0), (1, 1), (left, 16 - left))) * 2.0
    plan = native_plan(Program.of([result.node]), check=True, rounding=False)
    (work,) = plan.work
    assert work.lowered is not None
    values = slot_values(work, frames_of(plan, {}), {})
    values |= {slot: 0 for slot, _, _ in (*work.lowered.reads, *work.lowered.writes)}
    launch = choose(work.lowered.kernel, values, Chip())
    assert launch is not None and isinstance(launch.variant, RowsVariant)
    assert launch.variant.width == width


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WAYS)
def test_on_a_device(name: str, device: str) -> None:
    x, result = made(WAYS[name], "float32")
    with on(device):
        run = Executable([result.node], executor="native", device="cuda", check=True)
        for batch in (7, 1):
            values = drawn(batch, "float32")
            (found,) = run.run({x: values})
            np.testing.assert_array_equal(found, WAYS[name](values.astype(np.float64)))


@pytest.mark.parametrize("device", DEVICES)
def test_walks_over_rows_on_a_device(device: str) -> None:
    """Of several elements at a time: no edge cuts them."""
    x = placeholder("x", Spec((BATCH, 6, 48), np.dtype(np.float32)))
    for left, right in ((8, 8), (2, 6), (1, 15)):
        whole = ops.pad(Operation(x), ((0, 0), (1, 1), (left, right)), value=0.5)
        nodes = [ops.softmax(whole * 2.0).node, (whole + 1.0).node]
        values = np.random.default_rng(2).standard_normal((9, 6, 48)).astype(np.float32)
        with on(device):
            run = Executable(nodes, executor="native", device="cuda", check=True)
            found = run.run({x: values})
        widths = ((0, 0), (1, 1), (left, right))
        wide = np.pad(values.astype(np.float64), widths, constant_values=0.5)
        shares = np.exp(2 * wide)
        np.testing.assert_allclose(found[0], shares / shares.sum(-1, keepdims=True), rtol=1e-5)
        np.testing.assert_array_equal(found[1], wide.astype(np.float32) + np.float32(1))


def test_a_part_that_was_turned_round_begins_at_its_end() -> None:
    """The gradient of rows taken backwards: zeros around them, in the order of the whole."""
    x = placeholder("x", Spec((9, 40), np.dtype(np.float32)))
    values = np.random.default_rng(5).standard_normal((9, 40)).astype(np.float32)
    weights = np.random.default_rng(6).standard_normal((4, 40)).astype(np.float32)
    w = placeholder("w", Spec((4, 40), np.dtype(np.float32)))
    (node,) = gradient(ops.sum(Operation(x)[6:2:-1] * Operation(w)).node, [x])
    result = Operation(node) + Operation(x)
    assert RegionKind.MOVE not in kinds([result.node])
    (found,) = Executable([result.node], executor="native", check=True).run({x: values, w: weights})
    expected = values.copy()
    expected[3:7] += weights[::-1]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_readers_convert_lies_in_memory(dtype: str) -> None:
    """Of halves: a formula over a pad converts what it reads."""
    for name in ("all around", "one column", "two pads that overlap"):
        x, result = made(WAYS[name], dtype)
        values = drawn(5, dtype)
        (found,) = Executable([result.node], executor="native", check=True).run({x: values})
        np.testing.assert_array_equal(
            found.astype(np.float64), WAYS[name](values.astype(np.float64))
        )


RESHAPED = [
    ((7, 2, 1, 96), (7, 2, 3, 32)),
    ((4, 1, 192), (4, 6, 32)),
    ((4, 1, 6, 33), (4, 2, 3, 33)),
    ((1, 1, 192), (2, 3, 32)),
    ((3, 1, 2, 32), (3, 2, 1, 32)),
    ((4, 6, 1, 32), (4, 1, 6, 32)),
]


@pytest.mark.parametrize("device", ["cpu", *DEVICES])
@pytest.mark.parametrize(("shape", "other"), RESHAPED)
def test_a_reshape_is_no_pad(shape: tuple[int, ...], other: tuple[int, ...], device: str) -> None:
    """Its parts have the steps of the result where an axis has size 1, and go beyond its axes."""
    x = placeholder("x", Spec(shape, np.dtype(np.float64)))
    large = ops.exp(Operation(x))  # which others read too
    seen, leading = ops.reshape(large, other), tuple(range(len(other) - 1))
    nodes = [ops.sum(seen, leading), ops.sum(seen, -1), seen * 2.0, ops.sum(seen, 0), large]
    values = np.random.default_rng(4).standard_normal(shape)
    exact = np.exp(values).reshape(other)
    expected = [exact.sum(leading), exact.sum(-1), 2 * exact, exact.sum(0), np.exp(values)]
    with contextlib.nullcontext() if device == "cpu" else on(device):
        where = "cpu" if device == "cpu" else "cuda"
        run = Executable([n.node for n in nodes], executor="native", device=where, check=True)
        for found, wanted in zip(run.run({x: values}), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
