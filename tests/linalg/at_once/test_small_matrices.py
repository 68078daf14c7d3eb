"""Stacks of small matrices, one in each lane of a vector: Cholesky, LU, equations, triangles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.llvm.library import small
from magmadnn.errors import NumericError
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.linalg.equations import solved
from magmadnn.linalg.factorisations.elimination import eliminated, lu_factored, packed
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.matrices import lapack, stacks
from magmadnn.runtime.threads import thread_count

pytest.importorskip("scipy")
RNG = np.random.default_rng(21)
SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 33)


def stack(count: int, n: int, dtype: str = "float64") -> np.ndarray:
    return RNG.normal(size=(count, n, n)).astype(dtype)


def definite(count: int, n: int, dtype: str = "float64") -> np.ndarray:
    x = RNG.normal(size=(count, n, n))
    return (x @ np.swapaxes(x, -1, -2) + np.eye(n)).astype(dtype)


def in_plan(function: Any, *operands: np.ndarray) -> np.ndarray:
    nodes = [placeholder(f"x{k}", Spec(x.shape, x.dtype)) for k, x in enumerate(operands)]
    run = Executable([function(*nodes)], executor="native")
    return np.asarray(run.run(dict(zip(nodes, operands, strict=True)))[0])


def backward_error(a: np.ndarray, x: np.ndarray, b: np.ndarray) -> float:
    """The largest |A x - b| / (|A| |x| + |b|) of the stack, in units of eps n."""
    eps, a, x, b = np.finfo(a.dtype).eps, *(y.astype(np.float64) for y in (a, x, b))
    size = np.abs(a) @ np.abs(x) + np.abs(b)
    return float((np.abs(a @ x - b).max((-2, -1)) / size.max((-2, -1))).max() / (eps * a.shape[-1]))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether matrices were taken side by side, for each step that was laid out."""
    found: list[bool] = []
    known = small.is_small

    def noted(*arguments: Any) -> bool:
        found.append(known(*arguments))
        return found[-1]

    monkeypatch.setattr(stacks, "is_small", noted)
    stacks._programs.clear()
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
def test_factors_and_solutions(n: int, dtype: str) -> None:
    """23 matrices, which fill no number of vectors; what is not read is no number."""
    eps, rows = np.finfo(dtype).eps, RNG.permutation(n)
    a, s = stack(23, n, dtype)[:, rows], definite(23, n, dtype)
    b = RNG.normal(size=(23, n, 3)).astype(dtype)
    half = s.copy()
    half[:, *np.triu_indices(n, 1)] = np.nan
    for factor in (
        in_plan(md.linalg.cholesky, half),
        np.asarray(md.linalg.cholesky(md.asarray(half))),
    ):
        assert not np.triu(factor, 1).any()
        assert backward_error(factor, np.swapaxes(factor, -1, -2), s) < 1
    factors, expected = in_plan(lu_factored, a), packed(*eliminated(a.astype(np.float64)))
    assert np.array_equal(factors[:, 0], expected[:, 0])  # exchanges
    both = np.swapaxes(factors[:, 1:], -1, -2)
    lower, upper = np.tril(both, -1) + np.eye(n, dtype=dtype), np.triu(both)
    order = np.argsort(_order(factors[:, 0].astype(int)), -1)
    product = np.take_along_axis((lower.astype(float) @ upper), order[..., None], -2)
    size = np.abs(lower).astype(float) @ np.abs(upper)
    assert np.abs(product - a).max() <= n * eps * size.max()
    for transpose in (False, True):
        turned = np.swapaxes(a, -1, -2) if transpose else a
        for x in (
            in_plan(lambda p, q, t=transpose: solved(p, q, transpose=t), a, b),
            np.asarray(solved(md.asarray(a), md.asarray(b), transpose=transpose)),
        ):
            assert backward_error(turned, x, b) < 8  # pivots let elements grow a little
        for lower_is_read in (False, True):
            triangle = np.tril(s) if lower_is_read else np.triu(s)
            other = np.where(triangle == 0, np.nan, triangle)
            x = in_plan(
                lambda p, q, low=lower_is_read, t=transpose: md.linalg.solve_triangular(p, q, int(t), low),
                other.astype(dtype), b,
            )  # fmt: skip
            turned = np.swapaxes(triangle, -1, -2) if transpose else triangle
            assert backward_error(turned, x, b) < 1


