"""Sums of squared deviations from the mean, and all sums over the same matrix, from one reading of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from magmadnn.tensor import Operation
from magmadnn.tensor import placeholder as open_placeholder

RNG = np.random.default_rng(6)
THREADS = (1, 2, 5, 16)


def fed(shape: tuple[Any, ...], dtype: Any = np.float32, name: str = "x") -> Node:
    return placeholder(name, Spec(shape, np.dtype(dtype)))


def run(
    plan: NativePlan, values: dict[Node, Any], threads: int = 2, sizes: dict[str, int] | None = None
) -> list[Any]:
    found = Instance(plan, sizes or {}, threads).run(values, False)
    assert found is not None
    return found


def columns_of(plan: NativePlan) -> list[Columns]:
    kernels = (work.lowered.kernel for work in plan.work if work.lowered is not None)
    return [kernel for kernel in kernels if isinstance(kernel, Columns)]


@pytest.mark.parametrize("mean", [0.0, 1e4, -3e5])
@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 1000, 8191, 8192, 20011])
def test_the_mean_may_be_large(rows: int, mean: float) -> None:
    """As good as two passes: the error is some units of the variance, and that of the mean, squared."""
    columns = 19
    x = (mean + RNG.standard_normal((rows, columns))).astype(np.float32)
    x[:, 3] = 7.25  # and without any deviation
    node = fed(x.shape)
    plan = native_plan(Program.of([ops.var(Operation(node), axis=0).node]), check=True)
    (kernel,) = columns_of(plan)
    assert [r.kind for r in kernel.reduce] == ["add", "deviations"]
    (found,) = run(plan, {node: x})
    wide = x.astype(np.float64)
    exact, unit = wide.var(0), np.finfo(np.float32).eps
    # sums of blocks of 64, of blocks of those; each mean is off by as many units of itself
    roundings = 64 + rows / 64 / 64 + 32 if rows < 8192 else 64 + 256
    off = (unit * roundings * (abs(wide).mean(0))) ** 2
    assert np.all(abs(found - exact) <= 2 * roundings * unit * exact + off)
    assert found[3] == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_do_not_depend_on_threads(dtype: Any) -> None:
    x = (100 + RNG.standard_normal((12007, 70))).astype(dtype)
    node = fed(x.shape, dtype)
    made = [ops.mean(Operation(node), axis=0), ops.var(Operation(node), axis=0)]
    plan = native_plan(Program.of([m.node for m in made]), check=True)
    first, *others = (run(plan, {node: x}, threads) for threads in THREADS)
    for other in others:
        assert [a.tobytes() for a in other] == [a.tobytes() for a in first]
    np.testing.assert_allclose(first[1], x.astype(np.float64).var(0), rtol=3e-5)


def test_an_outlier_that_comes_first_costs_no_digits() -> None:
    x = (1e4 + RNG.standard_normal((9000, 20))).astype(np.float32)
    x[0] = 0
    node = fed(x.shape)
    (found,) = run(native_plan(Program.of([ops.var(Operation(node), axis=0).node])), {node: x})
    np.testing.assert_allclose(found, x.astype(np.float64).var(0), rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 5, 100, 9000])
def test_nan_and_infinity_stay_in_their_columns(rows: int) -> None:
    batch = open_placeholder("x", (None, 33), np.float32)
    made = ops.var(batch, axis=0)
    x = RNG.standard_normal((rows, 33)).astype(np.float32)
    if rows:
        x[rows // 2, 5], x[-1, 7] = np.nan, np.inf
    there = Executable([made.node], executor="native", check=True)
    (found,) = there.run({batch.node: x})
    (wanted,) = Executable([made.node], executor="reference").run({batch.node: x})
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    assert "0 calls of NumPy" in there.text({})


def test_what_only_a_sum_reads_is_not_stored() -> None:
    """Three sums over two matrices and what is made of them: one kernel, which stores three rows."""
    x, y = fed((5, 60, 41)), fed((5, 60, 41), name="y")
    a, b = Operation(x), Operation(y)
    row = RNG.standard_normal(41).astype(np.float32)
    sums = [ops.sum(b, (0, 1)), ops.sum(b * (a - row), (0, 1)), ops.sum(ops.exp(a * 0.1), (0, 1))]
    plan = native_plan(Program.of([s.node for s in sums]), check=True)
    (kernel,) = columns_of(plan)
    assert len(kernel.reduce) == 3 and len(plan.work) == 1
    values = {n: RNG.standard_normal((5, 60, 41)).astype(np.float32) for n in (x, y)}
    wide = {n: v.astype(np.float64) for n, v in values.items()}
    wanted = [wide[y], wide[y] * (wide[x] - row), np.exp(wide[x] * 0.1)]
    for found, each in zip(run(plan, values), wanted, strict=True):
        allowed = 80 * np.finfo(np.float32).eps * abs(each).sum((0, 1))
        assert np.all(abs(found - each.sum((0, 1))) <= allowed)


def test_a_column_and_a_sum_that_waits_for_another() -> None:
    """A weight for each row; what needs a result of the first sum is a second kernel."""
    x, w = fed((9001, 24)), fed((9001, 1), name="w")
    a, weight = Operation(x), Operation(w)
    mean = ops.sum(a * weight, axis=0) / 9001.0
    made = ops.sum((a - mean) * weight, axis=0)
    plan = native_plan(Program.of([made.node]), check=True)
    assert [len(kernel.reduce) for kernel in columns_of(plan)] == [1, 1]
    assert len(plan.work) == 2
    values = {
        x: RNG.standard_normal((9001, 24)).astype(np.float32),
        w: RNG.standard_normal((9001, 1)).astype(np.float32),
    }
    found = run(plan, values)[0]
    wide, by = values[x].astype(np.float64), values[w].astype(np.float64)
    each = (wide - (wide * by).mean(0)) * by
    np.testing.assert_allclose(found, each.sum(0), rtol=0, atol=1e-5 * abs(each).sum(0).max())


def test_values_that_others_read_are_stored_once() -> None:
    """A product that two read is no part of a sum's kernel; it is an output here as well."""
    x = fed((300, 40))
    shared = Operation(x) * 2.0
    outputs = [shared, ops.sum(shared, axis=0), ops.sum(shared * shared, axis=0)]
    plan = native_plan(Program.of([o.node for o in outputs]), check=True)
    values = RNG.standard_normal((300, 40)).astype(np.float32)
    found = run(plan, {x: values})
    np.testing.assert_array_equal(found[0], values * np.float32(2))
    wanted = ((2.0 * values.astype(np.float64)) ** 2).sum(0)
    np.testing.assert_allclose(found[2], wanted, rtol=1e-5)


@pytest.mark.parametrize("shape", [("batch", 1), ("batch", "batch", 1), (7, 1), (1, 1)])
def test_what_is_made_for_a_single_number_is_in_a_region(shape: tuple[Any, ...]) -> None:
    """A matrix of one column is reduced as one row is, by a kernel that computes nothing for it only."""
    x = open_placeholder("x", shape)
    value = np.linspace(0.5, 2.5, 25, dtype=np.float32)[: 7 if len(shape) == 2 else 25]
    value = value.reshape([5, 5, 1] if len(shape) == 3 else [-1, 1])[: 1 if shape[0] == 1 else None]
    total = ops.sum(ops.square(x) * 0.5, tuple(range(len(shape) - 1)))
    np.testing.assert_allclose(total.eval({x: value}), [np.square(value).sum() / 2], rtol=1e-5)
