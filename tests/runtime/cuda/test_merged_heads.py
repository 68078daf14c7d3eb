"""Stacks of products that are written where a movement wants them: attention's heads beside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.program.precision import precision
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Spec
from magmadnn.graph.node import Node, placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.schedule import launches
from magmadnn.tensor import Operation
from tests.compiler.sample_programs import BATCH
from tests.runtime.cuda.devices import DEVICES, on

RNG = np.random.default_rng(13)
Make = Callable[[Operation, Operation], Operation]
DTYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
}
T, H, D = 6, 3, 8


def fed(name: str, shape: tuple[Any, ...], dtype: str = "float32") -> Operation:
    return Operation(placeholder(name, Spec(shape, np.dtype(DTYPES[dtype]))))


def numbers(node: Node, batch: int) -> Any:
    """Small whole numbers: sums of their products are exact."""
    sizes = [batch if n is BATCH else n for n in node.shape]
    return RNG.integers(-1, 2, sizes).astype(node.dtype)


def merged(y: Operation, *shape: Any) -> Operation:
    """[batch, head, time, depth] as [batch, time, head * depth]."""
    moved = ops.transpose(y, (0, 2, 1, 3))
    return ops.reshape(moved, shape or (-1, int(y.shape[2]), int(y.shape[1]) * int(y.shape[3])))


def planned(*made: Any) -> NativePlan:
    program = Program.of([one.node if isinstance(one, Operation) else one for one in made])
    return native_plan(program, check=True, rounding=False, libraries=frozenset())


def copies(plan: NativePlan) -> int:
    moves = (w.region.nodes[0] for w in plan.work if w.region.kind is RegionKind.MOVE)
    return sum(move not in plan.inside.values() for move in moves)


def agree(made: list[Any], batches: tuple[int, ...], mode: str = "float32") -> Executable:
    """Results are those of the reference, bit by bit."""
    nodes = [one.node if isinstance(one, Operation) else one for one in made]
    leaves = [n for n in Program.of(nodes).nodes() if not n.inputs and n.name]
    there = Executable(nodes, executor="native", device="cuda", precision=mode, check=True)
    exact = Executable(nodes, executor="reference", precision=mode)
    for batch in batches:
        given = {node: numbers(node, batch) for node in leaves}
        for one, other in zip(there.run(given), exact.run(given), strict=True):
            np.testing.assert_array_equal(one, other)
    return there


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_library", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("batch", [BATCH, 4], ids=str)
def test_values(
    batch: Any, dtype: str, by_library: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored is the product, or what is made of it with single numbers and rows."""
    if by_library:
        monkeypatch.setattr(launches, "choose_stacked", lambda *_: None)
    p, v = fed("p", (batch, H, T, T), dtype), fed("v", (batch, T, H * D), dtype)
    w, row = fed("w", (H * D, 5), dtype), fed("row", (D,), dtype)
    heads = ops.transpose(ops.reshape(v, (-1, T, H, D)), (0, 2, 1, 3))
    made = [
        merged(p @ heads) @ w,
        merged(ops.relu((p @ heads) * 2.0 + row)) @ w,
        ops.relu(ops.transpose(p @ heads, (0, 2, 1, 3)))[:, :, 1:],
    ]
    counts = [copies(planned(one)) for one in made]
    assert counts[:2] == [0, 0]
    with on(device):
        for one in made:
            there = agree([one], (4, 1, 0) if batch is BATCH else (4,))
            text = there.text({"batch": 4} if batch is BATCH else {})
            assert "0 calls of NumPy" in text
            assert not by_library or text.count("cuBLASLt product 4 of 6 x 8 x 6") == H


def test_others_are_copied() -> None:
    """What is wanted itself, what others read, columns that lie apart, rows that are joined with others, more
    or fewer elements, a product that is no stack, and one that other matrices are added to."""
    p, v, w = fed("p", (4, H, T, T)), fed("v", (4, H, T, D)), fed("w", (H * D, 5))
    more = fed("more", (4, H, T, D))
    y = p @ v
    assert copies(planned(merged(y) @ w)) == 0
    turned = ops.reshape(ops.transpose(y, (0, 3, 2, 1)), (4, D * T * H)) @ fed("u", (D * T * H, 2))
    joined = ops.reshape(ops.transpose(ops.reshape(y, (2, 2, H, T, D)), (1, 2, 0, 3, 4)), (4, -1))
    alone = ops.reshape(
        ops.transpose(ops.reshape(p[0, 0] @ v[0, 0], (2, 3, D)), (1, 0, 2)), (3, -1)
    )
    others: list[list[Any]] = [
        [merged(y)],
        [merged(y) @ w, y],
        [merged(y) @ w, ops.sum(y, axis=-1)],
        [turned],
        [joined @ fed("u", (H * T * D, 2))],
        [ops.reshape(ops.transpose(y[:, 1:], (0, 2, 1, 3)), (4 * T, -1)) @ fed("u", (2 * D, 2))],
        [ops.pad(y, ((0, 0), (0, 0), (1, 0), (0, 0))) @ fed("u", (4, H, D, 2))],
        [alone @ fed("u", (2 * D, 2))],
        [merged(y + more) @ w],
    ]
    assert [copies(planned(*made)) for made in others] == [1] * len(others)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", [(1, 3, 8), (6, 1, 8), (6, 3, 1), (1, 1, 1)], ids=str)
