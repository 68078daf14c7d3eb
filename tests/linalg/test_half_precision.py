"""Matrices in half precision: computed in single, rounded once; limits are those of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.memory.dtypes import as_dtype

L = md.linalg
CALLS: dict[str, Callable[[Any], Any]] = {
    "lstsq": lambda a: L.lstsq(a, a[:, :1])[0],
    "pinv": L.pinv,
    "matrix_rank": L.matrix_rank,
    "svdvals": L.svdvals,
    "cond": L.cond,
    "qr": lambda a: L.qr(a)[1],
    "norm": lambda a: L.norm(a, 2),
    "eigvalsh": lambda a: L.eigvalsh(a[:4] + a[:4].T),
    "solve": lambda a: L.solve(a[:4], a[:4, :2]),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_single_precision(name: str, dtype: str) -> None:
    """Up to rounding of the result: each matrix here is the same in both, and well conditioned."""
    rng = np.random.default_rng(3)
    a = rng.integers(-3, 4, (7, 4)) + 5 * np.eye(7, 4)
    found = np.asarray(CALLS[name](md.asarray(a.astype(as_dtype(dtype))))).astype(np.float64)
    expected = np.asarray(CALLS[name](md.asarray(a.astype(np.float32)))).astype(np.float64)
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    np.testing.assert_allclose(
        found, expected, rtol=2 * unit, atol=2 * unit * np.abs(expected).max()
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_rounding_may_have_made_does_not_count_in_a_rank(dtype: str) -> None:
    """A second singular value of a quarter of eps counts in single precision, and not in half."""
    eps = 2.0**-10 if dtype == "float16" else 2.0**-7
    a = np.diag([1.0, eps / 4])
    assert L.matrix_rank(md.asarray(a.astype(np.float32))).item() == 2
    assert L.matrix_rank(md.asarray(a.astype(as_dtype(dtype)))).item() == 1


def test_gradients_of_singular_values_of_bfloat16() -> None:
    """Their rule asks for the dtype's limits too."""
    x = md.variable("x", np.diag([3.0, 2.0, 1.0]).astype(as_dtype("bfloat16")))
    (slope,) = md.grad(L.svdvals(x).sum(), [x])
    np.testing.assert_allclose(np.asarray(slope.eval()).astype(float), np.eye(3), atol=2.0**-6)
