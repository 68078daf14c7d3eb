"""FiniteWatch and guarded runs: the first operation that makes NaN or infinity is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.errors import NumericError
from magmadnn.graph import Node, scope
from magmadnn.graph import node as nodes
from magmadnn.memory.dtypes import BFLOAT16
from magmadnn.runtime import Executable, FiniteWatch
from tests.graph.bare_nodes import F32, placed, variable

X = placed("x", 3)
ADVICE = "lower the learning rate, clip gradients, or look for bad data"


def message(node: Node, feeds: dict[Node, Any]) -> str:
    with pytest.raises(NumericError) as info:
        Executable([node]).run(feeds, watch=FiniteWatch())
    return str(info.value)


def test_the_operation_and_its_layer_are_named() -> None:
    with scope("encoder"), scope("dense_1"):
        y = ops.log(X)
    with scope("loss"):
        z = ops.sum(ops.sqrt(y))
    assert message(z, {X: np.float32([1, 0, 2])}) == (
        "log in encoder/dense_1: the result has infinity, first at (1,); operands: 0 to 2 (3,); "
        + ADVICE
    )
    assert message(z, {X: np.float32([1, 0.5, 2])}) == (
        "sqrt in loss: the result has NaN, first at (1,); operands: -0.6931 to 0.6931 (3,); "
        + ADVICE
    )


def test_outside_layers_and_scalars() -> None:
    s = placed("s")
    assert message(s / 0.0, {s: 2.0}) == (
        f"divide: the result has infinity, a scalar; operands: 2 to 2 (), 0 to 0 (); {ADVICE}"
    )


def test_several_operands_and_an_empty_one() -> None:
    a, b = placed("a", 2, 3), placed("b", 3)
    assert message(a / b, {a: np.ones((2, 3)), b: [1, 0, 1]}).startswith(
        "divide: the result has infinity, first at (0, 1); operands: 1 to 1 (2, 3), 0 to 1 (3,);"
    )


def test_nan_that_was_fed_or_stands_in_a_variable() -> None:
    v = variable("dense_1/weight", np.float32([1, 2, np.nan]))
    with scope("dense_1"):
        y = X * v
    assert message(y, {X: np.ones(3)}) == (
        "variable dense_1/weight: it has NaN, first at (2,); read by multiply in dense_1; look for bad data, "
        "or a step that was too large"
    )
    good = variable("w", np.float32([1, 2, 3]))
    assert message(X * good, {X: [np.nan, 1, 2]}).startswith(
        "placeholder x: it has NaN, first at (0,);"
    )


def test_an_infinity_that_belongs_there_is_carried() -> None:
    mask = nodes.constant(np.float32([0, -np.inf, 0]))
    y = ops.softmax(X + mask)
    got = Executable([y]).run({X: np.ones(3)}, watch=FiniteWatch())[0]
    assert got.tolist() == [0.5, 0, 0.5]
    bad = (X + mask) * 0.0
    assert message(bad, {X: np.ones(3)}).startswith("multiply: the result has NaN, first at (1,)")


def test_logsumexp_of_infinities_is_no_fault_of_its_own() -> None:
    mask = nodes.constant(np.float32([-np.inf, -np.inf, 0]))
    y = ops.logsumexp(X + mask)
    assert Executable([y]).run({X: np.ones(3)}, watch=FiniteWatch())[0] == 1


def test_integers_and_halves() -> None:
    i = placed("i", 3, dtype=np.int64)
    b = placed("b", 2, dtype=BFLOAT16)
    Executable([i * 2]).run({i: [1, 2, 3]}, watch=FiniteWatch())
    assert message(b * b, {b: [1e30, 1]}).startswith(
        "multiply: the result has infinity, first at (0,)"
    )


# --- guarded runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_a_guarded_run_writes_nothing_when_something_is_not_finite(executor: str) -> None:
    v, w = variable("v", np.float32([1, 2, 3])), variable("w", np.float32([4, 5, 6]))
    with scope("sgd"):
        run = Executable([ops.sum(X)], [(v, v / X), (w, w + X)], executor=executor)
    with pytest.raises(NumericError) as info:
        run.run({X: np.float32([1, 0, 1])}, guard=True)
    assert str(info.value).startswith("divide in sgd: the result has infinity, first at (1,)")
    assert v.value.read().tolist() == [1, 2, 3]
    assert w.value.read().tolist() == [4, 5, 6]
    run.run({X: np.ones(3)}, guard=True)
    assert w.value.read().tolist() == [5, 6, 7]


def test_a_guarded_run_that_finds_no_guilty_step_writes_nothing() -> None:
    """An infinity that is only carried on is none of a step's own, but no value to learn from either."""
    v = variable("v", np.float32([1, 2, 3]))
    mask = nodes.constant(np.float32([0, np.inf, 0]))
    run = Executable([ops.sum(X)], [(v, v + (X + mask))])
    with pytest.raises(NumericError) as info:
        run.run({X: np.ones(3, F32)}, guard=True)
    assert str(info.value) == "NaN or infinity was fed, or stands in a variable or a constant"
    assert v.value.read().tolist() == [1, 2, 3]


def test_unguarded_runs_go_on() -> None:
    v = variable("v", np.float32([1, 2, 3]))
    Executable([ops.sum(X)], [(v, v / X)]).run({X: np.float32([1, 0, 1])})
    assert np.isinf(v.value.read()[1])