def test_sizes_of_one(sizes: tuple[int, int, int], device: str) -> None:
    time, heads, depth = sizes
    p, v = fed("p", (BATCH, heads, time, time)), fed("v", (BATCH, heads, time, depth))
    w = fed("w", (heads * depth, 4))
    with on(device):
        agree([merged(p @ v) @ w], (3, 1))


def attention(batch: Any) -> tuple[Operation, list[Operation]]:
    """A sum over attention without its softmax, whose sums would not be exact; and weights."""
    x, *weights = fed("x", (batch, T, H * D)), *(fed(n, (H * D, H * D)) for n in "qkvo")
    q, k, v = (ops.transpose(ops.reshape(x @ w, (-1, T, H, D)), (0, 2, 1, 3)) for w in weights[:3])
    y = merged(q @ ops.swapaxes(k, -1, -2) @ v, -1, T, H * D) @ weights[3]
    return y, weights


@pytest.mark.parametrize("mode", ["float32", "mixed_bf16"])
def test_nothing_of_attention_is_copied(mode: str) -> None:
    y, weights = attention(BATCH)
    loss = ops.sum(ops.relu(y))
    program = Program.of([loss.node, *gradient(loss.node, [w.node for w in weights])])
    plan = native_plan(precision(program, mode), check=True, rounding=False, libraries=frozenset())
    assert copies(plan) == 0
    assert len(plan.inside) == 4
    if mode == "mixed_bf16":
        kernels = [
            w.lowered.kernel for w in plan.work if w.region.kind is RegionKind.GEMM and w.lowered
        ]
        assert {kernel.halves for kernel in kernels} == {"bfloat16"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_library", [False, True])
def test_gradients_of_attention(
    by_library: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_library:
        monkeypatch.setattr(launches, "choose_stacked", lambda *_: None)
    y, weights = attention(BATCH)
    loss = ops.sum(y)
    with on(device):
        nodes = [loss.node, *gradient(loss.node, [w.node for w in weights])]
        given = [n for n in Program.of(nodes).nodes() if not n.inputs and n.name]
        there = Executable(nodes, executor="native", device="cuda", check=True)
        exact = Executable(nodes, executor="reference")
        for batch in (2, 1):
            fed_with = {node: numbers(node, batch) for node in given}
            for one, other in zip(there.run(fed_with), exact.run(fed_with), strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_heads_of_halves_pass_through_shared_memory(half: str, device: str) -> None:
    """More rows than a tile has, more of k than a stage; whole numbers up to 200 are exact in both."""
    time, depth = 200, 64
    q, k, v = (fed(name, (3, time, 2 * depth), half) for name in "qkv")
    heads = [ops.transpose(ops.reshape(x, (3, time, 2, depth)), (0, 2, 1, 3)) for x in (q, k, v)]
    scores = heads[0] @ ops.swapaxes(heads[1], -1, -2)
    p, w = fed("p", (3, 2, time, time), half), fed("w", (2 * depth, 1), half)
    back = ops.swapaxes(p, -1, -2) @ heads[0]
    made = [scores, merged(p @ heads[2]) @ w, merged(back) @ w]
    with on(device):
        there = agree(made, (1,))
        text = there.text({})
        assert text.count("stack of 6, each own product 200 x") == text.count(", tiles ") == 3


@pytest.mark.parametrize("device", DEVICES)
def test_heads_are_merged_within_loops(device: str) -> None:
    """A step of a loop has a plan of its own, whose values lie among those of the loop."""
    weights = {name: fed(name, (H * D, H * D)) for name in ("q", "v", "o")}
    x, start = fed("x", (4, 2, T, H * D)), fed("start", (2, T, H * D))

    def step(cell: Operation, given: Operation) -> tuple[Operation, Operation]:
        heads = [
            ops.transpose(ops.reshape(given @ weights[name], (2, T, H, D)), (0, 2, 1, 3))
            for name in "qv"
        ]
        p = heads[0] @ ops.swapaxes(heads[0], -1, -2)
        made = merged(p @ heads[1], 2, T, H * D) @ weights["o"]
        cell = ops.minimum(ops.maximum(cell + made, -2.0), 2.0)
        return cell, cell

    last, kept = md.scan(step, start, x)
    with on(device):
        agree([last, kept], (1,))
