"""First and second gradients of every op in float64, against differences, to 1e-6.

f(x) = sum(w * op(x)) for random weights w. Its derivative along a random direction v is measured by
central differences at h and h/2, extrapolated (Richardson): the rest is of order h**4, about 1e-12 here.
The second gradient is measured the same way on <u, df/dx> for a random u.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from magmadnn.graph import Node, NoGradient, Spec
from magmadnn.graph.node import constant, placeholder
from magmadnn.graph.op import Op
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from tests.ops.contract_cases import BUILT_IN, Array, Case, cases

H = 2.0**-10
WITH_GRADIENT = {n: op for n, op in BUILT_IN.items() if not isinstance(op.vjp, NoGradient)}
DIRECTIONS = 3


class Measured:
    """A scalar graph over placeholders, and where it is evaluated."""

    def __init__(self, scalar: Node, inputs: list[Node], point: list[Array]) -> None:
        self.scalar, self.inputs, self.point = scalar, inputs, point
        self._run = Executable([scalar], check=True)

    @property
    def real(self) -> list[int]:
        """The places of the operands that have gradients."""
        return [i for i, x in enumerate(self.point) if x.dtype == np.float64]

    def at(self, directions: dict[int, Array], step: float) -> float:
        moved = [
            x + step * directions[i] if i in directions else x for i, x in enumerate(self.point)
        ]
        return float(self._run.run(dict(zip(self.inputs, moved, strict=True)))[0])

    def slope(self, directions: dict[int, Array]) -> float:
        """The derivative along a direction, extrapolated from two central differences."""
        coarse, fine = (
            (self.at(directions, h) - self.at(directions, -h)) / (2 * h) for h in (H, H / 2)
        )
        return (4 * fine - coarse) / 3

    def gradients(self) -> list[Node]:
        return gradient(self.scalar, [self.inputs[i] for i in self.real])


def check(measured: Measured, random: np.random.Generator) -> list[Node]:
    """Compare the gradients with differences along random directions."""
    found = measured.gradients()
    feeds = dict(zip(measured.inputs, measured.point, strict=True))
    values = Executable(found, check=True).run(feeds)
    compiled = Executable(found, executor="native", check=True).run(feeds)
    for one, other in zip(compiled, values, strict=True):
        scale = max(1.0, float(np.abs(other).max(initial=0)))
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12 * scale)
    for _ in range(DIRECTIONS):
        directions = {i: random.uniform(-1, 1, measured.point[i].shape) for i in measured.real}
        terms = [
            float((g * directions[i]).sum()) for i, g in zip(measured.real, values, strict=True)
        ]
        expected = measured.slope(directions)
        scale = max(1.0, *(abs(t) for t in terms))
        assert abs(sum(terms) - expected) <= 1e-6 * scale, (measured.scalar, terms, expected)
    return found


def weighted(node: Node, random: np.random.Generator) -> Node:
    """sum(w * node) for random weights."""
    total = node * constant(random.uniform(0.5, 1.5, node.shape))
    return total.sum()


def measured_case(case: Case, random: np.random.Generator) -> Measured:
    inputs = [placeholder(f"x{i}", Spec(x.shape, x.dtype)) for i, x in enumerate(case.operands)]
    node = case.op(*case.listed(list(inputs)), **case.attributes)
    return Measured(weighted(node, random), inputs, case.operands)


def gradient_cases(op: Op) -> list[Case]:
    """Samples with real operands and a real result; what cuts the digits off has no differences."""
    found = [case for case in cases(op, "float64") if case.run().dtype == np.float64]
    return [case for case in found if any(x.dtype == np.float64 for x in case.operands)]


@pytest.mark.parametrize("op", WITH_GRADIENT.values(), ids=WITH_GRADIENT)
def test_gradients_equal_differences(op: Op, checked: Callable[[int], None]) -> None:
    random = np.random.default_rng(7)
    for case in gradient_cases(op):
        if op.name == "stop_gradient":  # its point is not to be the derivative
            continue
        first = measured_case(case, random)
        found = check(first, random)
        along = weighted(found[0], random)
        for part in found[1:]:
            along = along + weighted(part, random)
        check(Measured(along, first.inputs, first.point), random)
        checked(2 * DIRECTIONS)


def test_every_op_with_real_operands_and_results_is_measured() -> None:
    skipped = {name for name, op in WITH_GRADIENT.items() if not gradient_cases(op)}
    comparisons = "equal not_equal less less_equal greater greater_equal"
    assert skipped == {*comparisons.split(), "logical_and", "logical_or", "logical_not", "isnan"}


def test_stop_gradient_stops() -> None:
    x = placeholder("x", Spec((3,), np.dtype(np.float64)))
    y = (BUILT_IN["stop_gradient"](x) * x).sum()
    (found,) = Executable(gradient(y, [x])).run({x: np.array([2.0, -3.0, 5.0])})
    assert found.tolist() == [2.0, -3.0, 5.0]


def test_a_wrong_gradient_is_found() -> None:
    x = placeholder("x", Spec((3,), np.dtype(np.float64)))
    point = [np.array([0.3, -1.1, 2.0])]
    right = Measured((x * x * x).sum(), [x], point)
    check(right, np.random.default_rng(0))
    right.gradients = lambda: gradient((x * x).sum(), [x])  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        check(right, np.random.default_rng(0))
