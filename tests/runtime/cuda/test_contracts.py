"""Every op in every dtype on a device against its reference; random graphs against the reference executor.

The emulated device compiles with g++, which takes its time: the usual run has a few ops there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.op import NoGradient, Op
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory.dtypes import is_floating
from magmadnn.runtime import Executable
from tests.compiler import exact_draw
from tests.compiler.mixed_draw import MODES, mixed, seeds
from tests.compiler.native_draw import draw
from tests.compiler.native_graphs import fault, shrunk
from tests.ops.contract_cases import (
    BUILT_IN,
    FLOATS,
    INTEGERS,
    REFUSED,
    Case,
    assert_matches,
    cases,
)
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import needs_compiler

KINDS = {"emulated": ("float32",), "gpu": (*FLOATS, *INTEGERS)}
GRAPHS = {"emulated": 2000, "gpu": 2000}
EXACT_GRAPHS = {"emulated": 200, "gpu": 2000}
BLOCKS = 10
USUAL = ("softmax", "sum", "matmul", "where", "max_pooling", "average_pooling")

EMULATED, GPU = DEVICES
RARE = pytest.param("emulated", marks=[*EMULATED.marks, pytest.mark.long])
EACH = [
    pytest.param(op, *device.values, id=f"{op.name}-{device.values[0]}", marks=device.marks)
    for op in BUILT_IN.values()
    for device in (EMULATED if op.name in USUAL else RARE, GPU)
]


def on_graph(case: Case, number: int) -> tuple[Node, dict[Node, Any]]:
    """The op on placeholders, and what is fed."""
    inputs = [
        placeholder(f"x{number}_{i}", Spec(x.shape, x.dtype)) for i, x in enumerate(case.operands)
    ]
    node = case.op(*case.listed(inputs), **case.attributes)
    return node, dict(zip(inputs, case.operands, strict=True))


@pytest.mark.parametrize(("op", "device"), EACH)
def test_result_equals_the_reference(op: Op, device: str) -> None:
    """All samples of an op and a dtype are outputs of one program."""
    for dtype in KINDS[device]:
        if dtype in REFUSED.get(op.name, ()):
            continue
        found = cases(op, dtype)
        made = [on_graph(case, number) for number, case in enumerate(found)]
        fed = {node: array for _, feeds in made for node, array in feeds.items()}
        with on(device):
            run = Executable([node for node, _ in made], executor="native", device="cuda")
            results = run.run(fed)
        for case, (node, _), result in zip(found, made, results, strict=True):
            assert result.dtype == node.dtype
            assert_matches(case, result)


@pytest.mark.parametrize(("op", "device"), EACH)
def test_gradients_equal_the_reference_executors(op: Op, device: str) -> None:
    """Gradients of the sum of squares of each sample's result, in float64."""
    if isinstance(op.vjp, NoGradient):
        return
    nodes: list[Node] = []
    fed: dict[Node, Any] = {}
    for number, case in enumerate(cases(op, "float64")):
        node, feeds = on_graph(case, number)
        if not is_floating(node.dtype):
            continue
        real = [x for x in feeds if is_floating(x.dtype)]
        nodes += gradient(_sum_of_squares(node), real)
        fed |= feeds
    if not nodes:
        return
    with on(device):
        found = Executable(nodes, executor="native", device="cuda").run(fed)
    for got, expected in zip(found, Executable(nodes).run(fed), strict=True):
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12 * scale)


def _sum_of_squares(node: Node) -> Node:
    multiply: Callable[..., Node] = BUILT_IN["multiply"]
    total: Callable[..., Node] = BUILT_IN["sum"]
    squares = multiply(node, node)
    return total(squares) if squares.shape else squares


@pytest.mark.parametrize("device", [RARE, GPU])
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_graphs(block: int, device: str) -> None:
    each = GRAPHS[device] // BLOCKS
    for seed in range(block * each, (block + 1) * each):
        case = draw(seed)
        with on(device):
            why = fault(case, "cuda")
            small = shrunk(case, "cuda") if why is not None else None
        assert why is None, f"seed {seed}: {why}\n{small.text() if small else ''}"


def check_exact(seed: int, device: str) -> None:
    case = exact_draw.draw(seed)
    with on(device):
        why = fault(case, "cuda", exact=True)
        small = shrunk(case, "cuda", exact=True) if why is not None else None
    assert why is None, f"seed {seed}: {why}\n{small.text() if small else ''}"


@needs_compiler
@pytest.mark.parametrize("seed", [2, 28, 30])
def test_integers_truth_values_and_halves_are_equal(seed: int) -> None:
    """A few of those below; the native executor once refused the last two."""
    check_exact(seed, "emulated")


@pytest.mark.parametrize("device", [RARE, GPU])
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_graphs_of_exact_steps_are_equal(block: int, device: str) -> None:
    each = EXACT_GRAPHS[device] // BLOCKS
    for seed in range(block * each, (block + 1) * each):
        check_exact(seed, device)


def check_mixed(seed: int, mode: str, device: str) -> None:
    case = mixed(seed, mode)
    assert case is not None
    with on(device):
        why = fault(case, "cuda")
        small = shrunk(case, "cuda") if why is not None else None
    assert why is None, f"seed {seed}, {mode}: {why}\n{small.text() if small else ''}"


@needs_compiler
@pytest.mark.parametrize("mode", MODES)
def test_products_of_halves_are_what_the_reference_computes(mode: str) -> None:
    """The first few of those below."""
    for seed in seeds(0, 2):
        check_mixed(seed, mode, "emulated")


@pytest.mark.parametrize("device", [RARE, GPU])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", range(4))
def test_random_graphs_in_mixed_precision(block: int, mode: str, device: str) -> None:
    for seed in seeds(100 * block, {"emulated": 5, "gpu": 50}[device]):
        check_mixed(seed, mode, device)
