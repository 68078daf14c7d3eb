"""Functions of complex matrices beside NumPy and SciPy, and gradients beside differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import magmadnn as md
from magmadnn import ops
from magmadnn.errors import DTypeError, NumericError
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.linalg.equations import solved
from magmadnn.runtime import Executable

la = md.linalg
RNG = np.random.default_rng(11)
SHAPES = [(5, 5), (1, 1), (3, 4, 4), (2, 1, 3, 3)]


def drawn(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape) + 1j * RNG.normal(size=shape)


def turned(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2).conj()


def hermitian(*shape: int) -> np.ndarray:
    """Positive definite; eigenvalues are apart."""
    a = drawn(*shape)
    return np.asarray(a @ turned(a) + np.diag(3.0 * np.arange(1, shape[-1] + 1)))


def all_close(found: Any, expected: Any, dtype: Any, scale: float = 1.0) -> None:
    eps = np.finfo(dtype).eps
    expected = np.asarray(expected)
    size = max(1.0, float(np.abs(expected).max(initial=0))) * scale
    assert np.shape(found) == expected.shape
    assert np.abs(np.asarray(found) - expected).max(initial=0) <= 400 * eps * size


# what is computed of general matrices; of Hermitian ones
GENERAL: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], Any]]] = {
    "inv": (la.inv, np.linalg.inv),
    "det": (la.det, np.linalg.det),
    "sign": (lambda a: la.slogdet(a)[0], lambda a: np.linalg.slogdet(a)[0]),
    "logabsdet": (lambda a: la.slogdet(a)[1], lambda a: np.linalg.slogdet(a)[1]),
    "svdvals": (la.svdvals, lambda a: np.linalg.svd(a, compute_uv=False)),
    "pinv": (la.pinv, np.linalg.pinv),
    "qr": (lambda a: (r := la.qr(a)).Q @ r.R, lambda a: a),
    "R": (lambda a: ops.abs(la.qr(a).R), lambda a: np.abs(np.linalg.qr(a)[1])),
    "svd": (
        lambda a: (s := la.svd(a)).U @ (ops.expand_dims(s.S, -1) * s.Vh),
        lambda a: a,
    ),
    "rank": (la.matrix_rank, np.linalg.matrix_rank),
    "power": (lambda a: la.matrix_power(a, -2), lambda a: np.linalg.matrix_power(a, -2)),
    "expm": (la.expm, scipy.linalg.expm),
    "nuclear": (
        lambda a: la.norm(a, "nuc", axis=(-2, -1)),
        lambda a: np.linalg.norm(a, "nuc", axis=(-2, -1)),
    ),
    "cond": (la.cond, np.linalg.cond),
}
HERMITIAN: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], Any]]] = {
    "cholesky": (la.cholesky, np.linalg.cholesky),
    "eigvalsh": (la.eigvalsh, np.linalg.eigvalsh),
    "upper": (lambda a: la.eigvalsh(a, UPLO="U"), np.linalg.eigvalsh),
    "eigh": (
        lambda a: (
            (e := la.eigh(a)).eigenvectors
            @ (ops.expand_dims(e.eigenvalues, -1) * ops.conj(ops.swapaxes(e.eigenvectors, -1, -2)))
        ),
        lambda a: a,
    ),
}


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", [*GENERAL, *HERMITIAN])
def test_values(name: str, dtype: str) -> None:
    ours, theirs = {**GENERAL, **HERMITIAN}[name]
    for shape in SHAPES:
        a = (hermitian if name in HERMITIAN else drawn)(*shape).astype(dtype)
        expected = theirs(a.astype(np.complex128))
        condition = float(np.linalg.cond(a).max())
        scale = condition if name in ("inv", "pinv", "power", "cond") else 1.0
        scale = scale**2 if name == "power" else scale
        at_once = np.asarray(ours(a))
        all_close(at_once, expected, dtype, scale)
        if name not in ("rank",):
            assert at_once.dtype == np.asarray(theirs(a)).dtype
        variable = md.variable("a", a)
        for executor in ("native", "reference"):
            made = ours(variable)
            (found,) = Executable([made.node], executor=executor).run({})
            all_close(found, expected, dtype, scale)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_equations(dtype: str) -> None:
    a, b = drawn(4, 5, 5).astype(dtype), drawn(4, 5, 2).astype(dtype)
    exact = np.linalg.solve(a.astype(complex), b.astype(complex))
    scale = float(np.linalg.cond(a).max())
    all_close(la.solve(a, b), exact, dtype, scale)
    all_close(la.solve(a[0], b[0, :, 0]), exact[0, :, 0], dtype, scale)
    all_close(la.lstsq(a, b).x, exact, dtype, scale)
    tall, right = drawn(7, 3).astype(dtype), drawn(7).astype(dtype)
    found, (x, residuals, rank, s) = la.lstsq(tall, right), np.linalg.lstsq(tall, right)
    all_close(found.x, x, dtype, 30)
    all_close(found.residuals, residuals[0], dtype, 30)
    assert int(found.rank) == rank
    all_close(found.s, s, dtype)
    low, high = np.tril(a), np.triu(a)
    for lower, triangle in ((True, low), (False, high)):
        for transpose in (False, True):
            op = np.swapaxes(triangle, -1, -2) if transpose else triangle
            x = la.solve_triangular(a, b, lower=lower, trans=int(transpose))
            hard = float(np.linalg.cond(triangle).max())
            all_close(op @ np.asarray(x), b, dtype, hard)


def test_factors_keep_imaginary_parts() -> None:
    a = drawn(6, 6)
    found, (lu, piv) = la.lu_factor(a), scipy.linalg.lu_factor(a)
    assert np.asarray(found.piv).tolist() == piv.tolist()
    all_close(found.lu, lu, np.complex128)
    p, lower, upper = (np.asarray(x) for x in la.lu(a))
    assert p.dtype == np.float64
    all_close(p @ lower @ upper, a, np.complex128)
    b = drawn(6, 2)
    for trans, op in enumerate((a, a.T, a.conj().T)):
        all_close(op @ np.asarray(la.lu_solve(found, b, trans=trans)), b, np.complex128, 100)
    h = hermitian(6, 6)
    factor = np.linalg.cholesky(h)
    for c, lower_one in ((factor, True), (factor.conj().T, False)):
        all_close(h @ np.asarray(la.cho_solve((c, lower_one), b)), b, np.complex128, 100)


def test_only_one_triangle_is_read() -> None:
    h = hermitian(4, 4)
    above = h + np.triu(np.full((4, 4), 9 + 9j), 1)
    all_close(la.cholesky(above), np.linalg.cholesky(h), np.complex128)
    all_close(la.eigvalsh(above), np.linalg.eigvalsh(h), np.complex128)


# --- gradients ------------------------------------------------------------------------------------

W = drawn(4, 4)


def weighed(x: Any) -> Any:
    """A real number that depends on all parts."""
    shape = tuple(int(n) for n in x.shape)
    weight = np.resize(W, shape) if shape else W[0, 0]
    return ops.sum(ops.real(weight * x))


def parts(x: Any) -> Any:
    return ops.abs(x) * ops.abs(x)


LOSSES: dict[str, tuple[Callable[[Any], Any], tuple[int, int], bool]] = {
    "solve": (lambda a: weighed(la.solve(a, W)), (4, 4), False),
    "right side": (lambda b: weighed(la.solve(W, b)), (4, 3), False),
    "solve_triangular": (lambda a: weighed(la.solve_triangular(a, W, lower=True)), (4, 4), False),
    "transposed": (
        lambda a: weighed(la.solve_triangular(a, W, lower=False, trans=1)),
        (4, 4),
        False,
    ),
    "inv": (lambda a: weighed(la.inv(a)), (4, 4), False),
    "det": (lambda a: weighed(la.det(a)), (4, 4), False),
    "sign": (lambda a: weighed(la.slogdet(a)[0]), (4, 4), False),
    "logabsdet": (lambda a: la.slogdet(a)[1], (4, 4), False),
    "expm": (lambda a: weighed(la.expm(a)), (4, 4), False),
    "cholesky": (lambda a: weighed(la.cholesky(a)), (4, 4), True),
    "eigvalsh": (lambda a: weighed(la.eigvalsh(a)), (4, 4), True),
    "eigenvectors": (lambda a: weighed(parts(la.eigh(a)[1])), (4, 4), True),
    "projection": (
        lambda a: weighed((v := la.eigh(a)[1][:, :2]) @ ops.conj(ops.swapaxes(v, -1, -2))),
        (4, 4),
        True,
    ),
    "svdvals": (lambda a: weighed(la.svdvals(a)), (5, 3), False),
    "svd": (
        lambda a: (
            weighed(parts((s := la.svd(a, full_matrices=False)).U))
            + weighed(parts(s.Vh))
            + weighed(s.S)
            + weighed(s.U[:, :2] @ s.Vh[:2])
        ),
        (5, 3),
        False,
    ),
    "wide svd": (
        lambda a: weighed((s := la.svd(a, full_matrices=False)).U[:, :1] @ s.Vh[:1]),
        (3, 5),
        False,
    ),
    "qr": (lambda a: weighed((f := la.qr(a)).Q) + weighed(f.R), (4, 4), False),
    "high qr": (lambda a: weighed((f := la.qr(a)).Q) + weighed(f.R), (5, 3), False),
    "wide qr": (lambda a: weighed((f := la.qr(a)).Q) + weighed(f.R), (3, 5), False),
    "pinv": (lambda a: weighed(la.pinv(a)), (5, 3), False),
    "lstsq": (lambda a: weighed(la.lstsq(a, W[:, :2]).x), (4, 3), False),
}


def gradient(loss: Callable[[Any], Any], a: np.ndarray) -> np.ndarray:
    variable = md.variable("a", a)
    return np.asarray(md.grad(loss(variable), variable))


@pytest.mark.parametrize("name", list(LOSSES))
def test_gradients_are_directions_of_ascent(name: str) -> None:
    """L(a + t d) = L(a) + t Re sum(conj(G) d): PyTorch's convention; G of a triangle that alone is read."""
    loss, shape, is_hermitian = LOSSES[name]
    a = hermitian(*shape) if is_hermitian else drawn(*shape)
    found = gradient(loss, a)
    step = 1e-5
    for _ in range(4):
        d = drawn(*shape)
        if is_hermitian:  # the diagonal stays real
            d = np.tril(d, -1) + np.diag(np.diag(d).real)
        ahead, behind = (float(np.asarray(loss(a + t * d)).real) for t in (step, -step))
        slope = (ahead - behind) / (2 * step)
        along = float((found.conj() * d).sum().real)
        scale = float(np.abs(found).max() * np.abs(d).max())
        assert abs(slope - along) <= 3e-7 * max(scale, 1), (slope, along)


