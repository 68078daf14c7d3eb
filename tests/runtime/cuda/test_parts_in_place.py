"""Parts of concatenations on a device: the plan's decision is the CPU's, and what is placed is not moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.backends import cuda
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Spec
from magmadnn.graph.node import Node, placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.hazards import edges_of
from magmadnn.runtime.cuda.schedule.launches import Items
from magmadnn.tensor import Operation
from tests.compiler.sample_programs import BATCH
from tests.compiler.test_parts_in_place import (
    CASES,
    Values,
    dense_block,
    inception,
    integers,
    made,
    one_after_the_other,
    read_elsewhere,
    twice,
)
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

EMULATED, GPU = DEVICES
RARE = pytest.param("emulated", marks=[*EMULATED.marks, pytest.mark.long])
USUAL = (inception, dense_block, read_elsewhere, twice, one_after_the_other)
EACH = [
    pytest.param(
        values, *device.values, id=f"{values.__name__}-{device.values[0]}", marks=device.marks
    )
    for values in CASES
    for device in (EMULATED if values in USUAL else RARE, GPU)
]


def agree(x: Node, nodes: list[Node], device: str) -> NativePlan:
    """Results are those of the reference; the plan."""
    reference = Executable(nodes, executor="reference")
    with on(device):
        run = Executable(nodes, executor="native", device="cuda", check=True)
        for batch in (11, 0):
            fed = {x: integers(batch)}
            for got, expected in zip(run.run(fed), reference.run(fed), strict=True):
                np.testing.assert_array_equal(got, expected)
    return native_plan(Program.of(nodes), check=True, rounding=False)


@pytest.mark.parametrize(("values", "device"), EACH)
def test_values_and_gradients(values: Values, device: str) -> None:
    """One program of values, and of their gradients: both lie in parts."""
    x, nodes = made(values)
    plan = native_plan(Program.of(nodes), check=True, rounding=False)
    assert len(plan.inside) == CASES[values]
    loss = sum((Operation(node).sum() for node in nodes), start=Operation(nodes[0]).sum()).node
    agree(x, [*nodes, loss, *gradient(loss, [x])], device)


def items_of(nodes: list[Node], sizes: dict[str, int]) -> tuple[NativePlan, Layout, list[Any]]:
    """The launches of a plan on a device that is in place."""
    plan = native_plan(Program.of(nodes), check=True, rounding=False)
    layout, engine = Layout(plan, sizes, 0), cuda.device_engine(0)
    space = layout.reserved(1 << 20)
    items = Items(layout, engine, lambda: [(space, space + (1 << 20))], False)
    return plan, layout, [one for work in plan.work for one in items.of(work)]


@needs_compiler
def test_a_concatenation_whose_parts_are_placed_is_no_launch() -> None:
    _, nodes = made(inception)
    with emulated_device():
        plan, layout, launches = items_of(nodes, {"batch": 7})
        (concat,) = (w.region.nodes[0] for w in plan.work if w.region.kind is RegionKind.MOVE)
        assert len(launches) == len(plan.work) - 1
        start = 0
        for part in concat.inputs:
            assert layout.address(part) == layout.address(concat) + 4 * start
            assert layout.frames[part].strides == layout.frames[concat].strides
            start += int(part.shape[-1])
        assert layout.span(concat)[1] - layout.span(concat)[0] == 7 * 3 * start * 4


@needs_compiler
def test_parts_wait_for_no_other_part_and_readers_for_all() -> None:
    """Rows of parts lie between each other, but nothing that one launch writes is written by another."""
    _, nodes = made(inception)
    with emulated_device():
        plan, layout, launches = items_of(nodes, {"batch": 7})
        edges = edges_of([(item.reads, item.writes) for item in launches])
        (concat,) = (w.region.nodes[0] for w in plan.work if w.region.kind is RegionKind.MOVE)
        spans = [layout.span(part) for part in concat.inputs]
        writers = [k for span in spans for k, item in enumerate(launches) if span in item.writes]
        assert len(writers) == 3
        for one in writers:
            assert not set(edges[one]) & set(writers)
        (reader,) = (k for k, item in enumerate(launches) if layout.span(concat) in item.reads)
        assert set(writers) <= set(edges[reader])


@pytest.mark.parametrize("device", DEVICES)
def test_what_reads_a_part_and_what_lies_beside_it_is_no_link_of_a_chain(device: str) -> None:
    """A narrow product, softmax over it and its neighbour, a product with that: the block has a part only."""
    rng = np.random.default_rng(3)
    x = placeholder("x", Spec((BATCH, 40), np.dtype(np.float32)))
    a, b = (rng.standard_normal((40, n)).astype(np.float32) for n in (5, 6))
    for order, begin in (((0, 1), 0), ((1, 0), 0), ((0,), 1)):
        parts = [ops.matmul(Operation(x), (a, b)[k]) for k in order]
        whole = (ops.concat(parts, -1) if len(parts) > 1 else parts[0])[..., begin:]
        c = rng.standard_normal((int(whole.shape[-1]), 8)).astype(np.float32)
        nodes = [ops.matmul(ops.softmax(whole), c).node]
        with on(device):
            run = Executable(nodes, executor="native", device="cuda", check=True)
            fed = rng.standard_normal((120, 40)).astype(
                np.float32
            )  # too many for a network of one block
            (got,) = run.run({x: fed})
        wide = [fed.astype(np.float64) @ w.astype(np.float64) for w in (a, b)]
        logits = np.concatenate([wide[k] for k in order], 1)[:, begin:]
        shares = np.exp(logits - logits.max(1, keepdims=True))
        expected = shares / shares.sum(1, keepdims=True) @ c.astype(np.float64)
        # 40 and 11 terms of size 10 at most, each off by half a unit in the last place
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_added_to_a_product_is_no_link_of_its_chain(device: str) -> None:
    """It may be read before the block has made it: softmax(y) @ c + y, with y = x @ a of a few columns."""
    rng = np.random.default_rng(4)
    x = placeholder("x", Spec((BATCH, 40), np.dtype(np.float32)))
    a, c = (rng.standard_normal((n, 8)).astype(np.float32) for n in (40, 8))
    y = ops.matmul(Operation(x), a)
    fed = rng.standard_normal((120, 40)).astype(np.float32)
    with on(device):
        nodes = [(ops.matmul(ops.softmax(y), c) + y).node]
        run = Executable(nodes, executor="native", device="cuda", check=True)
        (got,) = run.run({x: fed})
    logits = fed.astype(np.float64) @ a.astype(np.float64)
    shares = np.exp(logits - logits.max(1, keepdims=True))
    expected = shares / shares.sum(1, keepdims=True) @ c.astype(np.float64) + logits
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)  # 40 terms below 10


@pytest.mark.parametrize("device", DEVICES)
def test_a_right_operand_is_no_link_of_a_chain(device: str) -> None:
    """s = softmax(x @ a), then w @ s: each row of that needs all rows of s, and a block has some of them."""
    rng = np.random.default_rng(5)
    x = placeholder("x", Spec((12, 400), np.dtype(np.float32)))
    a, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((400, 8), (12, 12)))
    fed = 0.1 * rng.standard_normal((12, 400)).astype(np.float32)
    with on(device):
        nodes = [ops.matmul(w, ops.softmax(ops.matmul(Operation(x), a))).node]
        run = Executable(nodes, executor="native", device="cuda", check=True)
        (got,) = run.run({x: fed})
    logits = fed.astype(np.float64) @ a.astype(np.float64)
    shares = np.exp(logits - logits.max(1, keepdims=True))
    expected = w.astype(np.float64) @ (shares / shares.sum(1, keepdims=True))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)  # 400 terms below 1


@pytest.mark.parametrize(
    ("device", "seed"),
    [pytest.param(*EMULATED.values, k, marks=[*EMULATED.marks, *([pytest.mark.long] * (k > 2))])
     for k in range(12)] + [pytest.param(*GPU.values, k, marks=GPU.marks) for k in range(40)],
)  # fmt: skip
def test_random_concatenations(device: str, seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)

    def weights(y: Operation, columns: int) -> Operation:
        w = rng.integers(-1, 2, (int(y.shape[-1]), columns)).astype(np.float32)
        return ops.matmul(y, w)

    def values(x: Operation) -> list[Operation]:
        known = [x]
        for _ in range(int(rng.integers(4, 9))):
            way, y = rng.integers(6), known[rng.integers(len(known))]
            columns = int(y.shape[-1])
            if way <= 1 and columns < 300:
                several = [known[i] for i in rng.integers(0, len(known), rng.integers(1, 4))]
                y = ops.concat([y, *several], -1)
            elif way == 2:
                y = ops.minimum(weights(y, int(rng.integers(1, 40))), 7.0)
            elif way == 3:
                y = ops.minimum(y, 3.0) - 1.0
            elif way == 4 and columns > 2:
                y = y[..., 1 : columns - 1]
            else:
                y = ops.minimum(y, 5.0) + ops.max(y, -1, keepdims=True)
            known.append(y)
        return [ops.sum(ops.minimum(y, 4.0), (0, 1)) for y in known[-2:]] + [known[-1] * 2.0]

    x, nodes = made(values)
    agree(x, nodes, device)
