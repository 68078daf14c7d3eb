"""Operands with strides: repeated along an axis in the middle, parts of others; places along any axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Dim, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from magmadnn.tensor import Operation
from tests.compiler.sample_programs import BATCH
from tests.graph.bare_nodes import variable
from tests.runtime.cuda.devices import DEVICES, on

Shape = tuple[Any, ...]
RNG = np.random.default_rng(6)
TIME = Dim.symbol("time")
SHAPES: list[tuple[Shape, Shape]] = [
    ((BATCH, 1, 7), (BATCH, 5, 7)), ((5, 7), (BATCH, 5, 7)), ((BATCH, 1, 1), (BATCH, 5, 7)),
    ((1, 5, 1), (BATCH, 5, 7)), ((BATCH, 1, 7), (1, 5, 7)), ((3, 1, 1, 2), (3, 5, BATCH, 2)),
    ((3, 1, 5, 1), (3, 7, 5, 2)), ((BATCH, 1, 7), (BATCH, TIME, 7)), ((1, TIME, 7), (BATCH, TIME, 7)),
]  # fmt: skip


def bound(shape: Shape, batch: int = 11, time: int = 3) -> tuple[int, ...]:
    return tuple({BATCH: batch, TIME: time}.get(n, n) for n in shape)


def drawn(shapes: tuple[Shape, ...]) -> tuple[list[Operation], dict[Any, Any]]:
    nodes = [placeholder(f"x{k}", Spec(s, np.dtype(np.float32))) for k, s in enumerate(shapes)]
    feeds = {n: RNG.standard_normal(bound(n.shape)).astype(np.float32) for n in nodes}
    return [Operation(n) for n in nodes], feeds


def compared(
    made: Operation, feeds: dict[Any, Any], device: str | None = None
) -> tuple[Any, Any, str]:
    (wanted,) = Executable([made.node], executor="reference").run(feeds)
    run = Executable([made.node], executor="native", check=True, device="cuda" if device else "cpu")
    (found,) = run.run(feeds)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    return found, wanted, run.text(run.sizes(feeds))


@pytest.mark.parametrize("shapes", SHAPES)
def test_each_side_may_repeat_itself(shapes: tuple[Shape, Shape]) -> None:
    for pair in (shapes, shapes[::-1]):
        (x, y), feeds = drawn(pair)
        found, wanted, plan = compared((x * 2.0 - y) * x, feeds)
        assert "0 calls of NumPy" in plan
        np.testing.assert_array_equal(found, wanted)


def test_gradients_have_kernels_too() -> None:
    (x, y), feeds = drawn(SHAPES[0])
    loss = ops.sum(ops.tanh(x * y))
    for node in gradient(loss.node, [x.node, y.node]):
        found, wanted, plan = compared(Operation(node), feeds)
        assert "0 calls of NumPy" in plan
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2.0**-18)


def regions_of(made: Operation) -> list[RegionKind]:
    return [work.region.kind for work in native_plan(Program.of([made.node])).work]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "repeated in the middle": lambda x: x[:, :1] * 2.0 + x,
    "repeated last, in the middle too": lambda x: x[:, :1, :, :1] * x,
    "every second, backwards": lambda x: x[::-2, :, 1:] * x[1::2, :, 1:],
    "leading axes transposed": lambda x: ops.transpose(x, (2, 0, 1, 3)) * 2.0,
    "one of each": lambda x: ops.transpose(x, (1, 2, 0, 3))[1:, ::-1] + x[:, :1, :3, 2:3][0, 0, 0],
    "sums of rows": lambda x: ops.sum(ops.transpose(x, (2, 0, 1, 3)), axis=-1),
    "softmax of a view": lambda x: ops.softmax(x[::2, :, ::-1] * x[1:2]),
    "two ways at once": lambda x: x[:, :1] * x[:, :, :1] + x[:1],
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in VIEWS
        for dtype in ("float32", "float64", "bfloat16", "int64", "bool")
        if "softmax" not in name or dtype not in ("int64", "bool")
    ],
)
def test_views_are_read_where_they_lie(name: str, dtype: str) -> None:
    kind = as_dtype(dtype)
    x = placeholder("x", Spec((4, 5, 6, 7), kind))
    made = VIEWS[name](Operation(x))
    feeds = {x: RNG.integers(0, 3, (4, 5, 6, 7)).astype(kind)}
    found, wanted, _ = compared(made, feeds)
    assert set(regions_of(made)) == {RegionKind.ROWS}
    if name == "softmax of a view":  # the order of its sums is not NumPy's
        np.testing.assert_allclose(
            found.astype(float),
            wanted.astype(float),
            rtol=2.0**-6 if dtype == "bfloat16" else 2.0**-20,
        )
    else:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_are_cut_anywhere(threads: int) -> None:
    x = placeholder("x", Spec((40, 1, 30, 70), np.dtype(np.float32)))
    y = placeholder("y", Spec((1, 20, 30, 1), np.dtype(np.float32)))
    made = Operation(x) * Operation(y)
    feeds = {n: RNG.standard_normal(n.shape).astype(np.float32) for n in (x, y)}
    plan = native_plan(Program.of([made.node]))
    found = Instance(plan, {}, threads).run(feeds, guard=False)
    assert found is not None
    np.testing.assert_array_equal(found[0], feeds[x] * feeds[y])


def test_too_many_axes_are_copied() -> None:
    x = placeholder("x", Spec((2, 3, 2, 3, 2, 3, 2, 5), np.dtype(np.float32)))
    made = ops.transpose(Operation(x), (6, 4, 1, 5, 2, 0, 3, 7)) + 1.0
    values = RNG.standard_normal(x.shape).astype(np.float32)
    found, wanted, _ = compared(made, {x: values})
    np.testing.assert_array_equal(found, wanted)
    assert RegionKind.MOVE in regions_of(made)


def test_a_variable_that_is_read_elsewhere_is_not_overwritten() -> None:
    """The rows of the second operand are others than the one that is written."""
    start = RNG.standard_normal((3, 4, 50)).astype(np.float32)
    w = variable("w", start)
    step = Executable(
        [], [(w, w * 2.0 - ops.broadcast_to(w[:, 3:], (3, 4, 50)))], executor="native"
    )
    step.run({})
    np.testing.assert_array_equal(w.value.read(), start * 2 - start[:, 3:])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, None])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_along_any_axis(name: str, axis: int | None, keep: bool) -> None:
    x = placeholder("x", Spec((3, 5, 7), np.dtype(np.float32)))
    values = RNG.integers(-4, 5, (3, 5, 7)).astype(np.float32)  # of equal ones the first counts,
    values[1, 2, 3] = values[1, 3, 3] = np.nan  # and so does the first NaN
    made = getattr(ops, name)(Operation(x), axis=axis, keepdims=keep)
    found, wanted, plan = compared(made, {x: values})
    assert "0 calls of NumPy" in plan
    np.testing.assert_array_equal(found, wanted)


def test_places_of_a_batch() -> None:
    x = placeholder("x", Spec((BATCH, 5, 7), np.dtype(np.float32)))
    values = RNG.standard_normal((11, 5, 7)).astype(np.float32)
    found, wanted, plan = compared(ops.argmax(Operation(x), axis=1), {x: values})
    assert "0 calls of NumPy" in plan
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shapes", SHAPES[:4])
def test_on_a_device(device: str, shapes: tuple[Shape, Shape]) -> None:
    (x, y), feeds = drawn(shapes)
    with on(device):
        found, wanted, plan = compared((x * 2.0 - y) * x, feeds, device)
        assert "0 calls of NumPy" in plan
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2.0**-20)
        places, wanted, plan = compared(ops.argmax(x + y, axis=1), feeds, device)
        assert "0 calls of NumPy" in plan
        np.testing.assert_array_equal(places, wanted)