@pytest.mark.parametrize(
    "name", ["solve", "logabsdet", "cholesky", "eigenvectors", "svdvals", "qr", "pinv"]
)
def test_second_gradients(name: str) -> None:
    loss, shape, is_hermitian = LOSSES[name]
    a = hermitian(*shape) if is_hermitian else drawn(*shape)
    weight = drawn(*shape)
    if is_hermitian:
        weight = np.tril(weight, -1) + np.diag(np.diag(weight).real)
    variable = md.variable("a", a)
    first = md.grad(loss(variable), variable)
    found = np.asarray(md.grad(ops.sum(ops.real(first * np.conj(weight))), variable))
    step, d = 1e-5, drawn(*shape)
    if is_hermitian:
        d = np.tril(d, -1) + np.diag(np.diag(d).real)
    ahead, behind = (
        float((gradient(loss, a + t * d) * weight.conj()).sum().real) for t in (step, -step)
    )
    slope, along = (ahead - behind) / (2 * step), float((found.conj() * d).sum().real)
    scale = float(np.abs(found).max() * np.abs(d).max())
    assert abs(slope - along) <= 3e-6 * max(scale, 1), (slope, along)


# --- what is refused ------------------------------------------------------------------------------


def test_mistakes() -> None:
    with pytest.raises(DTypeError, match='method="refine" takes real numbers, got complex128'):
        la.solve(drawn(3, 3), drawn(3), method="refine")
    with pytest.raises(NumericError, match="solve: a is singular: pivot 3 of 3 is 0"):
        la.solve(np.diag([1, 2j, 0]), drawn(3))
    with pytest.raises(NumericError, match="leading minor of order 2 of 3 is not positive"):
        la.cholesky(np.array([[1, 0, 0], [2j, 1, 0], [0, 0, 1]]))
    with pytest.raises(NumericError, match=r"inv: a holds \(nan\+0j\) at \[0, 1\]"):
        la.inv(np.array([[1, np.nan], [0, 1j]]))


@pytest.mark.parametrize("of_a", [(40, 40), (3, 33, 33), (2, 1, 5, 5)])
@pytest.mark.parametrize("transpose", [False, True])
def test_substitution_by_a_call_for_each_matrix_and_by_all(
    of_a: tuple[int, ...], transpose: bool
) -> None:
    """In programs, where complex factors are SciPy's; leading axes broadcast."""
    a, b = drawn(*of_a), drawn(3, of_a[-1], 2)
    turned = np.swapaxes(a, -1, -2) if transpose else a
    nodes = [placeholder(name, Spec(x.shape, x.dtype)) for name, x in (("a", a), ("b", b))]
    made = solved(*nodes, transpose=transpose)
    (x,) = Executable([made], executor="native").run(dict(zip(nodes, (a, b), strict=True)))
    size = np.abs(turned).sum(-1).max() * np.abs(x).max() + np.abs(b).max()
    assert np.abs(turned @ x - b).max() <= 4 * a.shape[-1] * np.finfo(float).eps * size