def _order(exchanges: np.ndarray) -> np.ndarray:
    """Row by row, as in textbooks."""
    found = np.tile(np.arange(exchanges.shape[-1]), (len(exchanges), 1))
    for one, pivots in zip(found, exchanges, strict=True):
        for k, other in enumerate(pivots):
            one[[k, other]] = one[[other, k]]
    return found


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = thread_count()
    md.set_threads(request.param)
    yield request.param
    md.set_threads(before)


BITS: dict[str, set[bytes]] = {}


def test_bits_do_not_depend_on_threads(threads: int) -> None:
    draw = np.random.default_rng(3)
    a, b = draw.normal(size=(701, 9, 9)), draw.normal(size=(701, 9, 2))
    found = {
        "plan": in_plan(lambda p, q: solved(p, q), a, b),
        "at once": np.asarray(md.linalg.solve(md.asarray(a), md.asarray(b))),
        "part": np.asarray(md.linalg.solve(md.asarray(a[5:40]), md.asarray(b[5:40]))),
    }
    assert np.array_equal(found["at once"][5:40], found["part"])  # nor on the neighbours
    for name, value in found.items():
        BITS.setdefault(name, set()).add(value.tobytes())
        assert len(BITS[name]) == 1


def test_the_rule_of_sizes(taken: list[bool]) -> None:
    for count, n, dtype, expected in (
        (4, 128, "float64", True),
        (4, 129, "float64", False),
        (2, 5, "float32", False),
        (1000, 6, "float32", True),
    ):
        a = definite(count, n, dtype)
        md.linalg.cholesky(md.asarray(a))
        assert taken == [expected], (count, n)
        taken.clear()


def test_programs_are_kept(taken: list[bool]) -> None:
    a = md.asarray(definite(50, 6))
    first = np.asarray(md.linalg.cholesky(a))
    again = md.linalg.cholesky(a * 4)
    assert len(taken) == 1  # laid out once
    assert np.array_equal(again, 2 * first)  # powers of two change no bit
    assert not np.shares_memory(np.asarray(again), first)


def test_strides_broadcasts_and_one_matrix_for_all() -> None:
    a, b = stack(2 * 19, 7)[::2], RNG.normal(size=(19, 3, 7)).swapaxes(1, 2)
    x = np.asarray(md.linalg.solve(md.asarray(a), md.asarray(b)))
    assert backward_error(a, x, b) < 8
    x = np.asarray(md.linalg.solve(md.asarray(a[3]), md.asarray(b)))
    assert backward_error(a[3], x, b) < 8
    x = np.asarray(md.linalg.solve(md.asarray(a.reshape(19, 1, 7, 7)), md.asarray(b[:4])))
    assert x.shape == (19, 4, 7, 3)
    assert backward_error(a.reshape(19, 1, 7, 7), x, b[:4]) < 8
    inverse = np.asarray(md.linalg.inv(md.asarray(a)))
    assert backward_error(a, inverse, np.broadcast_to(np.eye(7), a.shape)) < 8


@pytest.mark.parametrize("shape", [(0, 5, 5), (3, 0, 0), (9, 1, 1)])
def test_empty_and_single(shape: tuple[int, ...]) -> None:
    a = np.full(shape, 4.0)
    assert np.array_equal(md.linalg.cholesky(md.asarray(a)), np.full(shape, 2.0))
    assert np.array_equal(md.linalg.solve(md.asarray(a), md.asarray(a)), np.ones(shape))
    assert np.array_equal(in_plan(md.linalg.cholesky, a), np.full(shape, 2.0))


