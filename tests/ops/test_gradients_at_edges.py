"""Gradients where a derivative does not exist or is infinite: the table of docs/how-to/find-a-nan.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable

INF, NAN = np.inf, np.nan
EXECUTORS = ("reference", "native")


def gradients(function: Callable[..., Any], *values: list[float]) -> list[np.ndarray]:
    """Of the sum of a function, for each operand; alike on both executors."""
    nodes = [placeholder(f"x{i}", Spec((len(v),), np.dtype(float))) for i, v in enumerate(values)]
    outputs = gradient(ops.sum(function(*nodes)), nodes)
    fed = {n: np.array(v) for n, v in zip(nodes, values, strict=True)}
    native, reference = (Executable(outputs, executor=e).run(fed) for e in EXECUTORS)
    for a, b in zip(native, reference, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)
    return reference


def slice_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(x)[:1]


ONE_OPERAND: list[tuple[str, Callable[..., Any], list[float], list[float]]] = [
    ("abs", ops.abs, [0.0, -0.0, -2.0], [0, 0, -1]),
    ("sign", ops.sign, [0.0, -3.0], [0, 0]),
    ("relu", ops.relu, [0.0, -0.0, 2.0, INF], [0, 0, 1, 1]),
    ("floor", ops.floor, [0.0, 1.5, 2.0], [0, 0, 0]),
    ("cast", lambda x: ops.cast(ops.cast(x, "int32"), "float64") * x, [1.5, -2.5], [1, -2]),
    ("sqrt", ops.sqrt, [0.0, -1.0, 4.0], [INF, NAN, 0.25]),
    ("log", ops.log, [0.0, -2.0, 2.0], [INF, -0.5, 0.5]),
    ("norm of zeros", ops.norm, [0.0, 0.0], [NAN, NAN]),
    ("std of equal numbers", ops.std, [2.0, 2.0], [NAN, NAN]),
    ("var of equal numbers", ops.var, [2.0, 2.0], [0, 0]),
    ("max", ops.max, [2.0, 2.0, 1.0], [0.5, 0.5, 0]),
    ("min of infinities", ops.min, [-INF, -INF, 1.0], [0.5, 0.5, 0]),
    ("clip", lambda x: ops.clip(x, -1, 1), [-1.0, 1.0, 0.0, 2.0], [1, 1, 1, 0]),
    ("prod", ops.prod, [0.0, 3.0, 5.0], [15, 0, 0]),
    ("softmax", slice_of(ops.softmax), [0.0, -INF, 0.0], [0.25, 0, -0.25]),
    ("log_softmax", slice_of(ops.log_softmax), [0.0, -INF, 0.0], [0.5, 0, -0.5]),
    ("logsumexp", ops.logsumexp, [0.0, -INF, 0.0], [0.5, 0, 0.5]),
    ("logsumexp of nothing", ops.logsumexp, [-INF, -INF], [NAN, NAN]),
    ("cube", lambda x: x**3, [-2.0, 0.0], [12, 0]),
    ("to the 0", lambda x: ops.power(x, 0), [-2.0, 0.0, INF], [0, 0, 0]),
    ("inverse", lambda x: ops.power(x, -1.0), [-2.0, 0.0], [-0.25, -INF]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "x", "wanted"), [pytest.param(*c[1:], id=c[0]) for c in ONE_OPERAND]
)
def test_of_one_operand(function: Callable[..., Any], x: list[float], wanted: list[float]) -> None:
    (found,) = gradients(function, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_maximum_shares_evenly() -> None:
    for op in (ops.maximum, ops.minimum):
        for found in gradients(op, [1.0, 0.0], [1.0, -0.0]):
            np.testing.assert_array_equal(found, [0.5, 0.5])


# base, exponent, gradient of the base, gradient of the exponent
POWERS = [
    (0.0, 0.0, 0, 0), (0.0, 0.5, INF, 0), (0.0, 1.0, 1, 0), (0.0, 2.0, 0, 0), (0.0, -1.0, -INF, NAN),
    (-2.0, 2.0, -4, NAN), (-2.0, 3.0, 12, NAN), (-8.0, 1 / 3, NAN, NAN), (-2.0, 0.0, 0, NAN),
    (2.0, 0.0, 0, np.log(2)), (2.0, 3.0, 12, 8 * np.log(2)), (INF, 0.0, 0, INF), (-0.0, 2.0, 0, 0),
]  # fmt: skip


def test_power() -> None:
    base, exponent, *wanted = (list(column) for column in zip(*POWERS, strict=True))
    for found, expected in zip(gradients(ops.power, base, exponent), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_second_derivatives_of_power() -> None:
    """Of x**p; the mixed one at p = 0 is 1 / x. It was x once."""
    x, p = np.array([2.0, 2.0, 0.5, 0.0, -2.0]), np.array([0.0, 3.0, -2.0, 3.0, 3.0])
    base, exponent = md.variable("x", x), md.variable("p", p)
    of_base, of_exponent = md.grad(ops.power(base, exponent).sum(), [base, exponent])
    pure, mixed = md.grad(of_base.sum(), [base, exponent])
    again, twice = md.grad(of_exponent.sum(), [base, exponent])
    with np.errstate(all="ignore"):
        logarithm = np.where(x == 0, 0, np.log(x))
        np.testing.assert_allclose(pure.eval(), p * (p - 1) * x ** (p - 2), rtol=1e-14)
        np.testing.assert_allclose(mixed.eval(), x ** (p - 1) * (1 + p * logarithm), rtol=1e-14)
        np.testing.assert_allclose(again.eval(), x ** (p - 1) * (1 + p * logarithm), rtol=1e-14)
        np.testing.assert_allclose(twice.eval(), x**p * logarithm**2, rtol=1e-14)


def test_an_exponent_that_is_no_variable_costs_nothing() -> None:
    """No choice is computed for each element where the exponent is known."""
    x = placeholder("x", Spec((5,), np.dtype(float)))
    (found,) = gradient(ops.sum(ops.power(x, 2.5)), [x])
    assert "where" not in md.graph.show(found)
