"""Eager calls of complex matrices in a GPU's memory: by another library's arrays, where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl

import magmadnn as md
from magmadnn.errors import MagmaDNNError
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.linalg import _elsewhere
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.schedule import array_calls, small
from magmadnn.tensor.eager.programs import Programs
from tests.runtime.cuda.devices import on
from tests.runtime.cuda.emulated_arrays import ForeignArray
from tests.runtime.cuda.test_eager_calls import (
    CALLS,
    PAIRED,
    WORD,
    counted,
    kept,
    listed,
    needs_compiler,
    there,
)  # fmt: skip

__all__ = ["kept"]  # a fixture
L = md.linalg
RNG = np.random.default_rng(23)
COMPLEX = {
    name: call for name, call in CALLS.items() if name not in ("cholesky", "rfft", "irfftn")
} | {
    "cholesky": lambda a: L.cholesky(a),
    "eigh with b": lambda a: L.eigh(a, b=a)[0],
    "lu_solve of conjugates": lambda a: L.lu_solve(L.lu_factor(a), a[..., :2], trans=2),
    "singular values": lambda a: L.svd(a)[1],
}


def lu_factor(a: ForeignArray, check_finite: bool) -> Any:
    found, exchanges = sl.lu_factor(a._array, check_finite=check_finite)
    return ForeignArray(found), ForeignArray(exchanges.astype(np.int32))


def lu_solve(pair: Any, b: ForeignArray, trans: int, check_finite: bool) -> ForeignArray:
    factors, exchanges = (x._array for x in pair)
    assert exchanges.dtype == np.int32  # cuSOLVER is given their address
    return ForeignArray(sl.lu_solve((factors, exchanges), b._array, trans, check_finite=False))


def solve_triangular(a: ForeignArray, b: ForeignArray, **options: Any) -> ForeignArray:
    return ForeignArray(sl.solve_triangular(a._array, b._array, **options))


@pytest.fixture(autouse=True)
def other_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """One that has all functions; gives the names of ops that the host computes all the same."""
    solvers = SimpleNamespace(
        lu_factor=lu_factor, lu_solve=lu_solve, solve_triangular=solve_triangular
    )
    monkeypatch.setattr(_elsewhere, "solvers_of", lambda a: solvers)
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    on_host: list[str] = []
    computed = array_calls.computed

    def watched(node: Any, operands: Any, attributes: Any) -> Any:
        forward = type(node.op).forward

        def noted(op: Any, *rest: Any) -> Any:
            on_host.append(op.name)
            return forward(op, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(node.op), "forward", noted)
            return computed(node, operands, attributes)

    monkeypatch.setattr(array_calls, "computed", watched)
    yield on_host


def hermitian(*shape: int) -> np.ndarray:
    """Positive definite ones, of which no two eigenvalues are near."""
    half = RNG.normal(size=shape) + 1j * RNG.normal(size=shape)
    made = half @ np.swapaxes(half, -1, -2).conj()
    return np.asarray(made + np.eye(shape[-1]) * np.arange(4.0, 4 + shape[-1]))


@needs_compiler
@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
@pytest.mark.parametrize("shape", [(5, 5), (2, 5, 5)])
def test_values_are_those_of_the_host_and_nothing_goes_through_it(
    shape: tuple[int, ...], dtype: str, other_library: list[str], kept: Programs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    a = hermitian(*shape).astype(dtype)
    eps = np.finfo(dtype).eps
    with on("emulated"):
        for name, call in COMPLEX.items():
            wanted, operand = call(md.asarray(a)), there(a)
            call(operand)  # constants of programs come to the device
            with monkeypatch.context() as patch:
                copies = counted(patch)
                found = call(operand)
            exchanges = a.size // a.shape[-1] * 8
            most = {"solve vector": a.shape[-1] * 8, "lu_solve": exchanges}
            most["lu_solve of conjugates"] = exchanges
            assert max(copies, default=0) <= most.get(name, WORD), name
            assert not other_library, name
            for one, other in zip(listed(found), listed(wanted), strict=True):
                assert one.kind is md.DEVICE, name
                assert (one.shape, one.dtype) == (other.shape, other.dtype), name
                size = max(np.abs(other.read()).max(), 1)
                assert np.abs(one.read() - other.read()).max() <= 3000 * eps * size, name
        (u, s, v), (q, r), (w, c) = (
            [x.read() for x in PAIRED[name](there(a))] for name in ("svd", "qr", "eigh")
        )
        p, lower, upper = (x.read() for x in L.lu(there(a)))
    assert not other_library and len(kept) >= len(COMPLEX)
    for product, value in (
        (u * s[..., None, :] @ v, a), (q @ r, a), (c * w[..., None, :], a @ c), (p @ lower @ upper, a),
    ):  # fmt: skip
        np.testing.assert_allclose(product, value, atol=1000 * eps * np.abs(a).max())


@needs_compiler
def test_errors_have_the_texts_of_the_host() -> None:
    holed, singular = hermitian(3, 4, 4), hermitian(3, 4, 4)
    holed[1, 2, 0] = np.nan
    singular[2, :, 1] = 0
    for call, values in (
        *((f, holed) for f in (
            L.inv, L.det, L.slogdet, L.svd, L.svdvals, L.eigh, L.qr, L.pinv, L.cond, L.cholesky, L.lu,
            L.lu_factor, L.expm, lambda a: L.solve_triangular(a, a, lower=True),
            lambda a: L.solve(np.eye(4), a), lambda a: L.lstsq(a, a), lambda a: L.cho_solve((a, True), a),
            lambda a: L.lu_solve(L.lu_factor(np.eye(4)), a[1]),
        )),
        (L.inv, singular), (lambda a: L.solve(a, a), singular), (L.cholesky, -hermitian(4, 4)),
        (lambda a: L.lu_solve(L.lu_factor(a), a), singular),
        (lambda a: L.solve_triangular(a, a, lower=True), hermitian(4, 4) * (1 - np.eye(4))),
        (L.inv, hermitian(4, 4)[:3]), (L.eigvalsh, hermitian(4, 4)[:3]),
    ):  # fmt: skip
        with on("emulated"):
            with pytest.raises(MagmaDNNError) as on_host:
                call(md.asarray(values))
            for _ in range(2):
                with pytest.raises(type(on_host.value)) as on_device:
                    call(there(values))
                assert str(on_device.value) == str(on_host.value)


@needs_compiler
def test_a_library_that_is_not_known_leaves_it_to_the_host(
    monkeypatch: pytest.MonkeyPatch, other_library: list[str]
) -> None:
    monkeypatch.undo()
    a = hermitian(4, 4)
    with on("emulated"):
        for call in (L.inv, lambda a: L.solve_triangular(a, a, lower=False), L.lu_factor):
            for one, other in zip(listed(call(there(a))), listed(call(a)), strict=True):
                assert one.kind is md.DEVICE
                np.testing.assert_allclose(one.read(), np.asarray(other), atol=1e-13)


@needs_compiler
def test_rows_are_taken_and_added_in_programs() -> None:
    """The other library may lack a sum at indices; the host has it then."""
    values = RNG.normal(size=(5, 3)) + 1j * RNG.normal(size=(5, 3))
    x = placeholder("x", Spec(values.shape, values.dtype))
    rows = np.array([0, 4, 4, 2])
    total = md.ops.sum(md.ops.abs(md.ops.take(x, rows, axis=0)))
    outputs = [md.ops.scatter_add(x, np.array([1, 1, 0, 3, 1]), count=4), *gradient(total, [x])]
    expected = Executable(outputs, executor="reference").run({x: values})
    with on("emulated"):
        found = Executable(outputs, executor="native", device="cuda").run({x: values})
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-14)
    np.testing.assert_allclose(found[0][1], values[[0, 1, 4]].sum(0))
