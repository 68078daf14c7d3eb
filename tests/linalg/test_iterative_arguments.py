"""What iterative solutions are asked for that cannot be, and sizes at the ends of the range of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import magmadnn as md
from magmadnn.backends.cuda import available
from magmadnn.errors import ArgumentError, DTypeError, NumericError, ShapeError

la = md.linalg
N = 13
_RNG = np.random.default_rng(3)
_SQUARE = _RNG.normal(size=(N, N))
POSITIVE = _SQUARE @ _SQUARE.T + N * np.eye(N)
UNSYMMETRIC = _SQUARE + 5 * np.eye(N)
DOMINANT = _SQUARE + 30 * np.eye(N)
B = _RNG.normal(size=N)
WAYS: list[tuple[Callable[..., Any], Any]] = [(la.cg, POSITIVE), (la.gmres, UNSYMMETRIC)]
ALL = [*WAYS, (la.jacobi, DOMINANT)]


@pytest.mark.parametrize(("way", "a"), ALL)
@pytest.mark.parametrize("exponent", [-1060, -700, -500, 400, 1000])
def test_right_sides_of_any_size_have_solutions(way: Any, a: Any, exponent: int) -> None:
    """Their squares are 0 or infinite: 1e-200 was taken for 0, and infinity for small enough."""
    size = 2.0**exponent
    found = way(a, B * size, rtol=1e-9)
    plain = way(a, B, rtol=1e-9)
    assert 0 < found.residual <= 1.01e-9
    if way is not la.jacobi:  # which differs from run to run
        assert found.iterations == plain.iterations
    x = np.asarray(found.x)
    # each x has an error of |A^-1| 1e-9 |B|; a subnormal one has 14 bits besides, of numbers of up to 4
    near = 2 * np.linalg.norm(np.linalg.inv(a), 2) * 1.01e-9 * np.linalg.norm(B)
    near += 4 * N**0.5 * 2.0**-14 if exponent < -1022 else 0.0
    assert np.abs(x / size - np.asarray(plain.x)).max() <= near


@pytest.mark.parametrize(("way", "a"), WAYS)
def test_complex_right_sides_of_any_size(way: Any, a: Any) -> None:
    b = B + 1j * np.roll(B, 1)
    for exponent in (-1060, -900, 900):
        found = way(a, b * 2.0**exponent, rtol=1e-9)
        x = np.asarray(found.x) / 2.0 ** (exponent // 2) / 2.0 ** (exponent // 2)
        near = np.linalg.norm(np.linalg.inv(a), 2) * 1.01e-9 * np.linalg.norm(b)
        near += 8 * N**0.5 * 2.0**-14 if exponent < -1022 else 0.0
        assert np.abs(x - np.linalg.solve(a, b)).max() <= near


@pytest.mark.parametrize(("way", "a"), ALL)
def test_right_sides_of_float32_have_solutions(way: Any, a: Any) -> None:
    """Squares of 1e-25 are 0 in float32."""
    a, b = a.astype(np.float32), B.astype(np.float32)
    found = way(a, b * np.float32(2.0**-83), rtol=1e-4)
    assert found.x.dtype == np.float32
    exact = np.linalg.solve(a.astype(float), b.astype(float))
    near = np.linalg.norm(np.linalg.inv(a.astype(float)), 2) * 1.01e-4 * np.linalg.norm(b)
    assert np.abs(np.asarray(found.x, float) * 2.0**83 - exact).max() <= near


@pytest.mark.parametrize(("way", "a"), ALL)
@pytest.mark.parametrize(("given", "words"), [
    ({"rtol": 0}, "rtol=0.* nothing is left of |A x - b|, but rounding leaves some of it: give rtol=1e-12"),
    ({"rtol": 1e-16}, "at most 1e-16 of |b|, by rtol=1e-16, .* float64 leaves .*: give rtol=9e-16 or more$"),
    ({"rtol": 1}, r"rtol must be below 1, got 1: x = 0 leaves \|b\|, so it would be the answer"),
    ({"rtol": np.inf}, "rtol must be a number from 0 on, got inf"),
    ({"rtol": np.nan}, "rtol must be a number from 0 on, got nan"),
    ({"rtol": True}, "rtol must be a number from 0 on, got True"),
    ({"maxiter": 0}, "maxiter must be a positive integer"),
    ({"maxiter": 2.5}, "maxiter must be a positive integer"),
])  # fmt: skip
def test_tolerances_and_numbers_of_steps(way: Any, a: Any, given: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{way.__name__}: .*{words}"):
        way(a, B, **given)


@pytest.mark.parametrize(("way", "a"), WAYS)
def test_what_only_these_take(way: Any, a: Any) -> None:
    name = way.__name__
    for given, words in (
        ({"rtol": 0, "atol": 0}, "rtol=0 and atol=0 ask .*, or an atol above 0"),
        ({"rtol": 0, "atol": 1e-20}, "by atol=1e-20, but rounding in float64 leaves"),
        ({"atol": np.inf}, "atol must be a number from 0 on, got inf"),
    ):
        with pytest.raises(ArgumentError, match=f"^{name}: .*{words}"):
            way(a, B, **given)
    narrow = a.astype(np.float32), B.astype(np.float32)
    with pytest.raises(
        ArgumentError, match=r"float32 leaves .*rtol=5e-07 or more, or operands of f"
    ):
        way(*narrow, rtol=1e-9)
    assert way(a, B, rtol=0, atol=1e-8).residual <= 1e-8 / np.linalg.norm(B)
    assert way(a, B, rtol=np.float32(1e-3), maxiter=np.int64(50)).residual <= 1e-3
    assert np.array_equal(way(a, 0 * B, x0=B).x, 0 * B)
    with pytest.raises(DTypeError, match=f"^{name}: x0 is complex128, and a and b are real"):
        way(a, B, x0=1j * B)
    with pytest.raises(DTypeError, match=f"^{name}: preconditioner is complex128, and a and b are"):
        way(a, B, preconditioner=1j * np.eye(N))
    other = scipy.sparse.linalg.LinearOperator((N + 1, N + 1), lambda v: v, dtype=float)
    with pytest.raises(ShapeError, match=f"^{name}: preconditioner must be 13 x 13, got shape"):
        way(a, B, preconditioner=other)


def test_gmres_makes_no_more_steps_than_it_is_told() -> None:
    done: list[int] = []

    def product(v: Any) -> Any:
        done.append(1)
        return UNSYMMETRIC @ v.reshape(N)

    a = scipy.sparse.linalg.LinearOperator((N, N), product, dtype=float)
    for most, restart in ((1, 20), (3, 20), (5, 2), (7, 3)):
        done.clear()
        with pytest.raises(NumericError, match=f"^gmres: after {most} steps .* a larger maxiter"):
            la.gmres(a, B, maxiter=most, restart=restart, rtol=1e-12)
        cycles = -(-most // min(most, restart))
        assert len(done) <= most + 2 * cycles + 2  # a residual of each cycle, and of what it gave


def _zero(v: Any) -> Any:
    return 0 * v


def _nan(v: Any) -> Any:
    return np.nan * v


@pytest.mark.parametrize(("call", "words"), [
    (lambda: la.cg(UNSYMMETRIC, B), r"a is not symmetric, as cg wants it \(a\[\d+, \d+\] is .*: use gmres"),
    (lambda: la.cg(scipy.sparse.csr_matrix(UNSYMMETRIC), B), "a is not symmetric, as cg wants it"),
    (lambda: la.cg(POSITIVE + 1j * (_SQUARE + _SQUARE.T), B), "a is not symmetric, as cg wants it"),
    (lambda: la.cg(np.diag([1.0, -1.0, 2.0]), np.array([1.0, 1.0, 0.0])), "a is not positive definite"),
    (lambda: la.cg(0 * POSITIVE, B), "a is not positive definite"),
    (lambda: la.cg(scipy.sparse.linalg.LinearOperator((N, N), _nan, dtype=float), B),
     "a gives NaN or infinity for finite vectors"),
    (lambda: la.gmres(UNSYMMETRIC, B, preconditioner=np.zeros((N, N))), "the preconditioner gives 0"),
    (lambda: la.gmres(np.outer(B, B), np.roll(B, 1)), "no further step changes x, as where a is sing"),
    (lambda: la.gmres(UNSYMMETRIC * 2.0**700, B), r"elements of a are up to \d.*e\+211, whose squares"),
    (lambda: la.jacobi(DOMINANT, B, maxiter=2), "give a larger maxiter or rtol, or use md.linalg.solv"),
    (lambda: la.cg(POSITIVE, B, maxiter=1), "give a preconditioner, a larger maxiter or rtol"),
])  # fmt: skip
def test_why_steps_did_not_suffice(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(NumericError, match=rf"^\w+: after \d+ steps .* is wanted: {words}"):
        call()


def test_a_solution_beyond_the_range_of_numbers_is_told() -> None:
    for way in (la.cg, la.jacobi):
        with pytest.raises(
            NumericError, match=f"^{way.__name__}: x is beyond the range of float64"
        ):
            way(np.eye(3) * 2.0**-200, np.array([1.0, 2.0, 3.0]) * 2.0**900)


def test_a_library_that_finds_no_step_is_told_as_no_solution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gmres(*_: Any, **__: Any) -> Any:  # as CuPy's does where the matrix has given NaN
        raise np.linalg.LinAlgError("SVD did not converge in Linear Least Squares")

    monkeypatch.setattr(scipy.sparse.linalg, "gmres", gmres)
    with pytest.raises(NumericError, match=r"^gmres: after 0 steps \|A x - b\| is nan"):
        md.linalg.gmres(np.eye(3), np.ones(3))


HAS_DEVICE, REASON = available()


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_DEVICE, reason=f"no GPU: {REASON}")
@pytest.mark.parametrize(("way", "a"), WAYS)
def test_a_gpu_gives_what_the_processor_gives(way: Any, a: Any) -> None:
    """Right sides of any size, complex ones of a real matrix, and no more steps than are wanted."""

    def there(x: Any) -> Any:
        return md.asarray(np.ascontiguousarray(x)).to("device")

    inverse = np.linalg.norm(np.linalg.inv(a), 2)
    for b in (B, B + 1j * np.roll(B, 1)):
        for size in (1.0, 2.0**-900, 2.0**900):  # of complex ones too
            found = way(there(a), there(b * size), rtol=1e-9)
            x = found.x.numpy() / size
            assert found.residual <= 1.01e-9 and found.iterations > 0
            assert np.abs(x - np.linalg.solve(a, b)).max() <= inverse * 1.01e-9 * np.linalg.norm(b)
    with pytest.raises(ArgumentError, match="rtol=0 and atol=0 ask"):
        way(there(a), there(B), rtol=0)
    with pytest.raises(NumericError, match=f"^{way.__name__}: after 3 steps"):
        way(there(a), there(B), maxiter=3, rtol=1e-12)
    with pytest.raises(NumericError, match="a gives NaN or infinity"):
        way(there(np.where(a == a[1, 2], np.nan, a)), there(B))


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_DEVICE, reason=f"no GPU: {REASON}")
def test_a_gpu_says_that_a_matrix_is_not_symmetric() -> None:
    b = md.asarray(B).to("device")
    for a in (md.asarray(UNSYMMETRIC).to("device"), scipy.sparse.csr_matrix(UNSYMMETRIC)):
        with pytest.raises(
            NumericError, match=r"a is not symmetric, as cg wants it \(a\[\d+, \d+\]"
        ):
            la.cg(a, b)


@pytest.mark.parametrize(("way", "a"), WAYS)
@pytest.mark.parametrize(
    "b",
    [
        (B * 100).astype(np.float16), (B * 1e-4).astype(np.float16), (B * 1e25).astype(np.float32),
        (B * 1e-30).astype(np.float32), ((1 + 1j) * B * 1e25).astype(np.complex64),
    ],
    ids=lambda b: f"{b.dtype}-{abs(b).max():.0e}",
)  # fmt: skip
def test_right_sides_of_a_narrower_dtype_have_solutions(way: Any, a: Any, b: Any) -> None:
    """Their norms were taken in their own dtype: infinite or 0, and so x = 0 was the answer."""
    found = way(a, b, rtol=1e-9)
    expected = np.linalg.solve(a, b.astype(np.result_type(b.dtype, np.float64)))
    assert 0 < found.residual <= 1.01e-9
    # |A^-1| is below 1 for these matrices
    np.testing.assert_allclose(found.x, expected, rtol=0, atol=1e-8 * np.linalg.norm(expected))


def test_a_beginning_that_is_too_far_is_named() -> None:
    """It was said that a is singular, or x known to fewer digits."""
    with pytest.raises(NumericError, match=r"x0 has a square beyond the range.*leave x0 out"):
        la.cg(POSITIVE, B * 1e-300, x0=B)
