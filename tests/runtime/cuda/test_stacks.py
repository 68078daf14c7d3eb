"""Products of stacks of matrices on a device."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn import ops
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.schedule import launches
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
@pytest.mark.parametrize(
    ("turned", "dtype"),
    [
        pytest.param(turned, dtype, marks=() if dtype in usual else pytest.mark.long)
        for turned, usual in (
            ("", ["float32", "bfloat16"]),
            ("a", ["float64"]),
            ("b", ["float32"]),
            ("ab", ["float64", "bfloat16"]),
        )
        for dtype in ("float32", "float64", "bfloat16")
    ],
)
def test_a_stack_is_one_launch_with_the_bits_of_single_products(
    device: str, dtype: str, turned: str
) -> None:
    """Two axes of stacks, of which each factor has one; what follows the product is part of it."""
    rng = np.random.default_rng(5)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    m, n, k = 19, 24, 37
    shapes = {
        "x": (3, 1, m, k),
        "y": (2, k, n),
        "row": (n,),
        "column": (3, 2, m, 1),
        "full": (3, 2, m, n),
    }
    if "a" in turned:
        shapes["x"] = (3, 1, k, m)
    if "b" in turned:
        shapes["y"] = (2, n, k)
    arrays = {name: rng.standard_normal(shape).astype(kind) for name, shape in shapes.items()}

    def built(at: tuple[int, int] | None) -> tuple[Executable, dict[Any, Any]]:
        taken = arrays
        if at is not None:
            i, j = at
            taken = {"x": arrays["x"][i, 0], "y": arrays["y"][j], "row": arrays["row"]}
            taken |= {name: arrays[name][i, j] for name in ("column", "full")}
        nodes = {name: placeholder(name, Spec(a.shape, a.dtype)) for name, a in taken.items()}
        x, y, row, column, full = (Operation(nodes[name]) for name in shapes)
        left = ops.swapaxes(x, -1, -2) if "a" in turned else x
        right = ops.swapaxes(y, -1, -2) if "b" in turned else y
        made: Any = ops.tanh(ops.matmul(left, right) + row) * column + full
        there = Executable([made.node], executor="native", device="cuda")
        return there, {nodes[name]: a for name, a in taken.items()}

    with on(device):
        there, fed = built(None)
        (found,) = there.run(fed)
        text = there.text({})
        assert "stack of 6, each own product 19 x 24 x 37" in text
        assert "library" not in text.lower()
        for i, j in np.ndindex(3, 2):
            alone, own = built((i, j))
            np.testing.assert_array_equal(found[i, j], alone.run(own)[0])
    wide = {name: a.astype(np.float64) for name, a in arrays.items()}
    left = wide["x"].swapaxes(-1, -2) if "a" in turned else wide["x"]
    right = wide["y"].swapaxes(-1, -2) if "b" in turned else wide["y"]
    exact = np.tanh(left @ right + wide["row"]) * wide["column"] + wide["full"]
    bound = {"float32": 2e-5, "float64": 1e-13, "bfloat16": 0.5}[dtype]
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=0, atol=bound)


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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("left", "right"),
    [((5, 33, 40), (5, 40, 37)), ((33, 40), (2, 3, 40, 37))],
)
def test_float64_stacks_of_larger_matrices_are_one_call_of_the_library(
    device: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape) for shape in (left, right)]
    nodes = [placeholder(f"x{k}", Spec(a.shape, a.dtype)) for k, a in enumerate(arrays)]
    made: Any = ops.matmul(*map(Operation, nodes))
    count = int(np.prod(made.shape[:-2]))
    with on(device):
        there = Executable([made.node], executor="native", device="cuda")
        (found,) = there.run(dict(zip(nodes, arrays, strict=True)))
        assert f"cuBLASLt product {count} of 33 x 37 x 40 in float64" in there.text({})
    np.testing.assert_allclose(found, np.matmul(*arrays), rtol=0, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("leading", [(3,), (2, 3)])
def test_stacks_in_uneven_steps_are_few_calls(leading: tuple[int, ...], device: str) -> None:
    """[2, 1, ...] beside [1, 3, ...], or beside equal steps: one leads along the last axis of both only."""
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal(shape) for shape in ((2, 1, 33, 35), (*leading, 35, 40))]
    nodes = [placeholder(f"x{k}", Spec(a.shape, a.dtype)) for k, a in enumerate(arrays)]
    made: Any = ops.matmul(*map(Operation, nodes))
    with on(device):
        there = Executable([made.node], executor="native", device="cuda")
        (found,) = there.run(dict(zip(nodes, arrays, strict=True)))
        assert there.text({}).count("cuBLASLt product 3 of 33 x 40 x 35 in float64") == 2
    np.testing.assert_allclose(found, np.matmul(*arrays), rtol=0, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_stacks_of_halves_are_one_call_of_the_library_that_counts_in_halves(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Factors are float32 to the product, and two bytes an element in memory."""
    monkeypatch.setattr(launches, "choose_stacked", lambda *_: None)
    rng, kind = np.random.default_rng(5), np.dtype(ml_dtypes.bfloat16)
    # small whole numbers, so that sums are exact
    arrays = [rng.integers(-1, 2, s).astype(kind) for s in ((5, 34, 40), (40, 48))]
    nodes = [placeholder(f"x{k}", Spec(a.shape, a.dtype)) for k, a in enumerate(arrays)]
    x, w = map(Operation, nodes)
    made = x[:, 1:-1] @ ops.broadcast_to(w, (5, 40, 48))  # one every 34 rows beside one for all
    with on(device):
        there = Executable([made.node], executor="native", device="cuda")
        (found,) = there.run(dict(zip(nodes, arrays, strict=True)))
        assert "cuBLASLt product 5 of 32 x 48 x 40" in there.text({})
    wide = [a.astype(np.float32) for a in arrays]
    np.testing.assert_array_equal(found.astype(np.float32), wide[0][:, 1:-1] @ wide[1])
