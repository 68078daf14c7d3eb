"""Convolutions by the device's library that write into concatenations and read slices, by strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.backends.cuda.engine import FUSED_CONVOLUTIONS
from magmadnn.compiler.cuda.library.few_channels import sizes as few_channels
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.schedule import launches, small
from magmadnn.tensor import Operation
from tests.runtime.cuda.devices import DEVICES, distance, on
from tests.runtime.cuda.emulator import Emulator, emulated_device, needs_compiler

BATCH = Dim.symbol("batch")
CHANNELS = 32  # of x: narrower rows become one long row
Values = Callable[[Operation], list[Operation]]


@pytest.fixture(autouse=True)
def stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(layout: Any, work: Any) -> Any:
        raise AssertionError(f"NumPy computes {work.region}")

    monkeypatch.setattr(launches, "host_call", called)
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    monkeypatch.setattr(few_channels, "MOST_INPUTS", 0)  # see test_few_channels.py


def convolved(x: Operation, filters: int, size: int, seed: int) -> Operation:
    """A convolution with small integers, whose sums are exact."""
    channels = int(x.shape[-1])
    w = np.random.default_rng(seed).integers(-1, 2, (size, size, channels, filters))
    pad = ((size // 2,) * 2,) * 2
    return ops.convolution(x, w.astype(x.dtype), padding=pad)


def unit(x: Operation, filters: int, size: int, seed: int) -> Operation:
    """A convolution with bias and ReLU: one call of the library."""
    bias = np.random.default_rng(seed).integers(-4, 5, filters).astype(x.dtype)
    return ops.relu(convolved(x, filters, size, seed) + bias)


def inception(x: Operation) -> list[Operation]:
    """Three branches, one of them without anything behind the convolution."""
    branches = [unit(x, 8, 1, 1), convolved(unit(x, 4, 1, 2), 12, 3, 3), convolved(x, 4, 3, 4)]
    return [unit(ops.concat(branches, -1), 8, 1, 5) - 1.0]


def dense_block(x: Operation) -> list[Operation]:
    """What a layer makes goes behind what it was given; ReLU before each convolution."""
    for k in range(3):
        x = ops.concat([x, convolved(ops.relu(x - 1.0), 4, 3, k)], -1)
    return [x * 2.0]


def directly(x: Operation) -> list[Operation]:
    """A branch that another convolution reads where it lies."""
    y = convolved(x, 8, 1, 1)
    whole = ops.concat([x * 2.0, y], -1)
    return [whole * 2.0, convolved(y, 4, 3, 3) * 2.0]


def added(x: Operation) -> list[Operation]:
    """Branches that are packed: what is added is a part of others, or what follows adds something."""
    y = convolved(x, 8, 1, 1)
    z = ops.relu(convolved(x, 8, 3, 2) + np.full(8, 1, x.dtype) + y)
    w = ops.relu(convolved(x, 8, 3, 3) + np.full(8, 2, x.dtype) + ops.relu(x)[..., :8])
    return [ops.concat([x * 2.0, y], -1) * 2.0, z + 1.0, ops.concat([w, x * 3.0], -1) * 2.0]


def slices(x: Operation) -> list[Operation]:
    whole = unit(x, 24, 1, 1)
    return [
        convolved(whole[..., 4:16], 8, 3, 2) + 1.0,
        convolved(whole[..., 16:], 4, 1, 3) * 3.0,
        ops.sum(whole, (0, 1, 2)),
    ]


def unaligned(x: Operation) -> list[Operation]:
    """Channels that do not begin at multiples of 16 bytes, or rows of an odd number of channels."""
    odd = ops.concat([convolved(x, 3, 1, 1), convolved(x, 8, 1, 2)], -1)
    return [odd * 2.0, convolved(unit(x, 9, 1, 3)[..., 1:6], 4, 3, 4) + 1.0]


CASES: dict[Values, tuple[int, int]] = {  # how many values are placed, how many movements copy
    inception: (2, 0),  # what bias and ReLU follow is packed
    dense_block: (5, 0),  # x is copied into the first
    directly: (2, 0),
    added: (2, 1),  # neither branch, but what is beside it
    slices: (0, 0),
    unaligned: (0, 2),
}


def made(values: Values, dtype: str) -> tuple[Node, list[Node]]:
    x = placeholder("x", Spec((BATCH, 5, 4, CHANNELS), as_dtype(dtype)))
    return x, [y.node for y in values(Operation(x))]


def integers(batch: int, dtype: str) -> Any:
    rng = np.random.default_rng(batch)
    return rng.integers(-2, 3, (batch, 5, 4, CHANNELS)).astype(as_dtype(dtype))


def agree(x: Node, nodes: list[Node], dtype: str, batches: tuple[int, ...] = (3, 1, 0)) -> Any:
    """Results are those of the reference; what ran."""
    reference = Executable(nodes, executor="reference")
    run = Executable(nodes, executor="native", device="cuda", check=True)
    for batch in batches:
        fed = {x: integers(batch, dtype)}
        for got, expected in zip(run.run(fed), reference.run(fed), strict=True):
            np.testing.assert_array_equal(got, expected)
    return run


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("values", CASES, ids=lambda v: v.__name__)
def test_values_and_gradients(values: Values, dtype: str, device: str) -> None:
    placed, copied = CASES[values]
    x, nodes = made(values, dtype)
    with on(device, FUSED_CONVOLUTIONS):
        agree(x, nodes, dtype)
        if dtype == "float32":
            program = Program.of(nodes)
            plan = native_plan(program, check=True, rounding=False, libraries=FUSED_CONVOLUTIONS)
            moves = [w.region.nodes[0] for w in plan.work if w.region.kind is RegionKind.MOVE]
            images = [n for n in moves if n.shape[0] == BATCH]
            apart = [n for n in images if not any(i in plan.inside for i in n.inputs)]
            assert (len(plan.inside), len(apart)) == (placed, copied), plan
        loss = sum((Operation(n).sum() for n in nodes), start=Operation(nodes[0]).sum()).node
        agree(x, [loss, *gradient(loss, [x])], dtype, (3,))


@needs_compiler
def test_a_slice_of_a_gradient_is_read_where_it_lies() -> None:
    """Of a dense block: both of a convolution's gradients read their part of the concatenation's."""
    x, (node,) = made(dense_block, "float32")
    loss = ops.sum(Operation(node) * Operation(node)).node
    with emulated_device(functions=FUSED_CONVOLUTIONS):
        run = agree(x, gradient(loss, [x]), "float32", (3,))
        text = run.text({"batch": 3})
    assert " of 44 " in text.split("library dgrad of")[1].splitlines()[0], text


@needs_compiler
def test_what_the_library_has_no_way_for_is_computed_on_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Emulator.algorithms
    monkeypatch.setattr(
        Emulator,
        "algorithms",
        lambda self, node, most=1: [] if any(getattr(node, "pitches", ())) else known(self, node, most),
    )  # fmt: skip
    with emulated_device(functions=FUSED_CONVOLUTIONS):
        for values in (inception, dense_block, directly, slices, added):
            x, nodes = made(values, "float32")
            assert " of " not in _calls(agree(x, nodes, "float32").text({"batch": 3}))
            loss = sum((Operation(n).sum() for n in nodes), start=Operation(nodes[0]).sum()).node
            agree(x, [loss, *gradient(loss, [x])], "float32", (3,))


def _calls(text: str) -> str:
    """The operands of the library's calls."""
    calls = (line.split(" of ", 1)[1] for line in text.splitlines() if "library fprop of " in line)
    return "\n".join(calls)