def test_pivots_below_the_least_normal_number() -> None:
    """Their inverses overflow."""
    for dtype in ("float32", "float64"):
        tiny = np.finfo(dtype).smallest_subnormal
        a = np.zeros((20, 2, 2), dtype)
        a[:, 0, 0], a[:, 1, 0], a[:, 1, 1] = 4096 * tiny, 1024 * tiny, 2.0
        factors = in_plan(lu_factored, a)
        assert np.array_equal(factors[0], np.array([[0, 1], [4096 * tiny, 0.25], [0, 2]], dtype))


def test_zero_columns_of_factors_and_determinants() -> None:
    a = stack(20, 5)
    a[7, :, 2] = 0
    assert in_plan(md.linalg.det, a)[7] == 0
    assert np.isfinite(in_plan(lu_factored, a)).all()


def test_what_is_wrong_is_named() -> None:
    a, s, b = stack(30, 6), definite(30, 6), RNG.normal(size=(30, 6, 1))
    singular, infinite, low, wrong = a.copy(), a.copy(), s.copy(), b.copy()
    singular[17, :, 3], infinite[4, 2, 1], low[11, 2, 2], wrong[29, 5, 0] = 0, np.inf, -1, np.nan
    zero = s.copy()
    zero[8, 4, 4] = 0
    for call, text in [
        (lambda f: f(md.linalg.solve, singular, b), r"a\[17\] is singular: pivot 4 of 6 is 0"),
        (lambda f: f(md.linalg.solve, infinite, b), r"a\[4\] holds inf at \[2, 1\]"),
        (lambda f: f(md.linalg.solve, a, wrong), r"b\[29\] holds nan at \[5, 0\]"),
        (lambda f: f(md.linalg.cholesky, low), r"a\[11\] is not positive definite: .* order 3 of 6"),
        (
            lambda f: f(lambda p, q: md.linalg.solve_triangular(p, q, lower=True), zero, b),
            r"a\[8\] is singular: element 4 of its diagonal is 0",
        ),
    ]:  # fmt: skip
        for way in (in_plan, lambda f, *x: f(*map(md.asarray, x))):
            with pytest.raises(NumericError, match=text):
                call(way)


def test_nan_stays_in_its_matrix() -> None:
    s = definite(30, 6)
    s[13, 4, 1] = np.nan
    found = in_plan(md.linalg.cholesky, s)
    assert np.isnan(found[13]).any()
    assert np.isfinite(np.delete(found, 13, 0)).all()
    with pytest.raises(md.errors.NumericError, match=r"cholesky: a\[13\] holds nan at \[4, 1\]"):
        md.linalg.cholesky(md.asarray(s))


def test_without_scipy_numpy_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "function_of", lambda kernel: None)
    a, b = stack(20, 5), RNG.normal(size=(20, 5, 1))
    assert backward_error(a, np.asarray(md.linalg.solve(md.asarray(a), md.asarray(b))), b) < 8
    assert lapack.function_of is not stacks.function_of


@pytest.mark.parametrize("shape", [(300, 7, 7), (3, 20, 33, 33), (2, 150, 150), (40, 5, 3)])
def test_factors_that_are_kept(taken: list[bool], shape: tuple[int, ...]) -> None:
    """`lu_factor` and `lu` of stacks; others than square ones are LAPACK's one by one."""
    scipy_linalg = pytest.importorskip("scipy.linalg")
    a = RNG.normal(size=shape)
    p, lower, upper = (np.asarray(x) for x in md.linalg.lu(md.asarray(a)))
    size = np.abs(lower) @ np.abs(upper)
    assert np.abs(p @ lower @ upper - a).max() <= 2 * max(shape) * np.finfo(float).eps * size.max()
    if shape[-1] == shape[-2]:
        assert taken == [shape[-1] <= 128]
        factors = md.linalg.lu_factor(md.asarray(a))
        first = (0,) * (len(shape) - 2)
        expected, exchanges = scipy_linalg.lu_factor(a[first])
        assert np.array_equal(np.asarray(factors.piv)[first], exchanges)
        np.testing.assert_allclose(np.asarray(factors.lu)[first], expected, atol=1e-10)
    else:
        assert not taken
