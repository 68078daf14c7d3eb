"""Graphs deeper than Python recurses: computed, differentiated, printed, drawn, copied; in linear time."""

from __future__ import annotations

import copy
import cProfile
import inspect
import pickle
import pstats
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.plan.listing import describe
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.graph import Node, Spec, show
from magmadnn.graph.drawing.diagram import to_svg
from magmadnn.graph.node import constant, placeholder, rebuild
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable

X = np.random.default_rng(0).uniform(-1, 1, (5, 5)).astype(np.float32)
MATRIX = constant(np.linalg.qr(X)[0])

Link = Callable[[Any], Any]
LINKS: dict[str, Link] = {
    "one step": lambda y: ops.abs(y) - np.float32(0.01),
    "formulas that say operands twice": lambda y: ops.softsign(ops.relu(y) - ops.square(y)),
    "products": lambda y: ops.maximum(y @ MATRIX, np.float32(-0.5)),
    "sums over rows": lambda y: y - ops.mean(y, axis=-1, keepdims=True),
    "integers between": lambda y: ops.cast(ops.floor(y), "int32") * np.float32(0.5) + y,
    "sums over columns": lambda y: y - ops.mean(y, axis=0),
    "copies": lambda y: ops.transpose(y) + np.float32(0.01),
    "views": lambda y: ops.transpose(ops.reshape(y, (1, 5, 5))[0]),
    "used twice": lambda y: y + ops.tanh(y) * np.float32(-0.1),
    "activations": lambda y: ops.gelu(y) + np.float32(0.1),
}
USUAL = list(LINKS)[:4]


def chain(link: Link, length: int) -> tuple[Node, Node]:
    x: Any = placeholder("x", Spec(X.shape, X.dtype))
    y = x
    for _ in range(length):
        y = link(y)
    return x, y


@pytest.fixture
def few_frames() -> Iterator[None]:
    """Calls may be 400 deep, which suits formulas of any length, but no graph of 500 nodes."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 400)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize(
    "name", [*USUAL, *(pytest.param(n, marks=pytest.mark.long) for n in list(LINKS)[4:])]
)
def test_a_deep_chain_is_computed_and_differentiated(name: str, few_frames: None) -> None:
    x, y = chain(LINKS[name], 500)
    outputs = [y, *gradient(ops.sum(y), [x])]
    native, reference = (
        Executable(outputs, executor=e).run({x: X}) for e in ("native", "reference")
    )
    for a, b in zip(native, reference, strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["one step", "products"])
def test_a_deep_chain_is_printed_drawn_copied_and_rebuilt(name: str, few_frames: None) -> None:
    length = 500
    x, y = chain(LINKS[name], length)
    assert len(show(y).splitlines()) > length
    assert len(str(Program.of([y])).splitlines()) > length
    assert describe(native_plan(Program.of([y]), check=True))
    assert to_svg(Program.of([y])).count("<rect") > length
    for other in (copy.deepcopy(y), pickle.loads(pickle.dumps(y))):
        assert show(other) == show(y)
    fresh = placeholder("z", x.spec)
    (again,) = rebuild([y], {x: fresh})
    np.testing.assert_array_equal(Executable([again]).run({fresh: X}), Executable([y]).run({x: X}))


def test_a_deep_operation_is_evaluated_copied_and_differentiated(few_frames: None) -> None:
    v = md.variable("v", X)
    y = v
    for _ in range(500):
        y = ops.abs(y) - np.float32(0.01)
    (slope,) = md.grad(y.sum(), [v])
    assert np.isfinite(np.asarray(slope.eval())).all()
    np.testing.assert_array_equal(copy.deepcopy(y).eval(), y.eval())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(y)).eval(), y.eval())


def calls_of_planning(link: Link, length: int) -> int:
    """How many calls the gradient of a chain takes, from the graph to the native plan."""
    x, y = chain(link, length)
    with cProfile.Profile() as profile:
        native_plan(Program.of([y, *gradient(ops.sum(y), [x])]))
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]  # typeshed has it not


@pytest.mark.parametrize("name", ["one step", "products", "sums over columns", "used twice"])
def test_planning_takes_time_in_proportion_to_the_graph(name: str) -> None:
    """Three times as much takes three times as long; what is looked at again each time shows as more."""
    small, large = (calls_of_planning(LINKS[name], n) for n in (60, 180))
    assert large < 3.3 * small


@pytest.mark.long
@pytest.mark.timeout(1800)  # some minutes where nothing else runs
@pytest.mark.parametrize("name", ["one step", "products"])
def test_ten_thousand_links(name: str) -> None:
    x, y = chain(LINKS[name], 10_000)
    outputs = [y, *gradient(ops.sum(y), [x])]
    native, reference = (
        Executable(outputs, executor=e).run({x: X}) for e in ("native", "reference")
    )
    for a, b in zip(native, reference, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-4)
    assert len(show(y).splitlines()) > 10_000
    assert show(pickle.loads(pickle.dumps(y))) == show(y)
