"""NumPy's functions and operators with Tensors and Operations among their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import GraphError
from magmadnn.graph.operators import FUNCTIONS, OF_NUMPY
from tests.mistakes import error_of

VALUES = np.array([0.5, 2.0, 3.5])
CALLS: dict[str, Callable[[Any], Any]] = {
    "exp": lambda x: np.exp(x),
    "abs": lambda x: np.abs(-x),
    "maximum": lambda x: np.maximum(1.0, x),
    "number on the left": lambda x: np.float64(2) ** x,
    "array on the left": lambda x: VALUES - x,
    "matrix on the left": lambda x: np.ones((2, 3)) @ x,
    "compared": lambda x: VALUES[::-1] < x,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_functions_of_elements_are_our_ops(call: Callable[[Any], Any]) -> None:
    expected, lazy = call(VALUES), call(md.variable("v", VALUES))
    assert isinstance(lazy, md.Operation)
    for result in (call(md.asarray(VALUES)), lazy.eval()):
        assert isinstance(result, md.Tensor)
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-15)


def test_a_gradient_goes_through_functions_of_numpy() -> None:
    v = md.variable("v", VALUES)
    (gradient,) = md.grad(np.square(v).sum(), [v])
    assert np.array_equal(gradient.eval(), 2 * VALUES)


def test_other_functions_get_the_values_of_tensors() -> None:
    t = md.asarray(VALUES)
    assert np.mean(t) == VALUES.mean()
    assert np.array_equal(np.concatenate([t, t]), np.concatenate([VALUES, VALUES]))
    assert np.array_equal(np.array([True, True, False]) & (t > 1), [False, True, False])


def test_functions_that_would_lose_the_graph_name_the_op() -> None:
    v = md.variable("v", VALUES)
    for call, words in [
        (lambda: np.mean(v), "np.mean does not take Variables: use md.ops.mean, or "),
        (
            lambda: np.concatenate([v, v]),
            "np.concatenate does not take Variables: use md.ops.concat, ",
        ),
        (lambda: np.linalg.norm(v), "np.linalg.norm does not take Variables: use md.linalg.norm"),
        (lambda: np.linalg.inv(v), "np.linalg.inv does not take Variables: use md.linalg.inv, "),
        (lambda: np.linalg.trace(v), "np.linalg.trace does not take Variables: use md.ops.eins"),
        (lambda: np.fft.fft(v), "np.fft.fft does not take Variables: use md.fft.fft, or np.as"),
        (
            lambda: np.linalg.cholesky(v),
            "np.linalg.cholesky does not take Variables: use md.linalg.ch",
        ),
        (lambda: np.hypot(v, 1), "np.hypot does not take Variables: use md.ops, or "),
        (lambda: np.add.reduce(v), "np.add.reduce does not take Variables: "),
        (lambda: np.add(v, 1, out=VALUES.copy()), "np.add with out does not take Variables: "),
    ]:
        kind, message = error_of(call)
        assert kind is GraphError
        assert message.startswith(words)
    assert np.allclose(v, VALUES)  # what md.ops lacks gets the values
    assert np.shape(v) == (3,)


def test_names_that_differ_in_numpy_are_ops() -> None:
    assert {*OF_NUMPY.values()} <= {*FUNCTIONS}
    assert not {*OF_NUMPY} & {*FUNCTIONS}
