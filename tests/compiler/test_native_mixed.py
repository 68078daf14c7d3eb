"""Random graphs in mixed precision: the native executor against the reference, on the CPU."""

from __future__ import annotations

import pytest

from magmadnn.graph.op import Op

from .mixed_draw import MODES, mixed, seeds
from .native_graphs import Case, fault, limits_of, shrunk

USUAL = 8  # graphs in each mode
MANY = 400


def check(seed: int, mode: str) -> None:
    case = mixed(seed, mode)
    assert case is not None
    if (why := fault(case)) is not None:
        small = shrunk(case)
        pytest.fail(f"seed {seed}, {mode}: {why}\nshrunk: {fault(small)}\n{small.text()}")


@pytest.mark.parametrize("mode", MODES)
def test_native_computes_what_the_reference_does(mode: str) -> None:
    for seed in seeds(0, USUAL):
        check(seed, mode)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", range(10))
def test_native_computes_what_the_reference_does_on_many(block: int, mode: str) -> None:
    for seed in seeds(1000 * (block + 1), MANY // 10):
        check(seed, mode)


def limited(case: Case) -> int:
    """How many results have a limit."""
    return sum(limit is not None for limit in limits_of(case, case.feeds[0]))


@pytest.mark.parametrize("mode", MODES)
def test_cases_have_products_of_halves_gradients_and_limits(mode: str) -> None:
    cases = [case for seed in seeds(0, USUAL) if (case := mixed(seed, mode)) is not None]
    nodes = [n for case in cases for n in case.program.nodes() if isinstance(n.op, Op)]
    half = mode.replace("mixed_", "").replace("bf", "bfloat").replace("fp", "float")
    assert sum(n.op.name == "cast" and n.dtype.name == half for n in nodes) >= 2 * USUAL
    assert {"matmul", "_einsum"} <= {n.op.name for n in nodes}
    assert sum(bool(case.updates) for case in cases) > USUAL // 4
    assert sum(map(limited, cases)) > USUAL
