"""What people who come from NumPy, PyTorch and Keras write first with Tensors and Operations."""

from __future__ import annotations

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, GraphError, MagmaDNNError


@pytest.fixture
def v() -> md.Variable:
    return md.variable("v", np.array([1.0, 2.0, 3.0]))


def test_truth_values_of_operations_are_joined_as_those_of_tensors(v: md.Variable) -> None:
    found = (v > 1) & ~(v > 2.5) | (v == 1)
    np.testing.assert_array_equal(found.eval(), [True, True, False])
    np.testing.assert_array_equal(
        ((v > 1) ^ np.array([True, True, False])).eval(), [True, False, True]
    )
    np.testing.assert_array_equal(
        (np.array([True, False, True]) & (v > 1)).eval(), [False, False, True]
    )
    with pytest.raises(
        MagmaDNNError, match="logical_and: expected bool, got float64; compare first"
    ):
        v & (v > 1)


def test_an_operation_is_compared_with_numbers_by_elements_and_never_silently_by_identity(
    v: md.Variable,
) -> None:
    np.testing.assert_array_equal((v == 2).eval(), [False, True, False])
    np.testing.assert_array_equal((v != 2).eval(), [True, False, True])
    np.testing.assert_array_equal((v == np.array([1.0, 0.0, 3.0])).eval(), [True, False, True])
    np.testing.assert_array_equal(md.ops.where(v == 2, 7, v).eval(), [1, 7, 3])
    assert v == v and v in [v] and {v: 5}[v] == 5 and v is not None
    for act in (lambda: v == v * 1, lambda: v != v * 1, lambda: (v * 1) in [v]):
        with pytest.raises(GraphError, match=r"write md.ops.equal\(x, y\) to compare elements"):
            act()


@pytest.mark.parametrize(
    "name", ["dot", "inner", "vdot", "outer", "amax", "average", "hstack", "tensordot"]
)
def test_functions_of_numpy_do_not_lose_the_graph(name: str, v: md.Variable) -> None:
    """They gave numbers, which a loss took for constants."""
    operands = {"amax": (v,), "average": (v,), "hstack": ([v, v],), "tensordot": (v, v, 1)}
    with pytest.raises(
        GraphError, match=rf"np.{name} does not take Variables: use md\.ops\.\w+, or"
    ):
        getattr(np, name)(*operands.get(name, (v, v)))


def test_a_format_computes(v: md.Variable) -> None:
    assert f"{v.sum():.2f}" == "6.00"
    assert f"{v}" == str(v) == "<Variable v: float64[3]>"


@pytest.mark.parametrize(
    "given",
    [(np.ones(3),), ([1, 2],), (np.ones(3), "w"), ("w", np.ones(3)), ("w",), ("w", None, 3), ()],
)
def test_variables_are_made_by_the_function(given: tuple[object, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"^Variable: expected .*md.variable\('w', values\)$"):
        md.Variable(*given)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"^Operation: expected a node .*md.variable\("):
        md.Operation(np.ones(3))  # type: ignore[arg-type]
