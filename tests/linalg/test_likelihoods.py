"""Factors and solutions in graphs: values and gradients of known formulas, special values, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import NumericError
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable

RNG = np.random.default_rng(11)
EXECUTORS = ("native", "reference")


def definite(*shape: int, dtype: str = "float64") -> np.ndarray:
    """Symmetric matrices whose condition number is below 30."""
    x = RNG.normal(size=(*shape, shape[-1]))
    n = shape[-1]
    return (x @ np.swapaxes(x, -1, -2) / max(n, 1) + 0.2 * np.eye(n)).astype(dtype)


def node(name: str, array: np.ndarray) -> Node:
    return placeholder(name, Spec(array.shape, array.dtype))


def run(outputs: list[Node], feeds: dict[Node, np.ndarray], executor: str) -> list[np.ndarray]:
    return Executable(outputs, executor=executor, check=True).run(feeds)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(500,), (7,), (1,), (0,), (3, 2, 5), (0, 4), (150, 3)], ids=str)
def test_factors_are_those_of_numpy(shape: tuple[int, ...], dtype: str, executor: str) -> None:
    """To the backward error of both, n eps |a|, times how ill conditioned a is."""
    a = definite(*shape, dtype=dtype)
    x = node("a", a)
    (found,) = run([md.linalg.cholesky(x)], {x: a}, executor)
    expected = np.linalg.cholesky(a.astype(np.float64))
    assert found.dtype == a.dtype and found.shape == a.shape
    assert not np.triu(found, 1).any()
    bound = 30 * 2 * max(shape[-1], 1) * np.finfo(dtype).eps * np.abs(expected).max(initial=1)
    assert np.abs(found - expected).max(initial=0) <= bound


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_solutions_solve_the_equations(lower: bool, transpose: bool, executor: str) -> None:
    for left, right in [
        ((300, 300), (300, 4)),
        ((5, 5), (3, 5, 2)),
        ((3, 5, 5), (5, 2)),
        ((2, 1, 5, 5), (3, 5, 1)),
    ]:
        a = np.linalg.cholesky(definite(*left[:-1]))
        a = np.where(np.tri(left[-1]), a, 7.0) if lower else np.swapaxes(a, -1, -2)
        b = RNG.normal(size=right)
        x, y = node("a", a), node("b", b)
        solution = md.linalg.solve_triangular(x, y, lower=lower, trans=int(transpose))
        (found,) = run([solution], {x: a, y: b}, executor)
        read = np.tril(a) if lower else np.triu(a)
        read = np.swapaxes(read, -1, -2) if transpose else read
        size = np.matmul(np.abs(read), np.abs(found))  # (a + da) x = b, with |da| <= n eps |a|
        assert (np.abs(read @ found - b) <= 3 * left[-1] * np.finfo(float).eps * size).all()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_operands_may_lie_in_memory_in_any_way(executor: str) -> None:
    a, b = definite(3, 6), RNG.normal(size=(6, 4))
    x, y = node("a", a), node("b", b)
    views = [
        (x[1:, ::2, ::2], a[1:, ::2, ::2]),
        (md.ops.swapaxes(x, -1, -2), np.swapaxes(a, -1, -2)),
        (x[:, 1:4, 1:4], a[:, 1:4, 1:4]),
        (md.ops.broadcast_to(x[0], (2, 6, 6)), np.broadcast_to(a[0], (2, 6, 6))),
    ]
    for view, array in views:
        (found,) = run([md.linalg.cholesky(view)], {x: a}, executor)
        np.testing.assert_allclose(found, np.linalg.cholesky(array), rtol=1e-12)
    turned = md.linalg.solve_triangular(md.ops.swapaxes(x, -1, -2)[0], y[:, ::-1], lower=False)
    (found,) = run([turned], {x: a, y: b}, executor)
    np.testing.assert_allclose(np.triu(a[0].T) @ found, b[:, ::-1], rtol=1e-10, atol=1e-12)


def likelihood(y: Node, covariance: Node) -> Node:
    """log N(y; 0, covariance) without its constant."""
    factor = md.linalg.cholesky(covariance)
    white = md.linalg.solve_triangular(factor, y, lower=True)
    diagonal = md.ops.sum(factor * np.eye(y.shape[0]), axis=1)
    return -0.5 * (white * white).sum() - md.ops.log(diagonal).sum()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_gradient_of_a_likelihood_is_the_known_one(executor: str) -> None:
    """0.5 (K^-1 y y^T K^-1 - K^-1), of which the lower triangle counts twice and the other not at all."""
    a, b = definite(9), RNG.normal(size=(9, 1))
    x, y = node("a", a), node("y", b)
    value, (slope,) = likelihood(y, x), gradient(likelihood(y, x), [x])
    found = run([value, slope], {x: a, y: b}, executor)
    inverse = np.linalg.inv(a)
    dense = 0.5 * (inverse @ b @ b.T @ inverse - inverse)
    expected = -0.5 * (b.T @ inverse @ b).item() - 0.5 * np.linalg.slogdet(a)[1]
    assert abs(found[0] - expected) < 1e-10
    np.testing.assert_allclose(
        found[1], np.tril(dense + dense.T) - np.diag(np.diag(dense)), atol=1e-9
    )


@pytest.mark.parametrize("executor", EXECUTORS)
def test_nan_comes_out_as_nan(executor: str) -> None:
    a, b = definite(2, 4), RNG.normal(size=(4, 1))
    a[1, 2, 1] = np.nan
    x, y = node("a", a), node("b", b)
    solved = md.linalg.solve_triangular(x, y, lower=True)
    factor, solution = run([md.linalg.cholesky(x), solved], {x: a, y: b}, executor)
    np.testing.assert_allclose(factor[0], np.linalg.cholesky(a[0]), rtol=1e-12)
    assert np.isnan(factor[1]).any() and not np.isnan(solution[1, :2]).any()
    assert np.isnan(solution[1, 2:]).all()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_errors_name_the_matrix_and_the_minor_and_change_no_variable(executor: str) -> None:
    a = definite(3, 2, 40)
    a[2, 1, 30, 30] = -1
    x, variable = node("a", a), md.variable("v", np.ones(3))
    counted = (variable.node, variable.node + 1.0)  # would be written in place
    other = md.variable("w", np.ones(a.shape))
    for outputs in (
        [md.linalg.cholesky(x)],
        [x * 2.0],
    ):  # the factor is an output, or an update only
        updates = [counted, (other.node, md.linalg.cholesky(x))]
        step = Executable(outputs, updates, executor=executor, check=True)
        for guard in (False, True):
            with pytest.raises(
                NumericError, match=r"a\[2, 1\] is not .* minor of order 31 of 40 is"
            ):
                step.run({x: a}, guard=guard)
            assert np.array_equal(variable, np.ones(3))
            assert np.array_equal(other, np.ones(a.shape))
    good = definite(3, 2, 40)
    step.run({x: good})
    np.testing.assert_allclose(np.asarray(other), np.linalg.cholesky(good), rtol=1e-10)
    assert np.array_equal(variable, np.full(3, 2.0))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_factors_in_loops_have_errors_and_gradients(executor: str) -> None:
    """A filter of covariances: each factor depends on the one before."""

    def body(carried: Any, given: Any) -> Any:
        factor = md.linalg.cholesky(given + carried)
        return 0.5 * md.ops.matmul(factor, md.ops.swapaxes(factor, 0, 1)), factor

    a = definite(5, 3)
    carried, expected = np.eye(3), 0.0
    for given in a:
        factor = np.linalg.cholesky(given + carried)
        carried, expected = 0.5 * factor @ factor.T, expected + factor.sum()
    operation = md.placeholder("a", a.shape, "float64")
    x, total = operation.node, md.scan(body, np.eye(3), operation)[1].sum().node
    run = Executable([total, *gradient(total, [x])], executor=executor, check=True)
    found, slope = run.run({x: a})
    assert abs(found - expected) < 1e-10
    step = 1e-5 * np.tri(3) * RNG.normal(size=(5, 3, 3))
    change = run.run({x: a + step})[0] - run.run({x: a - step})[0]
    assert abs(change - 2 * (slope * step).sum()) < 1e-6 * abs(change)
    a[3, 1, 1] = -9
    with pytest.raises(NumericError, match="minor of order 2 of 3 is not positive"):
        run.run({x: a})


def test_tensors_variables_and_arrays_are_taken() -> None:
    a = definite(5, dtype="float32")
    expected = np.linalg.cholesky(a)
    for given in (a, md.asarray(a)):  # SciPy's LAPACK may round otherwise than NumPy's
        np.testing.assert_allclose(np.asarray(md.linalg.cholesky(given)), expected, rtol=1e-5)
    variable = md.variable("a", a)
    np.testing.assert_allclose(np.asarray(md.linalg.cholesky(variable)), expected, rtol=1e-5)
    assert md.linalg.cholesky(4 * np.eye(3, dtype=np.int32)).dtype == np.float64
