"""Fading means of gradients that stay 0 end at 0, not among numbers that CPUs are slow with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops, optim
from magmadnn.optim import Optimizer
from magmadnn.optim.parts import faded
from magmadnn.tensor import placeholder, variable

RULES: list[Optimizer] = [
    optim.SGD(0.1, momentum=0.9),
    optim.RMSProp(0.01),
    optim.Adam(0.01, beta2=0.9),
]
FADED = 1200  # steps: 0.9**1200 is 1e-55


@pytest.mark.parametrize("executor", ["reference", "native"])
@pytest.mark.parametrize("rule", RULES, ids=[type(rule).__name__ for rule in RULES])
def test_means_of_dead_units_end_at_0(rule: Optimizer, executor: str) -> None:
    """After one step with gradients, units that get none any more have means of 0; others keep theirs."""
    x = placeholder("x", (11,), "float32")
    w = variable("w", np.linspace(-1, 1, 11, dtype=np.float32))
    step = rule.step(ops.sum(x * w), [w], executor=executor)
    given = np.linspace(0.5, 2, 11, dtype=np.float32)
    step({x: given})
    given[::2] = 0
    for _ in range(FADED):
        step({x: given})
    for name, slot in step.state().items():
        means = np.asarray(slot)
        if name != "count":
            np.testing.assert_array_equal(means[::2], 0, err_msg=name)
            assert (means[1::2] > 0.1).all(), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_faded(dtype: str) -> None:
    tiny = np.finfo(dtype).tiny
    values = np.array([tiny, -tiny, 1, -2.5, np.inf, -np.inf, np.nan], dtype)
    small = np.array([tiny / 2, -tiny / 2, np.finfo(dtype).smallest_subnormal], dtype)
    x = placeholder("x", (None,), dtype)
    found: Any = faded(x).eval({x: np.concatenate([values, small])})
    found = np.asarray(found)
    np.testing.assert_array_equal(found[:7], values)
    np.testing.assert_array_equal(found[7:], 0)
