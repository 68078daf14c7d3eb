"""Products of stacks of matrices on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.runtime import Executable
from magmadnn.tensor import Operation
from tests.runtime.cuda.devices import DEVICES, on

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 5, 7), (3, 7, 2)),
    ((3, 5, 7), (7, 2)),
    ((5, 7), (3, 7, 2)),
    ((2, 1, 5, 7), (3, 7, 4)),
    ((0, 5, 7), (0, 7, 2)),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_stacks(device: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (left, right)]
    nodes = [placeholder(f"x{k}", Spec(a.shape, a.dtype)) for k, a in enumerate(arrays)]
    a, b = map(Operation, nodes)
    made: Any = ops.relu(ops.matmul(a, b) + 0.25)
    with on(device):
        there = Executable([made.node], executor="native", device="cuda")
        (found,) = there.run(dict(zip(nodes, arrays, strict=True)))
        if left[0]:  # a stack that is known to be empty becomes no kernel
            assert "0 calls of NumPy" in there.text({})
    exact = np.maximum(arrays[0].astype(np.float64) @ arrays[1] + 0.25, 0)
    assert found.shape == exact.shape
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_products_wait_for_kernels_and_kernels_for_products(device: str) -> None:
    """The library's kernels among ours, in new memory: who begins too early reads zeros."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 4, 6)).astype(np.float32)
    index = np.array([1, 0, 1, 1])
    node = placeholder("x", Spec(x.shape, x.dtype))
    a = Operation(node)
    first = ops.matmul(a + 0.5, ops.transpose(a, (0, 2, 1)))
    second = ops.matmul(ops.exp(ops.take(first, index, axis=1) / 8.0), first)
    with on(device):
        for _ in range(5):
            run = Executable([second.node], executor="native", device="cuda")
            (found,) = run.run({node: x})
            exact = (x.astype(np.float64) + 0.5) @ x.transpose(0, 2, 1)
            exact = np.exp(exact[:, index] / 8) @ exact
            np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 67, 41), (5, 1, 7), (0, 5, 7)])
def test_reductions_of_each_matrix(device: str, shape: tuple[int, ...]) -> None:
    """Over the axis in the middle, and what is done to the results."""
    rng = np.random.default_rng(3)
    x = rng.uniform(0.5, 1.5, shape).astype(np.float32)
    bias = rng.standard_normal(shape[2]).astype(np.float32)
    node = placeholder("x", Spec(shape, x.dtype))
    for name in ("sum", "max", "prod", "mean"):
        made: Any = getattr(ops, name)(Operation(node), axis=1) + bias
        with on(device):
            there = Executable([made.node], executor="native", device="cuda")
            (found,) = there.run({node: x})
            if shape[0]:
                assert "0 calls of NumPy" in there.text({})
        exact = getattr(np, name)(x.astype(np.float64), 1) + bias
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
