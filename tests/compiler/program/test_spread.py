"""spread: operands that repeat themselves along an axis in the middle; places along any axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.program.broadcasts import spread, walkable
from magmadnn.graph import Dim, Spec
from magmadnn.graph.gradient import gradient
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from magmadnn.tensor import Operation
from tests.compiler.sample_programs import BATCH
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


def test_what_kernels_can_walk_over_stays() -> None:
    for shape in ((7,), (1, 7), (BATCH, 5, 7), (BATCH, 5, 1), (), (1, 1, 1), (1, 1, 7)):
        assert walkable(shape, (BATCH, 5, 7)) == shape
    assert walkable((BATCH, 7), (BATCH, 7)) == (BATCH, 7)
    assert walkable((3, 1, 7), (3, 1, 7)) == (3, 1, 7)
    assert walkable((BATCH, 1, 1), (BATCH, 5, 7)) == (
        BATCH,
        5,
        1,
    )  # a number for each row is enough
    assert walkable((5, 1), (BATCH, 5, 7)) == (BATCH, 5, 1)


def test_what_several_read_is_repeated_once() -> None:
    (x, y), _ = drawn(SHAPES[0])
    after = spread(Program.of([(x + y).node, (x * y).node]))
    assert str(after).count("broadcast_to") == 1


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
