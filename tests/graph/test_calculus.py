"""grad, jacobian and hvp on Operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import DTypeError, GraphError, ShapeError

A = np.array([[2.0, -1.0, 0.5], [0.3, 4.0, -2.0]])
POINT = np.array([0.5, -1.5, 2.0])


def vector() -> Any:
    return md.variable("x", POINT.copy())


def test_grad_of_one_and_of_several() -> None:
    x, w = vector(), md.variable("w", A.copy())
    y = (w @ x).sum()
    assert np.asarray(md.grad(y, x)).tolist() == A.sum(0).tolist()
    dw, dx = md.grad(y, [w, x])
    np.testing.assert_array_equal(dw, np.tile(POINT, (2, 1)))
    np.testing.assert_array_equal(dx, A.sum(0))


def test_grad_with_a_seed() -> None:
    x, w = vector(), md.variable("w", A.copy())
    seed = np.array([1.0, -3.0])
    np.testing.assert_allclose(md.grad(w @ x, x, seed=seed), seed @ A, rtol=1e-15)


def test_jacobian() -> None:
    x = vector()
    y = md.ops.tanh(md.variable("w", A.copy()) @ x)
    expected = (1 - np.tanh(A @ POINT) ** 2)[:, None] * A
    found = md.jacobian(y, x)
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_jacobian_of_matrices_and_scalars() -> None:
    w = md.variable("w", A.copy())
    found = np.asarray(md.jacobian(w * w, w))
    assert found.shape == (2, 3, 2, 3)
    for place, _ in np.ndenumerate(A):
        expected = np.zeros_like(A)
        expected[place] = 2 * A[place]
        np.testing.assert_array_equal(found[place], expected)
    np.testing.assert_array_equal(md.jacobian((w * w).sum(), w), 2 * A)


def test_hvp() -> None:
    x = vector()
    q = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, -1.0], [0.0, -1.0, 5.0]])
    y = 0.5 * (x @ q @ x) + md.ops.sum(x**4)
    v = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(md.hvp(y, x, v), q @ v + 12 * POINT**2 * v, rtol=1e-14)


def test_hvp_is_the_jacobian_of_the_gradient_times_the_vector() -> None:
    x = vector()
    y = md.ops.logsumexp(md.variable("w", A.copy()) @ x) + md.ops.prod(x)
    v = np.array([0.3, 1.0, -0.7])
    hessian = np.asarray(md.jacobian(md.grad(y, x), x))
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-15)
    np.testing.assert_allclose(md.hvp(y, x, v), hessian @ v, rtol=1e-13)


def test_any_number_of_rows() -> None:
    x = md.placeholder("x", (None, 3), "float64")
    y = md.ops.square(x).mean()
    for rows in (1, 5):
        fed = np.arange(3.0 * rows).reshape(rows, 3) + 1
        np.testing.assert_allclose(md.grad(y, x).eval({x: fed}), 2 * fed / fed.size, rtol=1e-15)


def test_phases() -> None:
    x = vector()
    y = md.by_phase(x * 2.0, x * 7.0).sum()
    assert np.asarray(md.grad(y, x)).tolist() == [7, 7, 7]
    assert np.asarray(md.grad(y, x, training=True)).tolist() == [2, 2, 2]


def test_mistakes() -> None:
    x = vector()
    with pytest.raises(
        GraphError, match=r"^grad: multiply has shape \(3,\), expected a scalar; sum it"
    ):
        md.grad(x * 2.0, x)
    with pytest.raises(GraphError, match=r"^grad: expected an Operation, got Tensor"):
        md.grad(md.Tensor((3,)), x)
    with pytest.raises(DTypeError, match=r"^grad: i is int64, expected a floating-point value"):
        md.grad((x * 2.0).sum(), md.variable("i", np.array([1, 2])))
    with pytest.raises(
        ShapeError, match=r"^hvp: vector must have the shape \(3,\) of x, got \(2,\)"
    ):
        md.hvp(x.sum(), x, np.ones(2))
    with pytest.raises(
        ShapeError, match=r"^jacobian: the shape of y must be known, got \(batch,\)"
    ):
        md.jacobian(md.placeholder("b", (None,)), x)
