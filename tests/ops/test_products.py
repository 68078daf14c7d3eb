"""The gradients of `prod`: exact where elements are 0, and in memory that grows as the operand does."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.plan.memory import arena_of
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from tests.ops.contract_cases import Array

ZEROS = {"no zero": [], "one zero": [2], "two zeros": [1, 4], "three zeros": [0, 3, 4]}


def exact(x: Array, without: tuple[int, ...]) -> float:
    """The product of a row but for some places, by exact integers: elements are eighths."""
    whole = [int(8 * v) for k, v in enumerate(x.tolist()) if k not in without]
    return math.prod(whole) / 8 ** len(whole)


def first(row: Array) -> Array:
    return np.array([exact(row, (i,)) for i in range(row.size)])


def second(row: Array, weights: Array) -> Array:
    """The gradient of the weighted sum of `first`."""
    found = np.zeros(row.size)
    for i, k in itertools.permutations(range(row.size), 2):
        found[k] += weights[i] * exact(row, (i, k))
    return found


def third(row: Array, weights: Array, others: Array) -> Array:
    """The gradient of the weighted sum of `second`."""
    found = np.zeros(row.size)
    for i, k, m in itertools.permutations(range(row.size), 3):
        found[m] += weights[i] * others[k] * exact(row, (i, k, m))
    return found


def eighths(*shape: int, seed: int = 3) -> Array:
    rng = np.random.default_rng(seed)
    return rng.choice([-1, 1], shape) * rng.integers(3, 17, shape) / 8


def derivatives(axis: Any, keepdims: bool, spec: Spec) -> tuple[list[Node], list[Node]]:
    """Placeholders x, v, w; gradients of the product, of v's sum of them, of w's sum of these."""
    x, v, w = (placeholder(n, spec) for n in "xvw")
    (g,) = gradient(ops.sum(ops.prod(x, axis, keepdims)), [x])
    (h,) = gradient(ops.sum(g * v), [x])
    (t,) = gradient(ops.sum(h * w), [x])
    return [x, v, w], [g, h, t]


@pytest.mark.parametrize("executor", ["reference", "native"])
@pytest.mark.parametrize("known", [True, False], ids=["known length", "unknown length"])
@pytest.mark.parametrize("name", ZEROS)
@pytest.mark.parametrize("count", [5, 8])
def test_derivatives_are_exact_beside_zeros(
    count: int, name: str, known: bool, executor: str
) -> None:
    x, v, w = (eighths(count, seed=s) for s in (1, 2, 3))
    x[ZEROS[name]] = 0
    shape: Any = (count,) if known else (Dim.symbol("batch"),)
    inputs, outputs = derivatives(None, False, Spec(shape, x.dtype))
    found = Executable(outputs, executor=executor).run(dict(zip(inputs, (x, v, w), strict=True)))
    wanted = [first(x), second(x, v), third(x, v, w)]
    for got, expected in zip(found, wanted, strict=True):
        scale = np.abs(expected).max(initial=1)
        np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-13 * scale)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), (1, 2), (0, 1, 2), None, ()])
def test_derivatives_along_axes(axis: Any, keepdims: bool) -> None:
    x, v, w = (eighths(2, 3, 4, seed=s) for s in (1, 2, 3))
    x[0, 1, 2] = x[1, :, 0] = 0
    inputs, outputs = derivatives(axis, keepdims, Spec(x.shape, x.dtype))
    found = Executable(outputs, executor="native").run(dict(zip(inputs, (x, v, w), strict=True)))
    axes = tuple(range(3)) if axis is None else tuple(np.atleast_1d(axis).astype(int) % 3)
    kept = [a for a in range(3) if a not in axes]
    order = [*kept, *axes]

    def rows(a: Array) -> Array:
        return a.transpose(order).reshape(math.prod(x.shape[a] for a in kept), -1)

    wanted = [
        [first(r) for r in rows(x)],
        [second(r, a) for r, a in zip(rows(x), rows(v), strict=True)],
        [third(r, a, b) for r, a, b in zip(rows(x), rows(v), rows(w), strict=True)],
    ]
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(rows(got), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), (0, 3), (1, 1)])
def test_gradients_of_nothing_and_of_one(shape: tuple[int, ...]) -> None:
    x = placeholder("x", Spec(shape, np.dtype(np.float32)))
    (g,) = gradient(ops.sum(ops.prod(x, -1)), [x])
    for executor in ("reference", "native"):
        (found,) = Executable([g], executor=executor).run({x: np.full(shape, 3, np.float32)})
        np.testing.assert_array_equal(found, np.ones(shape))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_multiplied_in_float32(dtype: str) -> None:
    """Products on the way are beyond float16: 300 * 300."""
    spec = Spec((4,), np.dtype(np.float32))
    x = placeholder("x", spec)
    (g,) = gradient(ops.sum(ops.prod(ops.cast(x, dtype))), [x])
    values = np.array([300, 300, 1 / 256, 1 / 256], np.float32)
    for executor in ("reference", "native"):
        (found,) = Executable([g], executor=executor).run({x: values})
        rounded = np.asarray(ops.cast(values, dtype)).astype(np.float64)
        wanted = [np.prod(np.delete(rounded, i)) for i in range(4)]
        np.testing.assert_allclose(
            found, np.asarray(ops.cast(np.array(wanted), dtype)).astype(float)
        )


@pytest.mark.parametrize(("order", "times"), [(1, 5), (2, 16), (3, 64)])
def test_memory_grows_with_the_operand(order: int, times: int) -> None:
    """For 40,000 numbers the table of all pairs would be 6 GiB."""
    count = 40_000
    _, outputs = derivatives(None, False, Spec((count,), np.dtype(np.float32)))
    plan = native_plan(Program.of([outputs[order - 1]]))
    assert arena_of(plan, {}).nbytes < times * 4 * count
