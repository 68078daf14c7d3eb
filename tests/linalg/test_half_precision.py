"""Matrices in half precision: computed in single, rounded once; limits are those of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.graph.node import placeholder
from magmadnn.graph.spec import Spec
from magmadnn.memory.dtypes import as_dtype
from magmadnn.runtime import Executable

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


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "solve": lambda a: L.solve(a, a),
    "solve beside float32": lambda a: L.solve(a, np.eye(a.shape[-1], dtype="float32")),
    "inv": L.inv,
    "slogdet": lambda a: L.slogdet(a).logabsdet,
    "qr": lambda a: md.ops.matmul(L.qr(a).Q.swapaxes(-1, -2), L.qr(a).Q),
    "pinv": L.pinv,
    "lstsq": lambda a: L.lstsq(a, a).x,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_compiled_programs_round_the_result_alone(name: str) -> None:
    """300 rows: numbers of rows that are exchanged have more digits than bfloat16."""
    rng, n = np.random.default_rng(4), 300
    a = rng.normal(size=(n, n)) + 30 * np.roll(np.eye(n), 100, 0)
    values = a.astype(as_dtype("bfloat16"))
    symbol = placeholder("a", Spec(values.shape, values.dtype))
    (found,) = Executable([GRAPHS[name](symbol)], executor="native").run({symbol: values})
    expected = np.asarray(GRAPHS[name](md.asarray(values))).astype(np.float64)
    away = np.abs(np.asarray(found).astype(np.float64) - expected).max()
    assert away <= 2.0**-7 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_factors_are_of_half_precision_too(dtype: str) -> None:
    a = (np.eye(5) * 4 + np.random.default_rng(5).normal(size=(5, 5))).astype(as_dtype(dtype))
    (p, low, up), (lu, piv) = L.lu(a), L.lu_factor(a)
    assert {x.dtype.name for x in (p, low, up, lu)} == {dtype} and piv.dtype == np.int64
    x = L.lu_solve((lu, piv), a)
    assert x.dtype.name == dtype
    np.testing.assert_allclose(np.asarray(x).astype(float), np.eye(5), atol=0.05)


def test_factors_in_half_precision_of_many_rows_solve() -> None:
    n = 300
    a = np.roll(np.eye(n), 1, 0).astype(as_dtype("bfloat16"))
    x = L.lu_solve(L.lu_factor(a), np.arange(n, dtype=np.float32))
    np.testing.assert_array_equal(np.asarray(x), np.roll(np.arange(n), -1))


def test_norms_are_sums_of_squares_in_single_precision() -> None:
    """Whose squares are beyond the largest number of float16."""
    a = np.full((2, 2), 400.0, np.float16)
    for ord in (None, "fro"):
        found = L.norm(a, ord)
        assert found.dtype == np.float16 and found.item() == 800
    np.testing.assert_array_equal(L.norm(a, axis=0).numpy(), np.float16([565.5, 565.5]))
