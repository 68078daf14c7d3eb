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


@pytest.mark.parametrize("right", ["float32", "complex64", "float16", "float64"])
@pytest.mark.parametrize("name", [name for name in TWO if name != "lu_solve"])
def test_integers_beside_other_numbers_have_one_dtype_in_steps_too(name: str, right: str) -> None:
    """Factors of integers are of float64; the result is of the common dtype, as in eager calls."""
    function, _ = TWO[name]
    whole = np.random.default_rng(4).integers(0, 5, (2, 5, 5)).astype("uint8")
    a = whole if name != "cho_solve" else whole[0]
    a = a + 20 * np.eye(5, dtype="uint8")
    b = np.random.default_rng(5).normal(size=(5, 2)).astype(right)
    expected = np.asarray(function(a, b))
    assert expected.dtype == right
    wide = np.result_type(right, np.float64)
    exact = np.asarray(function(a.astype("float64"), b.astype(wide)))
    made = function(md.variable("a", a), md.variable("b", b)).node
    ways = [expected, *compiled(function, a, b)]
    ways += Executable([made], executor="native").run({})
    for way in map(np.asarray, ways):
        assert way.dtype == right
        # rounded once, but for right sides of 5 numbers that are rounded where they are substituted
        bound = 8 * 5 * np.finfo(right).eps * np.abs(exact).max()
        assert np.abs(way.astype(wide) - exact).max() <= bound


@pytest.mark.parametrize("left", ["float16", "float32", "complex64"])
@pytest.mark.parametrize("right", ["int64", "float64", "complex128"])
@pytest.mark.parametrize("name", [name for name in TWO if name != "lu_solve"])
def test_steps_have_the_digits_of_their_result(name: str, right: str, left: str) -> None:
    """Factors of the narrower operand's precision would leave a result of float64 7 digits."""
    function, _ = TWO[name]
    draw = np.random.default_rng(4)
    a = draw.normal(size=(5, 5)) + (1j * draw.normal(size=(5, 5)) if left[0] == "c" else 0)
    a = (a + 8 * np.eye(5)).astype(left)
    b = (9 * draw.normal(size=(5, 2))).astype(right)
    expected = np.asarray(function(a, b))
    wide = expected.dtype
    made = function(md.variable("a", a), md.variable("b", b)).node
    (way,) = map(np.asarray, Executable([made], executor="native").run({}))
    assert way.dtype == wide == np.result_type(left, right)
    # 5 products, of a matrix that is far from singular
    np.testing.assert_allclose(way, expected, rtol=0, atol=8 * 5 * np.finfo(wide).eps * 9)


@pytest.mark.parametrize("shape", [(9, 0), (0, 9), (2, 9, 0), (0, 0)])
@pytest.mark.parametrize("full", [True, False])
def test_lapack_has_nothing_to_say_of_empty_matrices(
    shape: tuple[int, ...], full: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """It prints a line where a distance of columns is 0, and sets no vectors."""
    a = np.zeros(shape)
    found = la.svd(md.variable("a", a), full_matrices=full)
    values = Executable([y.node for y in found], executor="native").run({})
    for y, z in zip(values, np.linalg.svd(a, full_matrices=full), strict=True):
        np.testing.assert_array_equal(np.asarray(y), z)
    assert capfd.readouterr().out == ""


def test_lapack_has_nothing_to_say_of_infinity(capfd: pytest.CaptureFixture[str]) -> None:
    """It is not called, and the error is ours; sizes are those of which it prints a line."""
    a = np.eye(130)
    a[2, 1] = np.inf
    step = Executable([la.svdvals(md.variable("a", a)).node], executor="native")
    with pytest.raises(MagmaDNNError, match=r"svd: a holds inf at \[2, 1\]"):
        step.run({})
    assert capfd.readouterr().out == ""


def test_exponentials_that_overflow_are_infinite_without_a_warning() -> None:
    pytest.importorskip("scipy")
    a = np.array([[1e300]])
    assert la.expm(a).item() == np.inf
    assert compiled(la.expm, a)[0].item() == np.inf
