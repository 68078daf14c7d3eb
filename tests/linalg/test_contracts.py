"""What every function does with no matrices, none of rows, one number, and strides of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, MagmaDNNError
from magmadnn.runtime import Executable

la = md.linalg
Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float64", "complex64", "complex128")

# name: function of positive definite matrices [..., n, n], the same by NumPy, whether it has Operations
ONE: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Any], bool]] = {
    "inv": (la.inv, np.linalg.inv, True),
    "pinv": (la.pinv, np.linalg.pinv, True),
    "det": (la.det, np.linalg.det, True),
    "slogdet": (la.slogdet, np.linalg.slogdet, True),
    "cholesky": (la.cholesky, np.linalg.cholesky, True),
    "qr": (la.qr, np.linalg.qr, True),
    "svd": (la.svd, np.linalg.svd, True),
    "svdvals": (la.svdvals, lambda a: np.linalg.svd(a, compute_uv=False), True),
    "eigh": (la.eigh, np.linalg.eigh, True),
    "eigvalsh": (la.eigvalsh, np.linalg.eigvalsh, True),
    "eigvals": (la.eigvals, np.linalg.eigvals, False),
    "matrix_rank": (la.matrix_rank, np.linalg.matrix_rank, True),
    "matrix_power": (lambda a: la.matrix_power(a, 3), lambda a: np.linalg.matrix_power(a, 3), True),
    "norm": (lambda a: la.norm(a, axis=(-2, -1)), lambda a: np.linalg.norm(a, axis=(-2, -1)), True),
    "lu_factor": (lambda a: la.lu_factor(a).lu, lambda a: a, False),
    "lu": (lambda a: la.lu(a).U, lambda a: a, False),
}
TWO: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "solve": (la.solve, True),
    "lstsq": (lambda a, b: la.lstsq(a, b).x, True),
    "triangular": (lambda a, b: la.solve_triangular(a, b, lower=True), True),
    "cho_solve": (lambda a, b: la.cho_solve((a, True), b), True),
    "lu_solve": (lambda a, b: la.lu_solve(la.lu_factor(a), b), False),
}
SHAPES = [(0, 0), (1, 1), (0, 3, 3), (2, 0, 3, 3), (3, 0, 0), (1, 1, 1), (2, 1, 4, 4)]


def definite(shape: tuple[int, ...], dtype: str) -> Array:
    a = np.random.default_rng(9).normal(size=shape).astype(dtype)
    if dtype.startswith("complex"):
        a = a + 1j * a[..., ::-1]
    return np.asarray(a @ np.swapaxes(a, -1, -2).conj() + 2 * np.eye(shape[-1]), dtype)


def strided(a: Array) -> list[Array]:
    """The same values in other strides, and read only."""
    wide = np.zeros((*a.shape[:-2], 2 * a.shape[-2], 3 * a.shape[-1]), a.dtype)
    wide[..., ::2, 1::3] = a
    fixed = a.copy()
    fixed.flags.writeable = False
    turned = np.ascontiguousarray(np.swapaxes(a, -1, -2)).swapaxes(-1, -2)
    return [wide[..., ::2, 1::3], a[..., ::-1, ::-1].copy()[..., ::-1, ::-1], turned, fixed]


def parts(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def compiled(function: Callable[..., Any], *operands: Array) -> list[Array]:
    made = parts(function(*(md.variable(f"x{k}", np.array(x)) for k, x in enumerate(operands))))
    return [np.asarray(y) for y in Executable([y.node for y in made]).run({})]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ONE)
def test_shapes_and_dtypes_of_empty_and_single_matrices(name: str, dtype: str) -> None:
    function, theirs, has_operations = ONE[name]
    for shape in SHAPES:
        a = definite(shape, dtype)
        try:
            expected = [np.asarray(y) for y in parts(theirs(a))]
        except (ValueError, np.linalg.LinAlgError):  # no largest number of none
            continue
        found = [np.asarray(y) for y in parts(function(a))]
        ways = [found] + ([compiled(function, a)] if has_operations else [])
        for way in ways:
            assert [y.shape for y in way] == [y.shape for y in expected], shape
            if name != "matrix_rank":
                assert [y.dtype for y in way] == [y.dtype for y in expected], shape
        if shape == (1, 1) and name not in ("qr", "svd", "eigh"):
            # vectors have a sign or a phase; of one number everything else is that number's own
            for y, z in zip(found, expected, strict=True):
                eps = np.finfo(dtype).eps
                np.testing.assert_allclose(y, z, rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TWO)
def test_equations_of_empty_and_single_matrices(name: str, dtype: str) -> None:
    function, has_operations = TWO[name]
    for shape in SHAPES:
        a = definite(shape, dtype)
        for k in (0, 1, 2):
            b = np.ones((*shape[:-1], k), dtype)
            ways = [np.asarray(function(a, b))]
            ways += compiled(function, a, b) if has_operations else []
            for x in ways:
                assert x.shape == b.shape, (shape, k)
                assert x.dtype == b.dtype
    x = function(np.array([[4.0]], dtype), np.array([[8.0]], dtype))
    assert np.asarray(x).item() == (0.5 if name == "cho_solve" else 2)


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_strides_change_no_more_than_the_order_of_sums(name: str) -> None:
    function: Callable[..., Any] = ONE[name][0] if name in ONE else TWO[name][0]
    for shape in ((5, 5), (3, 4, 4)):
        a = definite(shape, "float64")
        right = () if name in ONE else (np.random.default_rng(1).normal(size=(*shape[:-1], 2)),)
        expected = [np.asarray(y) for y in parts(function(a, *right))]
        for b in strided(a):
            before = b.copy()
            found = parts(function(b, *right))
            for y, z in zip(found, expected, strict=True):
                # LAPACK may be given the matrix or its transpose, so sums come in another order
                assert (
                    np.abs(np.asarray(y) - z).max() <= 200 * np.finfo(float).eps * np.abs(z).max()
                )
            np.testing.assert_array_equal(b, before)


def of_one(name: str) -> Callable[[Any], Any]:
    if name in TWO:
        return lambda a: TWO[name][0](a, np.ones(3))
    return ONE[name][0] if name in ONE else getattr(la, name)


@pytest.mark.parametrize("name", [*ONE, *TWO, "expm", "cond", "eig"])
def test_what_is_no_matrix(name: str) -> None:
    with pytest.raises(MagmaDNNError, match=r"axis|axes|matrix"):
        of_one(name)(np.ones(3))


# there NaN comes out as NaN, as from NumPy
PASSING = ("norm", "matrix_power", "cholesky", "triangular", "cho_solve")


@pytest.mark.parametrize("name", sorted({*ONE, *TWO, "expm", "cond", "eig"} - {*PASSING}))
def test_what_is_not_finite(name: str) -> None:
    for wrong in (np.nan, np.inf):
        a = np.eye(3)
        a[2, 1] = wrong
        with pytest.raises(MagmaDNNError, match=r"nan|NaN|inf"):
            of_one(name)(a)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_determinants_and_inverses_of_matrices_whose_size_is_open(n: int) -> None:
    draw = np.random.default_rng(8)
    values = draw.normal(size=(3, n, n)) + 3 * np.eye(n)[::-1]
    a = md.placeholder("a", (None, "n", "n"), "float64")
    given = {a: values}
    found: dict[str, tuple[Any, Array]] = {
        "det": (la.det(a), np.linalg.det(values)),
        "log": (la.slogdet(a)[1], np.linalg.slogdet(values)[1]),
        "inv": (la.inv(a), np.linalg.inv(values)),
        "power": (la.matrix_power(a, -2), np.linalg.matrix_power(values, -2)),
        "none": (la.matrix_power(a, 0), np.linalg.matrix_power(values, 0)),
        "slope": (
            md.grad(la.slogdet(a)[1].sum(), a),
            np.swapaxes(np.linalg.inv(values), -1, -2),
        ),
        "unit": (
            la.solve_triangular(a, a, lower=True, unit_diagonal=True),
            np.linalg.solve(np.tril(values, -1) + np.eye(n), values),
        ),
    }
    for name, (one, expected) in found.items():
        np.testing.assert_allclose(one.eval(given), expected, rtol=1e-11, atol=1e-11, err_msg=name)
    scipy = pytest.importorskip("scipy.linalg")
    np.testing.assert_allclose(la.expm(a).eval(given), scipy.expm(values), rtol=1e-11, atol=1e-11)


def test_arrays_in_place_of_names_are_refused_and_numbers_of_numpy_are_taken() -> None:
    a, bad = np.diag([1.0, 2.0, 4.0]), np.ones(3)
    for call in (
        lambda: la.norm(a, bad),
        lambda: la.norm(a, bad, axis=0),
        lambda: la.cond(a, bad),
        lambda: la.eigh(a, bad),
        lambda: la.eigvalsh(a, bad),
        lambda: la.qr(a, bad),
        lambda: la.norm(a, np.bool(True)),
        lambda: la.cond(a, float("nan")),
    ):
        with pytest.raises(ArgumentError, match="must be"):
            call()
    assert la.cond(a, np.int64(1)) == la.cond(a, np.float32(1)) == 4
    np.testing.assert_allclose(la.norm(a, np.int64(3), axis=1).numpy(), [1, 2, 4])
