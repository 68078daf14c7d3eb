"""grad, jacobian and hvp on user handles, where the answer is known."""

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import GraphError, ShapeError

VALUES = np.array([0.3, -1.7, 2.9])


def test_a_number_as_seed_scales_the_gradient():
    x = md.variable("x", VALUES)
    y = md.ops.sum(x * x)
    np.testing.assert_array_equal(md.grad(y, x, seed=5.0).eval(), 10 * VALUES)
    np.testing.assert_array_equal(md.grad(y, x, seed=np.float64(5.0)).eval(), 10 * VALUES)


def test_a_seed_of_ys_shape_weights_its_elements():
    x = md.variable("x", VALUES)
    seed = np.array([2.0, 3.0, 5.0])
    found = md.grad(x * x, x, seed=seed).eval()
    np.testing.assert_allclose(found, 2 * VALUES * seed, rtol=1e-15)


def test_jacobian_and_hvp_of_a_cube():
    x = md.variable("x", VALUES)
    np.testing.assert_allclose(md.jacobian(x**3, x).eval(), np.diag(3 * VALUES**2), rtol=1e-14)
    vector = np.array([1.0, -2.0, 0.5])
    product = md.hvp(md.ops.sum(x**3), x, vector).eval()
    np.testing.assert_allclose(product, 6 * VALUES * vector, rtol=1e-14)


def test_mistakes_are_named():
    x = md.variable("x", VALUES)
    with pytest.raises(GraphError, match="expected a scalar; sum it"):
        md.grad(x * x, x)
    with pytest.raises(ShapeError, match="seed"):
        md.grad(x * x, x, seed=np.ones(2))
    with pytest.raises(ShapeError, match="hvp: vector must have the shape"):
        md.hvp(md.ops.sum(x * x), x, np.ones(2))
    with pytest.raises(GraphError, match="expected an Operation"):
        md.grad(md.asarray([1.0]), x)
