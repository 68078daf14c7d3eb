"""Arguments and dtypes of NumPy's functions: what they mean there they mean here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, MagmaDNNError
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable

L = md.linalg
ORDERS = (None, 0, 1, 2, 3, 0.5, -1, np.inf, -np.inf)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64"])
def test_norms_of_integers_do_not_overflow(dtype: str) -> None:
    """Their squares, and the size of the least one, have no room in the dtype."""
    least, most = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.array([[least, most, 1], [most, 1, most]]).astype(dtype)
    cases: list[dict[str, Any]] = [{"ord": ord, "axis": 0} for ord in ORDERS]
    cases += [{"ord": ord, "axis": (1, 0)} for ord in ("fro", "nuc", 1, -1, 2, np.inf)]
    for options in (*cases, {}, {"keepdims": True}):
        with np.errstate(all="ignore"):
            found, expected = L.norm(x, **options), np.linalg.norm(x, **options)
        assert found.dtype == expected.dtype == np.float64, options
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14, err_msg=str(options))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3)])
def test_the_largest_of_nothing_is_0(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    for ord in (1, 2, np.inf, "fro", "nuc"):
        options: dict[str, Any] = {"ord": ord, "axis": (-2, -1), "keepdims": True}
        found, expected = L.norm(x, **options), np.linalg.norm(x, **options)
        assert found.shape == expected.shape and found.dtype == np.float32
        assert not found.numpy().any()
    assert L.norm(x, np.inf, axis=-1).shape == shape[:-1]


def test_a_power_of_0_is_the_identity_whatever_a_matrix_holds() -> None:
    for a in (np.full((2, 2), np.nan), np.full((3, 2, 2), np.inf), np.ones((2, 2), bool)):
        found = L.matrix_power(a, 0)
        assert found.dtype == a.dtype
        np.testing.assert_array_equal(found.numpy(), np.linalg.matrix_power(a, 0))
    x = md.variable("x", np.array([[2.0, np.inf], [0.0, 1.0]]))
    (slope,) = md.grad(L.matrix_power(x, 0).sum(), [x])
    np.testing.assert_array_equal(slope.eval().numpy(), np.zeros((2, 2)))


def test_the_second_argument_of_a_rank_is_a_limit_itself() -> None:
    a = np.diag([100.0, 1.0, 1e-3])
    for tol in (1e-4, 0.5, np.float32(50), 0):
        assert L.matrix_rank(a, tol).item() == np.linalg.matrix_rank(a, tol)
    assert L.matrix_rank(a, rtol=0.5).item() == np.linalg.matrix_rank(a, rtol=0.5) == 1
    x = md.variable("x", a)
    assert L.matrix_rank(x, 0.5).eval().item() == 2
    for wrong in (-1.0, "1", True, np.nan):
        with pytest.raises(ArgumentError, match="matrix_rank: tol must be a number from 0"):
            L.matrix_rank(a, wrong)
    with pytest.raises(ArgumentError, match="matrix_rank: rtol must be a number from 0 to below 1"):
        L.matrix_rank(a, rtol=1.5)
    with pytest.raises(ArgumentError, match="matrix_rank: give tol or rtol, not both"):
        L.matrix_rank(a, 0.5, rtol=0.5)


def test_limits_may_be_numbers_of_numpy() -> None:
    a = np.diag([1.0, 1e-3])
    np.testing.assert_allclose(L.pinv(a, np.float32(0.1)).numpy(), np.diag([1.0, 0]), atol=1e-15)


@pytest.mark.parametrize(
    "call", [lambda a: L.matrix_power(a, 1), md.fft.fftshift, md.fft.ifftshift]
)
def test_results_have_memory_of_their_own(call: Any) -> None:
    """Also those that have all values of an operand in their places."""
    for given in (np.full((1, 1), 2.0), md.asarray(np.full((1, 1), 2.0))):
        call(given)[...] = 7
        assert np.asarray(given).item() == 2


WRONG = {
    "norm ord": (
        lambda a: L.norm(a, np.nan), "norm: ord must be a number, a name of a norm or None, got nan",
    ),
    "norm truth": (
        lambda a: L.norm(a, True), "norm: ord must be a number, a name of a norm or None, got True",
    ),
    "norm keepdims": (lambda a: L.norm(a, keepdims=3), "norm: keepdims must be True or False, got 3"),
    "cond": (
        lambda a: L.cond(a, 3), 'cond: p must be None, "fro", "nuc", 1, -1, 2, -2, inf or -inf, got 3',
    ),
    "subset": (
        lambda a: L.eigh(a, subset_by_index=1),
        "eigh: subset_by_index must be two integers, the first and the last, got 1",
    ),
    "preconditioner": (
        lambda a: L.cg(a, np.ones(3), preconditioner="jacobi"),
        "cg: preconditioner must be numbers: got str",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_the_function_and_the_argument(name: str) -> None:
    call, text = WRONG[name]
    with pytest.raises(MagmaDNNError) as raised:
        call(np.eye(3))
    assert str(raised.value) == text


def test_lists_are_matrices_for_iterative_solvers_too() -> None:
    rows = [[4.0, 1.0], [1.0, 3.0]]
    for solver in (L.cg, L.gmres):
        found = solver(rows, [1.0, 2.0], rtol=1e-12, preconditioner=[[0.25, 0], [0, 1 / 3]])
        np.testing.assert_allclose(np.asarray(found.x), np.linalg.solve(rows, [1.0, 2.0]))


def test_distances_of_frequencies_may_be_numbers_of_numpy() -> None:
    np.testing.assert_array_equal(md.fft.fftfreq(4, np.float32(0.5)), np.fft.fftfreq(4, 0.5))


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_determinants_whose_first_pivots_alone_overflow(executor: Any) -> None:
    for dtype in ("float32", "float64", "complex64"):
        large = 1e30 if dtype != "float64" else 1e300
        diagonals = (
            (large, -large, 1 / large, 2 / large), (1 / large, 1 / large, large, large),
            (large, large, 1.0, 0.0), (1.0, -2.0, 3.0, 4.0),
        )  # fmt: skip
        stack = np.stack([np.diag(one) for one in diagonals]).astype(dtype)
        x = placeholder("x", Spec(stack.shape, stack.dtype))
        (found,) = Executable([L.det(x)], executor=executor).run({x: stack})
        np.testing.assert_allclose(
            found, [-2, 1, 0, -24], rtol=1e-4 if dtype != "float64" else 1e-12
        )
        assert executor == "reference" or found[-1] == -24  # a product where it has room


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e300])
def test_conditions_do_not_depend_on_the_size_of_numbers(scale: float) -> None:
    a = np.array([[2.0, 1.0], [-1.0, 3.0]])
    for p in (1, -1, np.inf, "fro", "nuc"):
        expected = np.linalg.cond(a, p)
        np.testing.assert_allclose(L.cond(np.stack([a, a * scale]), p).numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradients_of_norms_are_0_where_they_have_none(dtype: str, executor: Any) -> None:
    """A sum of norms of rows of which one is 0, another has zeros, in the gradients of both orders."""
    a = np.array([[0, 0, 0], [3, 0, 4], [1, 2, 2]]).astype(dtype)
    x = placeholder("x", Spec(a.shape, a.dtype))
    for ord in (None, 1, 2, 3, 1.5, 0.5, -1, np.inf):
        total = md.ops.sum(L.norm(x, ord, axis=1))
        (slope,) = gradient(total, [x])
        (second,) = gradient(md.ops.sum(md.ops.real(slope)), [x])
        first, more = Executable([slope, second], executor=executor).run({x: a})
        assert np.isfinite(first).all() and np.isfinite(more).all(), ord
        assert not first[0].any() or ord in (np.inf, -1), ord
        if ord in (None, 2):
            np.testing.assert_allclose(first[1:], [[0.6, 0, 0.8], [1 / 3, 2 / 3, 2 / 3]])
        if ord == 3:
            np.testing.assert_allclose(first[1], [9 / 91 ** (2 / 3), 0, 16 / 91 ** (2 / 3)])
    for whole in (L.norm(x * 0), L.norm(x * 0, "fro"), L.norm(x * 0, 2)):
        (found,) = Executable(gradient(whole, [x]), executor=executor).run({x: a})
        assert not found.any()
