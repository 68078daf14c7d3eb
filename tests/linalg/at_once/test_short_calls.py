"""Calls on arrays and Tensors of the host go to LAPACK, or the transform, without any op in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl

import magmadnn as md
from magmadnn.errors import NumericError
from magmadnn.graph.op import Op

Array = np.ndarray[Any, Any]
L, F = md.linalg, md.fft
RNG = np.random.default_rng(17)


def residuals(a: Array, b: Array, x: Array) -> Array:
    return np.asarray((np.abs(a @ x - b) ** 2).sum(0))


def with_lu(a: Array) -> Any:
    return tuple(np.asarray(x) for x in L.lu_factor(a))


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "solve": (lambda a: L.solve(a, a), lambda a: np.eye(len(a))),
    "inv": (L.inv, np.linalg.inv),
    "det": (L.det, np.linalg.det),
    "slogdet": (L.slogdet, np.linalg.slogdet),
    "svdvals": (L.svdvals, np.linalg.svdvals),
    "S": (lambda a: L.svd(a)[1], np.linalg.svdvals),
    "eigvalsh": (L.eigvalsh, np.linalg.eigvalsh),
    "eigvalsh of U": (lambda a: L.eigvalsh(a, "U"), lambda a: np.linalg.eigvalsh(a, "U")),
    "eigh": (lambda a: L.eigh(a, "U")[0], lambda a: np.linalg.eigvalsh(a, "U")),
    "R": (lambda a: abs(np.asarray(L.qr(a)[1])), lambda a: abs(np.linalg.qr(a)[1])),
    "pinv": (L.pinv, np.linalg.pinv),
    "high pinv": (lambda a: L.pinv(a[:, :3]), lambda a: np.linalg.pinv(a[:, :3])),
    "lstsq": (
        lambda a: L.lstsq(a[:, :3], a[:, 3:]),
        lambda a: np.linalg.lstsq(np.asarray(a)[:, :3], np.asarray(a)[:, 3:]),
    ),
    "wide lstsq": (
        lambda a: L.lstsq(a[:3], a[:3, 0])[0],
        lambda a: np.linalg.pinv(np.asarray(a)[:3]) @ np.asarray(a)[:3, 0],
    ),
    "lu_solve": (
        lambda a: L.lu_solve(with_lu(np.asarray(a)), a[:, :2], 2),
        lambda a: np.linalg.solve(a.conj().T, a[:, :2]),
    ),
    "lu_solve of a vector": (
        lambda a: L.lu_solve(with_lu(np.asarray(a)), a[:, 1], 1), lambda a: np.linalg.solve(a.T, a[:, 1]),
    ),
    "cho_solve": (
        lambda a: L.cho_solve((a, True), a), lambda a: sl.cho_solve((np.asarray(a), True), np.asarray(a)),
    ),
    "cho_solve of U": (
        lambda a: L.cho_solve((a, False), a[:, 0]),
        lambda a: sl.cho_solve((np.asarray(a), False), np.asarray(a)[:, 0]),
    ),
    "matrix_rank": (lambda a: L.matrix_rank(a[:, [0, 0, 1]] if type(a) is np.ndarray else a[:, :2]),
                    lambda a: 2),
    "cond": (L.cond, np.linalg.cond),
    "norm": (L.norm, np.linalg.norm),
    "norm of rows": (
        lambda a: L.norm(a, 3, -1, keepdims=True), lambda a: np.linalg.norm(a, 3, -1, keepdims=True),
    ),
    "norm of columns": (lambda a: L.norm(a, 1, (-1, 0)), lambda a: np.linalg.norm(a, 1, (-1, 0))),
    "fft": (lambda a: F.fft(a, 7, 0, "ortho"), lambda a: np.fft.fft(a, 7, 0, "ortho")),
    "ifft": (F.ifft, np.fft.ifft),
    "irfft": (lambda a: F.irfft(a, 9), lambda a: np.fft.irfft(a, 9)),
    "fft2": (F.fft2, np.fft.fft2),
    "irfftn": (F.irfftn, np.fft.irfftn),
    "fftn": (lambda a: F.fftn(a, axes=(0,)), lambda a: np.fft.fftn(a, axes=(0,))),
    "rfft": (lambda a: F.rfft(a.real if type(a) is np.ndarray else np.asarray(a).real),
             lambda a: np.fft.rfft(np.asarray(a).real)),
    "rfftn": (lambda a: F.rfftn(np.asarray(a).real), lambda a: np.fft.rfftn(np.asarray(a).real)),
}  # fmt: skip


def laid_out(a: Array) -> dict[str, Any]:
    wide = np.zeros((2 * len(a), 3 * len(a)), a.dtype)
    wide[::2, 1::3] = a
    backwards = a[::-1, ::-1].copy()[::-1, ::-1]
    fixed = a.copy()
    fixed.flags.writeable = False
    return {
        "rows": a, "columns": np.asfortranarray(a), "steps": wide[::2, 1::3], "backwards": backwards,
        "read only": fixed, "Tensor": md.asarray(a), "view": md.asarray(wide)[::2, 1::3],
        "host": md.Tensor.holding(a, "HOST"),
    }  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", "fdFD")
def test_values_are_those_of_the_libraries(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, expected = CASES[name]
    a = RNG.normal(size=(6, 6)) + 6 * np.eye(6)
    a = (a + 1j * RNG.normal(size=(6, 6)) if kind in "FD" else a).astype(kind)
    if name.startswith("cho"):  # real where the factor of a Hermitian matrix is
        np.fill_diagonal(a, a.diagonal().real)
    wanted = expected(a)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    if name != "solve":

        def unwanted(op: Op, *operands: Any, **attributes: Any) -> Any:
            raise AssertionError(f"{name}: {op.name} is looked at as an op")

        monkeypatch.setattr(Op, "__call__", unwanted)
    for layout, given in laid_out(a).items():
        found = call(given)
        found = found if isinstance(found, tuple) else (found,)
        for one, other in zip(found, wanted, strict=True):
            one, other = np.asarray(one), np.asarray(other)
            assert one.shape == other.shape, layout
            assert one.dtype == other.dtype or other.dtype.kind == "i" or name == "solve", layout
            bound = 3e4 * np.finfo(a.dtype).eps * np.abs(other).max()
            assert np.abs(one - other).max() <= bound, layout
        np.testing.assert_array_equal(np.asarray(given), a)


def test_results_of_tensors_on_the_host_lie_there() -> None:
    a = md.Tensor.holding(RNG.normal(size=(3, 3)) + 3 * np.eye(3), "HOST")
    for call in (L.inv, L.det, L.norm, L.pinv, F.fft, F.rfft, L.svdvals, L.eigvalsh, L.cond):
        assert call(a).kind is md.HOST
    assert {x.kind for x in L.lstsq(a, a)} == {md.HOST}


@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (6, 6)])
def test_of_a_lower_rank_the_shortest_solution_is_found(shape: tuple[int, int]) -> None:
    a = RNG.normal(size=(shape[0], 2)) @ RNG.normal(size=(2, shape[1]))
    b = RNG.normal(size=(shape[0], 3))
    x, left, rank, s = map(np.asarray, L.lstsq(a, b))
    np.testing.assert_allclose(x, np.linalg.pinv(a, 1e-12) @ b, atol=1e-12)
    np.testing.assert_allclose(left, residuals(a, b, x), rtol=1e-12)
    np.testing.assert_allclose(s, np.linalg.svdvals(a), atol=1e-13)
    assert rank == 2 and L.lstsq(a, b, rcond=0.999).rank.item() == 1


SINGULAR = np.array([[2.0, 1.0, 0.0], [4.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
WRONG = {
    "inv": (lambda: L.inv(SINGULAR), "inv: a is singular: pivot 2 of 3 is 0"),
    "lu_solve": (
        lambda: L.lu_solve((SINGULAR, np.arange(3)), np.ones(3)),
        "lu_solve: a is singular: pivot 3 of 3 is 0",
    ),
    "cho_solve": (
        lambda: L.cho_solve((np.zeros((2, 2)), True), np.ones(2)),
        "a is singular: element 0 of its diagonal is 0",
    ),
    "lstsq": (lambda: L.lstsq(np.eye(2), np.array([1.0, np.nan])), "lstsq: b holds nan at [1, 0]"),
    "pinv": (lambda: L.pinv(np.diag([np.inf, 1.0])), "pinv: a holds inf at [0, 0]"),
    "cond": (lambda: L.cond(np.diag([np.nan, 1.0])), "cond: x holds nan at [0, 0]"),
    "matrix_rank": (lambda: L.matrix_rank(np.diag([np.nan, 1.0])), "matrix_rank: a holds nan at [0, 0]"),
    "svdvals": (lambda: L.svdvals(np.diag([1.0, np.nan])), "svdvals: a holds nan at [1, 1]"),
    "slogdet": (lambda: L.slogdet(np.diag([1.0, np.nan])), "slogdet: a holds nan at [1, 1]"),
    "eigvalsh": (lambda: L.eigvalsh(np.diag([1.0, np.nan])), "eigvalsh: a holds nan at [1, 1]"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    call, text = WRONG[name]
    with pytest.raises(NumericError) as raised:
        call()
    assert text in str(raised.value)


@pytest.mark.parametrize(("left", "right"), [((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 1), (3,))])
def test_least_squares_of_stacks_decompose_once(
    left: tuple[int, ...], right: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = RNG.normal(size=(*left, 6, 4)), RNG.normal(size=(*right, 6, 2))
    a[..., 3] = a[..., 0]
    count: list[int] = []
    svd = np.linalg.svd
    monkeypatch.setattr(np.linalg, "svd", lambda *x, **named: count.append(1) or svd(*x, **named))
    x, rest, rank, s = map(np.asarray, L.lstsq(a, b))
    assert len(count) == bool(left) and (rank == 3).all() and rank.shape == left
    np.testing.assert_allclose(x, np.linalg.pinv(a, 1e-12) @ b, atol=1e-12)
    np.testing.assert_allclose(rest, (np.abs(a @ x - b) ** 2).sum(-2), rtol=1e-10)
    np.testing.assert_allclose(s, np.linalg.svdvals(a), atol=1e-13)
    if not right:
        np.testing.assert_allclose(np.asarray(L.lstsq(a, b[:, 0]).x), x[..., 0], atol=1e-13)


@pytest.mark.parametrize("stack", [(), (2,)])
def test_operands_of_two_dtypes_are_computed_in_the_wider(stack: tuple[int, ...]) -> None:
    a = (RNG.normal(size=(*stack, 6, 6)) + 6 * np.eye(6)).astype("float32")
    b = RNG.normal(size=(6, 2))
    wanted = np.linalg.solve(a.astype("float64"), b)
    for one, other, dtype in (
        (a, b, "float64"),
        (a, b + 0j, "complex128"),
        (a + 0j, b, "complex128"),
    ):
        found = L.lstsq(one, other)
        assert found.x.dtype == dtype and found.s.dtype == np.float32
        for x in (found.x, L.solve(one, other)):
            assert np.abs(np.asarray(x) - wanted).max() < 1e-12
        if not stack:
            x = L.lu_solve(L.lu_factor(one.astype(dtype)), other)
            assert np.abs(np.asarray(x) - wanted).max() < 1e-12


def test_pseudo_inverses_that_have_no_room_warn_nobody() -> None:
    """Numbers of theirs are beyond the largest."""
    assert not np.isfinite(np.asarray(L.pinv(np.diag([1e-310, 1e-311])))).all()
