"""stabilise: graphs before and after, digits that are kept, and gradients of the stable forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.program.simplify import simplify
from magmadnn.compiler.program.verify import verify
from magmadnn.graph import Node, show
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient, stabilise
from magmadnn.runtime import Executable
from tests.compiler.sample_programs import BATCH
from tests.graph.bare_nodes import placed

X, ONE = placed("x", BATCH, 5), np.float32(1)
Y = placed("y", BATCH, 5)


def passed(*outputs: Node) -> Program:
    before = simplify(Program.of(outputs))
    after = stabilise(before)
    verify(before=before, after=after, name="stabilise")
    assert str(stabilise(after)) == str(after)  # once is enough
    return after


def own_softmax(x: Node) -> Node:
    e = ops.exp(x)
    return e / ops.sum(e, -1, keepdims=True)


BECOMES: dict[str, tuple[Node, Node]] = {
    "log of softmax": (ops.log(ops.softmax(X)), ops.log_softmax(X)),
    "log of softmax, first axis": (ops.log(ops.softmax(X, 0)), ops.log_softmax(X, 0)),
    "log of sigmoid": (ops.log(ops.sigmoid(X)), -1.0 * ops.softplus(-1.0 * X)),
    "log of exp": (ops.log(ops.exp(X)), X),
    "log of 1 + exp": (ops.log(ONE + ops.exp(X)), ops.softplus(X)),
    "log of exp + 1": (ops.log(ops.exp(X) + ONE), ops.softplus(X)),
    "log of 1 + x": (ops.log(ONE + X), ops.log1p(X)),
    "log1p of exp": (ops.log1p(ops.exp(X)), ops.softplus(X)),
    "exp - 1": (ops.exp(X) - ONE, ops.expm1(X)),
    "log of 1 - sigmoid": (ops.log(ONE - ops.sigmoid(X)), -1.0 * ops.softplus(X)),
    "exp over its sum": (own_softmax(X), ops.softmax(X)),
    "log of exp over its sum": (ops.log(own_softmax(X)), ops.log_softmax(X)),
    "log of a sum of exp": (ops.log(ops.sum(ops.exp(X), 1)), ops.logsumexp(X, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", BECOMES)
def test_before_and_after(name: str) -> None:
    before, after = BECOMES[name]
    got, wanted = passed(before), simplify(Program.of([after]))
    assert show(*simplify(got).outputs) == show(*wanted.outputs)


STAYS: dict[str, Node] = {
    "log of another number + x": ops.log(np.float32(2) + X),
    "log of x + y": ops.log(X + Y),
    "1 + a row": ops.log(np.ones((5,), np.float32) + placed("s")),
    "exp - 2": ops.exp(X) - np.float32(2),
    "exp - y": ops.exp(X) - Y,
    "exp over another sum": ops.exp(X) / ops.sum(ops.exp(Y), -1, keepdims=True),
    "exp over a sum of all": ops.exp(X) / ops.sum(ops.exp(X), keepdims=True),
    "the largest is out already": ops.logsumexp(X, 1),
    "an axis that may be empty": ops.log(ops.sum(ops.exp(X), 0)),
    "softmax itself": ops.softmax(X),
    "1 - sigmoid, as its gradient has it": ONE - ops.sigmoid(X),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    before = simplify(Program.of([STAYS[name]]))
    assert str(stabilise(before)) == str(before)


def test_parts_belong_to_the_layer_of_the_whole() -> None:
    with md.graph.scope("head"):
        y = ops.log(ops.softmax(X))
    (made,) = [n for n in passed(y).nodes() if n.inputs]
    assert made.scope == "head"


# --- digits ---------------------------------------------------------------------------------------

VALUES = np.array([-300.0, -87.5, -17.3, -1e-9, 3e-8, 0.7, 19.1, 89.3, 310.0], np.float32)
Function = Callable[[Any], Any]
DIGITS: dict[str, tuple[Function, Function]] = {
    "log of sigmoid": (lambda x: ops.log(ops.sigmoid(x)), lambda t: -mpmath.log1p(mpmath.exp(-t))),
    "log of 1 + exp": (lambda x: ops.log(1 + ops.exp(x)), lambda t: mpmath.log1p(mpmath.exp(t))),
    "log of 1 - sigmoid": (
        lambda x: ops.log(1 - ops.sigmoid(x)),
        lambda t: -mpmath.log1p(mpmath.exp(t)),
    ),
    "exp - 1": (lambda x: ops.exp(x) - 1, mpmath.expm1),
}


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("name", DIGITS)
def test_digits_are_kept(name: str, executor: str) -> None:
    ours, exact = DIGITS[name]
    x = placed("x", BATCH)
    (got,) = Executable([ours(x)], executor=executor).run({x: VALUES})
    with mpmath.workdps(40):
        wanted = np.array([float(exact(mpmath.mpf(float(v)))) for v in VALUES])
    tiny = float(np.finfo(np.float32).tiny)  # below it a float32 has fewer digits
    with np.errstate(over="ignore"):
        wanted = wanted.astype(np.float32)
    # exp, sum, quotient or exp, log1p, sum: 9 roundings, as the contract tests of sigmoid and softplus
    np.testing.assert_allclose(got, wanted, rtol=9 * 2.0**-23, atol=tiny)


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_a_cross_entropy_by_hand_is_finite_and_right(executor: str) -> None:
    """-sum(t log p) of logits that are far apart, with its gradient p - t."""
    x, t = placed("x", BATCH, 3), placed("t", BATCH, 3)
    loss = -ops.sum(t * ops.log(own_softmax(x)))
    logits = np.array([[400.0, -400.0, 3.0], [-2.0, 130.0, 5.0]], np.float32)
    truth = np.array([[0, 1, 0], [0, 0, 1]], np.float32)
    run = Executable([loss, *gradient(loss, [x])], executor=executor)
    value, slope = run.run({x: logits, t: truth})
    assert float(value) == 800 + 125
    np.testing.assert_array_equal(slope, np.array([[1, -1, 0], [0, 1, -1]], np.float32))


def test_the_gradient_with_respect_to_what_a_rule_would_take_out() -> None:
    """d log(p) / dp is asked for, so p stays: 1 / p."""
    x = placed("x", BATCH, 3)
    p = ops.softmax(x)
    y = ops.sum(ops.log(p))
    values = np.array([[0.3, -1.1, 2.0]], np.float32)
    slope, below, probability = Executable([*gradient(y, [p, x]), p]).run({x: values})
    np.testing.assert_allclose(slope, 1 / probability, rtol=8 * 2.0**-23)
    np.testing.assert_allclose(below, 1 - 3 * probability, rtol=0, atol=32 * 2.0**-23)
