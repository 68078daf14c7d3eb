"""Formulas: written once, computed with NumPy, and printed as a tree of primitives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from magmadnn import ops
from magmadnn.errors import ArgumentError
from magmadnn.graph import OpKind
from magmadnn.graph import scalar as s
from magmadnn.graph.op import REGISTRY, Op
from magmadnn.graph.scalar import PRIMITIVES, Expr, trace
from tests.ops.contract_cases import BUILT_IN, bits, cases

Array = NDArray[Any]
POINTWISE = {name: op for name, op in BUILT_IN.items() if op.kind is OpKind.POINTWISE}


def evaluated(tree: Any, operands: list[Array]) -> Any:
    """A tree, computed primitive by primitive as an emitter would."""
    if tree.name == "argument":
        return operands[tree.args[0]]
    if tree.name == "constant":
        return tree.args[0]
    if tree.name == "cast":
        return s.cast(evaluated(tree.args[0], operands), tree.args[1])
    return PRIMITIVES[tree.name](*(evaluated(arg, operands) for arg in tree.args))


@pytest.mark.parametrize("op", POINTWISE.values(), ids=POINTWISE)
def test_the_tree_computes_what_the_formula_computes(op: Op) -> None:
    assert op.scalar is not None
    for dtype in ("float64", "float32"):
        for case in cases(op, dtype):
            attributes = {**op.attributes, **case.attributes}
            tree = trace(op.scalar, len(op.args), **attributes)
            with np.errstate(all="ignore"):
                result = np.asarray(evaluated(tree, case.operands))
            assert bits(result) == bits(case.run()), case


def test_text_of_a_tree() -> None:
    tree = trace(lambda x, y: s.where(x > 0, -x / 2 + 1, abs(y) ** 3 % 5 // 2), 2)
    assert repr(tree) == (
        "where(greater(argument(0), constant(0)), "
        "add(divide(negative(argument(0)), constant(2)), constant(1)), "
        "floor_divide(remainder(power(absolute(argument(1)), constant(3)), constant(5)), constant(2)))"
    )


def test_operators_mean_what_they_mean_for_numbers() -> None:
    formulas = [
        lambda x: x + 2, lambda x: 2 + x, lambda x: x - 2, lambda x: 2 - x, lambda x: x * 2, lambda x: 2 * x,
        lambda x: x / 2, lambda x: 2 / x, lambda x: x // 2, lambda x: x % 2, lambda x: x**2, lambda x: x**3,
        lambda x: -x, lambda x: abs(x), lambda x: x < 1, lambda x: x <= 1, lambda x: x > 1, lambda x: x >= 1,
        lambda x: x == 1, lambda x: x != 1,
    ]  # fmt: skip
    values = np.array([-2.5, -1.0, 0.5, 1.0, 3.0])
    for formula in formulas:
        assert np.array_equal(evaluated(trace(formula, 1), [values]), formula(values))


def test_a_formula_has_no_truth() -> None:
    with pytest.raises(ArgumentError) as info:
        trace(lambda x: x if x > 0 else -x, 1)
    assert str(info.value) == (
        "a formula is written once for all elements: choose with scalar.where, not with if, and, or"
    )


def test_expressions_can_be_kept_in_sets() -> None:
    x = Expr("argument", (0,))
    assert x in {x}
    assert isinstance(x == x, Expr)


def test_erf_against_the_library() -> None:
    x = np.concatenate(
        [np.linspace(-6.5, 6.5, 4001), [0.84375, 1.25, 1 / 0.35, 6.0, 1e-300, -1e-9, 50.0]]
    )
    expected = np.array([math.erf(v) for v in x])
    assert np.max(np.abs(s.erf(x) - expected) / np.maximum(np.abs(expected), 1e-300)) < 3 * 2.0**-52


# --- ops of a user's own --------------------------------------------------------------------------


def test_a_user_writes_an_op() -> None:
    def snake(x: Any, a: float) -> Any:
        return x + s.sin(a * x) ** 2 / a

    op = ops.pointwise(
        "user_snake",
        "x + sin(a x)**2 / a",
        snake,
        vjp=lambda g, y, x, a: g * (1 + ops.sin(2 * a * x)),
        attributes={"a": 1.0},
    )
    x = np.float32([0.5, -1.0, 2.0])
    np.testing.assert_allclose(op(x, a=2.0), x + np.sin(2 * x) ** 2 / 2, rtol=1e-6)
    assert op(x.astype(np.float16)).dtype == np.float16
    assert [len(sample.operands) for sample in op.samples(lambda *shape: np.ones(shape))] == [1]  # type: ignore[arg-type]
    np.testing.assert_array_equal(op.reference(np.ones(3), a=1.0), snake(np.ones(3), 1.0))
    assert op.words.name == "user_snake"


WRONG = {
    "numpy": lambda x: np.exp(x),
    "math": lambda x: math.exp(x),
    "choice": lambda x: x if x > 0 else 0,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_formula_that_cannot_be_compiled_is_refused_at_once(name: str) -> None:
    start = "^op 'user_wrong': its formula may use operators and the functions of magmadnn.graph.scalar: "
    with pytest.raises(ArgumentError, match=start):
        ops.pointwise("user_wrong", "?", WRONG[name], vjp=lambda g, y, x: g)
    assert "user_wrong" not in REGISTRY


def test_built_in_ops_have_references_of_their_own() -> None:
    assert not [n for n, op in POINTWISE.items() if op.reference in (op.scalar, op.numpy)]