@pytest.mark.parametrize("device", DEVICES)
def test_images_at_odd_addresses(device: str) -> None:
    """What begins with the second of images of 300 bytes; the emulated library looks at addresses."""
    x = placeholder("x", Spec((4, 5, 5, 3), np.dtype(np.float32)))
    fed = np.random.default_rng(1).integers(-2, 3, (4, 5, 5, 3)).astype(np.float32)
    nodes = [unit((Operation(x) * 1.0)[1:], 4, 3, 1).node]
    with on(device, FUSED_CONVOLUTIONS):
        run = Executable(nodes, executor="native", device="cuda", check=True)
        (found,) = run.run({x: fed})
    (expected,) = Executable(nodes, executor="reference").run({x: fed})
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_no_channels_are_zeros_in_place(device: str) -> None:
    """A branch without anything to sum is zeros between other channels."""
    x = placeholder("x", Spec((BATCH, 5, 4, CHANNELS), np.dtype(np.float32)))
    empty = np.zeros((1, 1, 0, 4), np.float32)
    branch = ops.convolution(Operation(x)[..., :0], empty)
    nodes = [(ops.concat([unit(Operation(x), 4, 1, 1), branch, Operation(x) * 1.0], -1) * 2.0).node]
    with on(device, FUSED_CONVOLUTIONS):
        agree(x, nodes, "float32")


def branched(**more: Any) -> md.Model:
    """A stem, branches side by side, then a dense block."""
    layers = md.layers
    x = inputs = layers.Input((8, 7, 3))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    branches = [layers.Conv2D(8, 1, activation="relu")(x), layers.Conv2D(12, 3, padding="same")(x)]
    x = layers.Concatenate()(branches)
    for _ in range(2):
        y = layers.Activation("relu")(layers.BatchNorm()(x))
        y = layers.Conv2D(4, 3, padding="same", use_bias=False)(y)
        x = layers.Concatenate()([x, y])
    outputs = layers.Dense(4)(layers.GlobalAveragePooling2D()(x))
    return md.Model(
        inputs=inputs, outputs=outputs, loss="cross_entropy",
        optimizer=md.optim.SGD(0.05, momentum=0.9), seed=2, **more,
    )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "precision", ["float32", pytest.param("mixed_bf16", marks=pytest.mark.long)]
)
def test_a_network_of_branches_trains(device: str, precision: str) -> None:
    rng = np.random.default_rng(17)
    x = rng.normal(size=(19, 8, 7, 3)).astype(np.float32)
    y = rng.integers(0, 4, 19)
    exact = branched(executor="reference")
    exact.fit(x, y, batch_size=8, epochs=2, verbose=0)
    with on(device, FUSED_CONVOLUTIONS):
        model = branched(device="cuda", precision=precision)
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        other = branched(executor="reference", precision=precision)
        other.fit(x, y, batch_size=8, epochs=2, verbose=0)
        assert distance(model, other) < max(1e-4, 2 * distance(exact, other))
        found = model.predict(x, batch_size=8)
        text = model.plan()
    if precision == "float32":
        assert "in place" in text and "concat" in text
    assert np.isfinite(found).all()
