"""Functions of matrices: values, gradients of both orders, and errors, at once and in compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import NumericError, ShapeError
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable

pytest.importorskip("scipy")
RNG = np.random.default_rng(21)
EXECUTORS = ("native", "reference")
SHAPES = ((5, 5), (1, 1), (0, 0), (3, 7, 7), (0, 4, 4), (2, 1, 3, 3), (97, 97))
OBLONG = ((5, 3), (3, 5), (2, 4, 7), (1, 3), (53, 31))


class Function(NamedTuple):
    """What is called, what of its results does not depend on signs, and the same by NumPy."""

    call: Callable[[Any], Any]
    expected: Callable[[np.ndarray], Any]
    shapes: tuple[tuple[int, ...], ...] = SHAPES
    has_gradient: bool = True


def right(a: Any) -> np.ndarray:
    n = a.shape[-1]
    return (np.arange(3.0 * n).reshape(n, 3) / 7 % 1 + 0.1).astype(a.dtype)


def symmetric(a: Any) -> Any:
    return a + md.ops.swapaxes(a, -1, -2)


def _svd(module: Any, a: Any) -> Any:
    """Something that depends on all of U, S and V, for any signs of vectors."""
    u, s, v = module.svd(a, full_matrices=False)
    return [s, u * u, v * v, (u * s[..., None, :]) @ v]


def _eigh(a: Any, module: Any) -> Any:
    w, v = module.eigh(a)
    return [w, v * v]


def _numpy_symmetric(a: np.ndarray) -> np.ndarray:
    return a + np.swapaxes(a, -1, -2)


FUNCTIONS = {
    "solve": Function(
        lambda a: md.linalg.solve(a, right(a)), lambda a: np.linalg.solve(a, right(a))
    ),
    "solve_vector": Function(
        lambda a: md.linalg.solve(a, right(a)[:, 0]), lambda a: np.linalg.solve(a, right(a)[:, 0])
    ),
    "inv": Function(md.linalg.inv, np.linalg.inv),
    "det": Function(md.linalg.det, np.linalg.det, SHAPES[:-1]),
    "slogdet": Function(lambda a: list(md.linalg.slogdet(a)), lambda a: list(np.linalg.slogdet(a))),
    "svd": Function(
        lambda a: _svd(md.linalg, a),
        lambda a: _svd(np.linalg, a),
        (*OBLONG, *SHAPES[:2], (3, 7, 7)),
    ),
    "svdvals": Function(md.linalg.svdvals, lambda a: np.linalg.svd(a, compute_uv=False), OBLONG),
    "eigh": Function(
        lambda a: _eigh(symmetric(a), md.linalg),
        lambda a: _eigh(_numpy_symmetric(a), np.linalg),
    ),
    "eigvalsh": Function(
        lambda a: md.linalg.eigvalsh(symmetric(a), UPLO="U"),
        lambda a: np.linalg.eigvalsh(_numpy_symmetric(a)),
    ),
}


WIDE = ((5, 3), (2, 4, 7), (1, 1), (3, 3), (41, 23))
FUNCTIONS |= {
    "qr": Function(lambda a: list(md.linalg.qr(a)), lambda a: list(np.linalg.qr(a)), WIDE),
    "qr_complete": Function(
        lambda a: list(md.linalg.qr(a, mode="complete")),
        lambda a: list(np.linalg.qr(a, "complete")),
        ((3, 3), (2, 3, 5)),
    ),
    "qr_r": Function(lambda a: md.linalg.qr(a, mode="r"), lambda a: np.linalg.qr(a).R, WIDE),
    "pinv": Function(md.linalg.pinv, np.linalg.pinv, OBLONG),
    "lstsq": Function(
        lambda a: md.linalg.lstsq(a, _rows(a)).x, lambda a: np.linalg.pinv(a) @ _rows(a), OBLONG
    ),
    "residuals": Function(
        lambda a: md.linalg.lstsq(a, _rows(a)[:, 0]).residuals,
        lambda a: ((a @ np.linalg.pinv(a) @ _rows(a)[:, 0] - _rows(a)[:, 0]) ** 2).sum(-1),
        ((5, 3), (53, 31)),
    ),
    "cond": Function(md.linalg.cond, np.linalg.cond, OBLONG),
    "cond_1": Function(lambda a: md.linalg.cond(a, 1), lambda a: np.linalg.cond(a, 1), SHAPES[:2]),
    **{
        f"norm_{ord}": Function(
            lambda a, ord=ord: md.linalg.norm(a, ord, axis=(-2, -1)),  # type: ignore[misc]
            lambda a, ord=ord: np.linalg.norm(a, ord, axis=(-2, -1)),  # type: ignore[misc]
            OBLONG,
        )
        for ord in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
    },
    **{
        f"vector_norm_{ord}": Function(
            lambda a, ord=ord: md.linalg.norm(a, ord, axis=0, keepdims=True),  # type: ignore[misc]
            lambda a, ord=ord: np.linalg.norm(a, ord, axis=0, keepdims=True),  # type: ignore[misc]
            OBLONG,
        )
        for ord in (None, 1, 2, 3, 2.5, np.inf, -np.inf)
    },
    "matrix_power": Function(
        lambda a: md.linalg.matrix_power(a, 5), lambda a: np.linalg.matrix_power(a, 5), SHAPES[:4]
    ),
    "matrix_power_-2": Function(
        lambda a: md.linalg.matrix_power(a, -2), lambda a: np.linalg.matrix_power(a, -2), SHAPES[:4]
    ),
    "kron": Function(
        lambda a: md.linalg.kron(a, _rows(a)), lambda a: np.kron(a, _rows(a)), ((5, 3), (3, 4))
    ),
    "expm": Function(lambda a: md.linalg.expm(a * 0.3), lambda a: _series(a * 0.3), SHAPES[:4]),
    "cho_solve": Function(
        lambda a: md.linalg.cho_solve((md.linalg.cholesky(_definite(a, md.ops)), True), right(a)),
        lambda a: np.linalg.solve(_definite(a, np), right(a)),
        SHAPES[:4],
    ),
}


def _definite(a: Any, module: Any) -> Any:
    return module.matmul(a, module.swapaxes(a, -1, -2)) + np.eye(a.shape[-1], dtype=a.dtype)


def _rows(a: Any) -> np.ndarray:
    m = a.shape[-2]
    return (np.arange(2.0 * m).reshape(m, 2) / 7 % 1 + 0.1).astype(a.dtype)


def _series(a: np.ndarray) -> np.ndarray:
    total = term = np.broadcast_to(np.eye(a.shape[-1]), a.shape)
    for k in range(1, 60):
        term = term @ a / k
        total = total + term
    return total


def listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (list, tuple)) else [found]


def matrices(*shape: int) -> np.ndarray:
    """Their condition numbers are below 100: elements of size 1, and a large one in each row."""
    a = RNG.normal(size=shape) / max(shape[-1], 1) ** 0.5
    return np.asarray(
        a + 3 * np.roll(np.eye(*shape[-2:]), 1, 0) * (1 + np.arange(shape[-1])) ** 0.3
    )


def node(array: np.ndarray) -> Node:
    return placeholder("a", Spec(array.shape, array.dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_numpy(name: str, dtype: str) -> None:
    """To 100 n eps: the condition number times the backward error; vectors besides by gaps of order 1 / n."""
    function = FUNCTIONS[name]
    for shape in function.shapes:
        a = matrices(*shape).astype(dtype)
        expected = listed(function.expected(a.astype(np.float64)))
        at_once = listed(function.call(md.asarray(a)))
        x = node(a)
        outputs = listed(function.call(x))
        found = [Executable(outputs, executor=e, check=True).run({x: a}) for e in EXECUTORS]
        n = max(shape[-1], 3)
        bound = 100 * n * np.finfo(dtype).eps * (n if name in ("svd", "eigh") else 1)
        for k, one in enumerate(expected):
            scale = np.abs(one).max(initial=1)
            for other in (np.asarray(at_once[k]), *(f[k] for f in found)):
                assert other.shape == one.shape and other.dtype == dtype, (name, shape)
                assert np.abs(other - one).max(initial=0) <= bound * scale, (name, shape)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_both_orders_are_those_of_finite_differences(name: str, executor: str) -> None:
    """Differences of a step h are off by h^2 and by eps / h; h = 1e-5 gives some 1e-9 of either."""
    function = FUNCTIONS[name]
    if executor == "reference" and ("norm" in name or "power" in name):
        return  # made of ops that are tried by themselves
    shapes = [s for s in function.shapes if 0 < np.prod(s) < 150]
    if (
        executor == "native" and len(shapes) > 2
    ):  # compiled for each: one matrix of each form, and a stack
        singles = [s for s in shapes if len(s) == 2 and min(s) > 1]
        shapes = [*singles, min((s for s in shapes if len(s) > 2), key=np.prod)]
    for shape in shapes:
        a, direction = matrices(*shape), RNG.normal(size=shape)
        x = node(a)
        outputs = listed(function.call(x))
        total = sum(
            (md.ops.sum(y * RNG.normal(size=y.shape)) for y in outputs), start=md.ops.sum(x) * 0.0
        )
        (slope,) = gradient(total, [x])
        turned = md.ops.sum(slope * direction)
        (second,) = gradient(turned, [x])
        run = Executable([total, turned, second], executor=executor)
        step = 1e-5
        up, down = (run.run({x: a + sign * step * direction}) for sign in (1, -1))
        _, first, hessian = run.run({x: a})
        scale = 1 + np.abs(hessian).max() * np.abs(direction).max()
        assert abs((up[0] - down[0]) / (2 * step) - first) < 1e-7 * scale, (name, shape)
        difference = (up[1] - down[1]) / (2 * step)
        assert abs(difference - (hessian * direction).sum()) < 1e-6 * scale, (name, shape)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_gradients_at_equal_values_are_defined(executor: str) -> None:
    """Of the space of equal ones, of sums of functions of them, and of the nuclear norm: known formulas."""
    turn, _ = np.linalg.qr(RNG.normal(size=(5, 5)))
    values = np.array([-1.0, 0.5, 2.0, 2.0, 2.0])
    a, weights = (turn * values) @ turn.T, RNG.normal(size=(5, 5))
    x = node(a)
    w, v = md.linalg.eigh(x)
    space = md.ops.matmul(v[:, 2:], md.ops.swapaxes(v[:, 2:], -1, -2))
    _, s, vh = md.linalg.svd(md.ops.matmul(x, turn))
    slopes = [
        gradient(y, [x])[0]
        for y in (md.ops.sum(w * w * w), md.ops.sum(space * weights), md.ops.sum(s) + 0 * vh[0, 0])
    ]
    cubes, projector, norm = Executable(slopes, executor=executor).run({x: a})
    gaps = np.array([[1 / (2 - p) if p != 2 else 0 for p in values]]) * (values[:, None] == 2)
    inner = turn.T @ (weights + weights.T) @ turn * (gaps + gaps.T) / 2
    for found, dense in ((cubes, 3 * a @ a), (projector, turn @ inner @ turn.T)):
        both = np.tril(dense + dense.T)
        np.testing.assert_allclose(found, both - np.diag(np.diag(dense)), atol=1e-12)
    np.testing.assert_allclose(norm, (turn * np.sign(values)) @ turn.T, atol=1e-12)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_errors_name_the_matrix_and_what_is_wrong_with_it(executor: str) -> None:
    singular = matrices(2, 3, 5, 5)
    singular[1, 2, :, 3] = singular[1, 2, :, 0] = 0
    holes = matrices(4, 6, 6)
    holes[2, 4, 1] = np.inf
    for call, array, words in [
        (lambda a: md.linalg.solve(a, right(a)), singular, r"solve: a\[1, 2\] is singular: pivot"),
        (md.linalg.inv, singular, r"inv: a\[1, 2\] is singular: pivot . of 5 is 0"),
        (lambda a: md.linalg.solve(np.eye(6), a), holes, r"solve: b\[2\] holds inf at \[4, 1\]"),
        (md.linalg.det, holes, r"a\[2\] holds inf at \[4, 1\]; give finite numbers"),
        (md.linalg.svdvals, holes, r"svd(vals)?: a\[2\] holds inf at \[4, 1\]"),
        (md.linalg.eigvalsh, holes, r"eig(vals)?h: a\[2\] holds inf at \[4, 1\]"),
    ]:
        x, v = node(array), md.variable("v", np.ones(3))
        step = Executable([call(x)], [(v.node, v.node + 1.0)], executor=executor)
        with pytest.raises(NumericError, match=words):
            step.run({x: array})
        with pytest.raises(NumericError, match=words):
            call(array)
        assert np.array_equal(v, np.ones(3))
    assert md.linalg.det(singular[1]).numpy()[2] == 0
    sign, size = md.linalg.slogdet(singular[1, 2])
    assert float(sign) == 0 and float(size) == -np.inf
    for call, text in [
        (lambda: md.linalg.det(np.ones((3, 4))), r"det: a must be square, got shape \(3, 4\)"),
        (lambda: md.linalg.solve(np.eye(3), np.ones((2, 4))), "solve: axis n is 3 in a but 2 in b"),
        (lambda: md.linalg.svd(np.ones(3)), "svd: a has 1 axis, shape"),
    ]:
        with pytest.raises(ShapeError, match=text):
            call()


def test_operands_of_any_kind_and_layout() -> None:
    """Integers are computed in float64; Tensors come out of arrays, Operations of variables."""
    whole = np.array([[2, 1], [1, 3]])
    assert md.linalg.solve(whole, [1, 2]).dtype == np.float64
    assert isinstance(md.linalg.inv(whole), md.Tensor)
    variable = md.variable("a", whole.astype(np.float64))
    values, columns = md.linalg.eigh(variable)
    assert isinstance(columns, md.Operation)
    np.testing.assert_allclose(values.numpy(), np.linalg.eigvalsh(whole), rtol=1e-14)
    wide = matrices(8, 12, 12)
    views = [
        (lambda a: a[::2, 1::2, ::2], np.s_[::2, 1::2, ::2]),
        (lambda a: a[::-1, ::-1, 3:], np.s_[::-1, ::-1, 3:]),
    ]
    x = node(wide)
    for view, index in views:
        for call, name in ((md.linalg.svdvals, "svdvals"), (md.linalg.det, "det")):
            if name == "det" and view(wide).shape[-1] != view(wide).shape[-2]:
                continue
            (found,) = Executable([call(view(x))], executor="native").run({x: wide})
            np.testing.assert_allclose(found, getattr(np.linalg, name)(wide[index]), rtol=1e-10)


def test_one_factorisation_serves_solutions_and_gradients() -> None:
    a = matrices(6, 6)
    x = node(a)
    solution = md.linalg.solve(x, right(a))
    outputs = [solution, md.linalg.det(x), *gradient(md.ops.sum(solution * solution), [x])]
    text = Executable(outputs, executor="native").text({})
    assert text.count("library getrf") == 1 and text.count("library getrs") == 2
    assert "0 calls of NumPy" in text


def test_factors_are_those_of_scipy() -> None:
    from scipy import linalg

    for shape in ((7, 7), (5, 3), (3, 5), (2, 4, 4), (1, 1)):
        a = matrices(*shape)
        for one, other in zip(md.linalg.lu(a), linalg.lu(a), strict=True):
            np.testing.assert_allclose(np.asarray(one), other, rtol=1e-12, atol=1e-13)
        if shape[-1] != shape[-2]:
            continue
        found = md.linalg.lu_factor(a)
        factors, pivots = linalg.lu_factor(a)
        assert np.array_equal(found.piv, pivots)
        np.testing.assert_allclose(np.asarray(found.lu), factors, rtol=1e-12, atol=1e-13)
        for trans in (0, 1):
            b = right(a)
            turned = np.swapaxes(a, -1, -2) if trans else a
            x = np.asarray(md.linalg.lu_solve(found, b, trans))
            np.testing.assert_allclose(turned @ x, np.broadcast_to(b, x.shape), atol=1e-12)
            x = np.asarray(md.linalg.lu_solve(found, b[:, 0], trans))
            np.testing.assert_allclose((turned @ x[..., None])[..., 0] - b[:, 0], 0, atol=1e-12)
    q, r, p = (np.asarray(x) for x in md.linalg.qr(matrices(5, 3), pivoting=True))
    assert (np.diff(np.abs(np.diag(r))) <= 0).all() and sorted(p) == [0, 1, 2]
    assert q.shape == (5, 3)


def test_ranks_count_singular_values_that_are_not_zero() -> None:
    low = RNG.normal(size=(4, 6, 2)) @ RNG.normal(size=(4, 2, 5))
    assert md.linalg.matrix_rank(low).numpy().tolist() == [2] * 4
    x, _, rank, s = md.linalg.lstsq(low[0], np.arange(6.0))
    assert int(rank) == 2 and s.shape == (5,)
    np.testing.assert_allclose(
        x.numpy(), np.linalg.pinv(low[0], 1e-12) @ np.arange(6.0), atol=1e-12
    )
    assert int(md.linalg.matrix_rank(np.diag([1.0, 1e-3]), rtol=1e-2)) == 1


def test_without_scipy_the_values_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from magmadnn.linalg.factorisations import elimination

    a = matrices(3, 9, 9)
    expected = elimination.lu_factored(a)
    monkeypatch.setattr(elimination, "scipy_lapack", lambda: None)
    np.testing.assert_allclose(elimination.lu_factored(a), expected, rtol=1e-12, atol=1e-13)
