"""Sparse matrices, conjugate gradients, GMRES, chaotic relaxation; generalised and partial eigenvalues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import magmadnn as md
from magmadnn import ops
from magmadnn.errors import ArgumentError, DataError, DTypeError, NumericError, ShapeError
from magmadnn.memory.dtypes import as_dtype
from magmadnn.runtime import Executable

la = md.linalg


def sparse(m: int, n: int, dtype: str = "float64", seed: int = 0) -> Any:
    rng = np.random.default_rng((seed, m, n))
    return scipy.sparse.random_array(
        (m, n), density=0.15, format="coo", rng=rng, dtype=np.float64
    ).astype(dtype)


def laplace(n: int) -> Any:
    """The five-point difference operator on n x n places: positive definite."""
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    one = scipy.sparse.eye_array(n)
    return (scipy.sparse.kron(line, one) + scipy.sparse.kron(one, line)).tocsr()


# --- sparse products ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(13, 7), (7, 13), (1, 5), (5, 1)])
def test_products(shape: tuple[int, int], dtype: str) -> None:
    s = sparse(*shape, dtype)
    a = la.SparseMatrix(s)
    dense = s.toarray().astype(np.float64)
    rng = np.random.default_rng(1)
    for x in (rng.normal(size=shape[1]), rng.normal(size=(shape[1], 3))):
        x = x.astype(dtype)
        tolerance = 20 * np.finfo(dtype).eps * max(1, np.abs(dense @ x).max())
        assert np.abs(np.asarray(a @ x) - dense @ x).max() <= tolerance
        variable = md.variable("x", x)
        for executor in ("native", "reference"):
            (found,) = Executable([(a @ variable).node], executor=executor).run({})
            assert found.dtype == np.dtype(dtype)
            assert np.abs(found - dense @ x).max() <= tolerance
    assert a.T.shape == shape[::-1]
    assert np.array_equal(np.asarray(a.T @ np.eye(shape[0], dtype=dtype)), s.toarray().T)


def test_products_from_the_left() -> None:
    s, rng = sparse(6, 5), np.random.default_rng(3)
    a, dense = la.SparseMatrix(s), s.toarray()
    for x in (rng.normal(size=6), rng.normal(size=(3, 6)), rng.normal(size=(0, 6))):
        for given in (x, md.asarray(x), md.variable("x", x)):
            found = given @ a
            assert isinstance(found, md.Operation if isinstance(given, md.Variable) else md.Tensor)
            np.testing.assert_allclose(found.numpy(), x @ dense, rtol=0, atol=1e-13)
    x, w = md.variable("x", rng.normal(size=(3, 6))), rng.normal(size=(3, 5))
    np.testing.assert_allclose(md.grad(md.ops.sum((x @ a) * w), x).numpy(), w @ dense.T, atol=1e-13)
    with pytest.raises(ShapeError, match=r"x @ 6 x 5 needs x \[6\] or \[k, 6\], got shape \(5,\)"):
        np.ones(5) @ a


def test_gradients_of_both_factors() -> None:
    s, rng = sparse(6, 5), np.random.default_rng(2)
    x, w = rng.normal(size=(5, 2)), rng.normal(size=(6, 2))
    plain = la.SparseMatrix(s)
    values = md.variable("values", plain.values)
    variable = md.variable("x", x)
    a = la.SparseMatrix(s, values)
    loss = ops.sum((a @ variable) * w)
    by_x, by_values = md.grad(loss, [variable, values])
    assert np.allclose(np.asarray(by_x), s.toarray().T @ w, rtol=1e-12)
    assert np.allclose(np.asarray(by_values), (w @ x.T)[plain.rows, plain.columns], rtol=1e-12)
    turned = a.T @ md.variable("w", w)
    assert np.allclose(np.asarray(turned), s.toarray().T @ w)


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_complex_products_and_their_gradients(executor: Any) -> None:
    """The gradient of sum |A x|^2 is 2 A^H A x."""
    rng = np.random.default_rng(3)
    dense = sparse(6, 5).toarray() * np.exp(1j * rng.normal(size=(6, 5)))
    values = rng.normal(size=(5, 2)) + 1j * rng.normal(size=(5, 2))
    x = md.variable("x", values)
    y = la.SparseMatrix(dense) @ x
    (slope,) = md.grad(ops.sum(ops.real(y * ops.conj(y))), [x])
    found, by_x = Executable([y.node, slope.node], executor=executor).run({})
    assert np.allclose(found, dense @ values, rtol=1e-12)
    assert np.allclose(by_x, 2 * dense.conj().T @ dense @ values, rtol=1e-12)


def test_integers_and_halves_are_added_in_wider_numbers() -> None:
    many = scipy.sparse.coo_array((np.full(3, 100, np.int8), ([0] * 3, [0] * 3)), shape=(1, 1))
    assert np.asarray(la.SparseMatrix(many) @ np.ones(1)).tolist() == [300]
    for dtype in ("float16", "bfloat16"):
        half = np.eye(3).astype(as_dtype(dtype))
        for a, x in ((half, np.arange(3.0)), (np.eye(3, dtype="f4"), half), (half, half)):
            found = la.SparseMatrix(a) @ x
            assert found.dtype == np.result_type(np.float32, x.dtype)
            np.testing.assert_array_equal(np.asarray(found), x.astype(found.dtype))


def test_elements_of_one_place_are_added() -> None:
    s = scipy.sparse.coo_array(([1.0, 2.0, 4.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    a = la.SparseMatrix(s)
    assert (a.rows.tolist(), a.columns.tolist(), a.values.tolist()) == ([0, 1], [1, 0], [3, 4])
    assert repr(a) == "<SparseMatrix 2 x 2 with 2 elements>"


def test_a_matrix_that_is_given_stays_as_it_is() -> None:
    """Its elements of one place are added up, and rows sorted, in a copy; later changes are its own."""
    parts = np.array([1.0, 2, 4, 8]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])
    given = scipy.sparse.csr_array(tuple(part.copy() for part in parts), shape=(2, 3))
    a = la.SparseMatrix(given)
    for found, before in zip((given.data, given.indices, given.indptr), parts, strict=True):
        assert np.array_equal(found, before)
    given.data[:] = 0
    assert np.asarray(a @ np.eye(3)).tolist() == [[2, 0, 5], [0, 8, 0]]


def test_mistakes_of_sparse_matrices() -> None:
    a = la.SparseMatrix(sparse(4, 3))
    with pytest.raises(ShapeError, match=r"4 x 3 @ x needs x \[3\] or \[3, k\], got shape \(4,\)"):
        a @ np.ones(4)
    with pytest.raises(ShapeError, match="elements, and values has shape"):
        la.SparseMatrix(sparse(4, 3), np.ones(100))
    with pytest.raises(ShapeError, match="expected a matrix"):
        la.SparseMatrix(np.ones(3))
    with pytest.raises(DTypeError, match="expected numbers"):
        la.SparseMatrix(np.array([["a"]]))


# --- iterative solutions --------------------------------------------------------------------------


@pytest.mark.parametrize("way", [la.cg, la.gmres])
def test_solutions_of_a_grid(way: Any) -> None:
    a = laplace(11)
    b = np.random.default_rng(3).normal(size=121)
    exact = np.linalg.solve(a.toarray(), b)
    operator = scipy.sparse.linalg.aslinearoperator(a)
    for given in (a, la.SparseMatrix(a), a.toarray(), md.asarray(a.toarray()), operator):
        found = way(given, b, rtol=1e-9)
        assert np.abs(np.asarray(found.x) - exact).max() <= 1e-6
        assert found.residual <= 1.01e-9 and 0 < found.iterations <= 400
    near = way(a, b, rtol=1e-9, x0=exact)
    assert near.iterations == 0 and np.array_equal(np.asarray(near.x), exact)
    better = way(a, b, rtol=1e-9, preconditioner=np.linalg.inv(a.toarray()))
    assert better.iterations <= 2


def test_gmres_takes_what_is_not_symmetric_and_complex() -> None:
    rng = np.random.default_rng(4)
    a = rng.normal(size=(30, 30)) + 1j * rng.normal(size=(30, 30)) + 12 * np.eye(30)
    b = rng.normal(size=30)
    found = la.gmres(a, b, rtol=1e-10, restart=5, maxiter=2000)
    assert np.abs(a @ np.asarray(found.x) - b).max() <= 1e-8


def test_steps_that_do_not_suffice_are_an_error() -> None:
    a, b = laplace(20), np.random.default_rng(5).normal(size=400)
    with pytest.raises(NumericError, match=r"^cg: after 3 steps \|A x - b\| is .* is wanted: give"):
        la.cg(a, b, maxiter=3)
    with pytest.raises(NumericError, match=r"^gmres: after"):
        la.gmres(a, b, maxiter=3)
    indefinite = np.diag([1.0, -1.0, 2.0])
    with pytest.raises(NumericError, match="cg: after"):
        la.cg(indefinite, np.array([1.0, 1.0, 0.0]), maxiter=50)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: la.cg(np.ones((2, 3)), np.ones(2)), ShapeError, "a must be a square matrix"),
        (lambda: la.cg(np.eye(3), np.ones(2)), ShapeError, r"b must be \[3\], got shape \(2,\)"),
        (lambda: la.cg(np.eye(3), np.ones((3, 1))), ShapeError, r"b must be \[3\]"),
        (lambda: la.cg(lambda v: v, np.ones(2)), ArgumentError, "a must be a matrix or a Linear"),
        (lambda: la.cg(np.eye(2), np.ones(2), rtol=-1), ArgumentError, "rtol must be a number"),
        (lambda: la.cg(np.eye(2), np.ones(2), maxiter=0), ArgumentError, "maxiter must be a pos"),
        (lambda: la.gmres(np.eye(2), np.ones(2), restart=0), ArgumentError, "restart must be a"),
        (lambda: la.cg(np.eye(2), [1.0, np.nan]), NumericError, "b holds nan"),
        (lambda: la.cg(np.eye(2), md.variable("b", np.ones(2))), ArgumentError, "not Operations"),
        (
            lambda: la.cg(np.eye(2), np.ones(2), preconditioner=np.eye(3)),
            ShapeError,
            "must be 2 x 2",
        ),
        (lambda: la.cg(np.eye(2), np.ones(2), x0=np.ones(3)), ShapeError, r"x0 must be \[2\]"),
    ],
)
def test_mistakes_of_iterations(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


# --- chaotic relaxation ---------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n", [1, 2, 17, 200])
def test_chaotic_relaxation(n: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(n)
    a = rng.normal(size=(n, n))
    a += np.diag(np.sign(np.diagonal(a)) * 1.3 * np.abs(a).sum(1))
    b = rng.normal(size=n)
    monkeypatch.setattr("magmadnn.linalg.iterative.chaotic.thread_count", lambda: threads)
    found = la.jacobi(a, b)
    assert np.abs(a @ np.asarray(found.x) - b).max() <= 1e-10 * np.abs(b).max()
    assert found.iterations >= 1 and found.residual <= 1e-9


def test_mistakes_of_chaotic_relaxation() -> None:
    a = np.array([[4.0, 1, 1], [1, 2, 1], [0, 1, 3]])
    with pytest.raises(NumericError, match="row 1 of a has 2 on its diagonal and 2 beside it"):
        la.jacobi(a, np.ones(3))
    slow = np.eye(50) * 50 - 0.999
    with pytest.raises(NumericError, match=r"^jacobi: after \d+ steps"):
        la.jacobi(slow, np.ones(50), maxiter=5)
    with pytest.raises(DTypeError, match="takes real numbers"):
        la.jacobi(a * 1j, np.ones(3))
    with pytest.raises(ShapeError, match=r"b must be \[3\]"):
        la.jacobi(a, np.ones(2))
    with pytest.raises(ArgumentError, match="rtol=0 asks that nothing is left"):
        la.jacobi(a + np.eye(3), np.ones(3), rtol=0)


# --- generalised and partial eigenvalues ----------------------------------------------------------


def pencil(n: int, is_complex: bool, *leading: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng((n, is_complex))
    made = []
    for _ in range(2):
        a = rng.normal(size=(*leading, n, n))
        if is_complex:
            a = a + 1j * rng.normal(size=a.shape)
        made.append(a)
    a = made[0] + np.swapaxes(made[0], -1, -2).conj()
    return a, made[1] @ np.swapaxes(made[1], -1, -2).conj() + n * np.eye(n)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("n", [1, 6])
def test_generalised_eigenvalues(n: int, is_complex: bool) -> None:
    a, b = pencil(n, is_complex)
    expected = scipy.linalg.eigh(a, b, eigvals_only=True)
    for lower in (True, False):
        given = np.tril(a) if lower else np.triu(a)
        w, v = (np.asarray(x) for x in la.eigh(given, "L" if lower else "U", b=np.tril(b)))
        assert np.abs(w - expected).max() <= 1e-12 * max(1, np.abs(expected).max())
        assert np.abs(a @ v - b @ v * w).max() <= 1e-11
        assert np.abs(v.conj().T @ b @ v - np.eye(n)).max() <= 1e-12
    stacked_a, stacked_b = pencil(4, is_complex, 3)
    found = np.asarray(la.eigh(stacked_a, b=stacked_b).eigenvalues)
    for k in range(3):
        one = scipy.linalg.eigh(stacked_a[k], stacked_b[k], eigvals_only=True)
        assert np.allclose(found[k], one, rtol=1e-11)


def test_gradients_of_generalised_eigenvalues() -> None:
    a, b = pencil(5, False)
    c = np.arange(1.0, 6.0)
    variables = [md.variable("a", a), md.variable("b", b)]
    loss = ops.sum(la.eigh(variables[0], b=variables[1]).eigenvalues * c)
    found = [np.asarray(g) for g in md.grad(loss, variables)]
    rng = np.random.default_rng(0)
    for number in range(2):
        d = rng.normal(size=(5, 5))
        d = d + d.T
        values = []
        for step in (1e-6, -1e-6):
            moved = [a, b]
            moved[number] = moved[number] + step * d
            values.append(scipy.linalg.eigh(*moved, eigvals_only=True) @ c)
        slope = (values[0] - values[1]) / 2e-6
        assert abs(slope - (found[number] * np.tril(d)).sum()) <= 1e-6 * max(1, abs(slope))


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_programs_name_b_of_eigh(executor: Any) -> None:
    """And not the factor, which users do not see."""
    a, b = pencil(4, False, 2)
    b[1, 2, 2] = -3.0
    variables = [md.variable("a", a), md.variable("b", b)]
    run = Executable([la.eigh(variables[0], b=variables[1]).eigenvalues.node], executor=executor)
    with pytest.raises(
        NumericError, match=r"eigh: b\[1\] is not positive definite: its leading minor of order 3"
    ):
        run.run({})
    with pytest.raises(ShapeError, match="eigh: b must be square"):
        la.eigh(variables[0], b=md.variable("c", np.ones((2, 4, 3))))


def test_some_eigenvalues() -> None:
    a, b = pencil(9, False)
    values, columns = np.linalg.eigh(a)
    for first, last in ((0, 0), (2, 5), (8, 8), (0, 8)):
        found = la.eigh(a, subset_by_index=(first, last))
        assert found.eigenvectors.shape == (9, last - first + 1)
        assert np.allclose(np.asarray(found.eigenvalues), values[first : last + 1])
        expected = np.abs(columns[:, first : last + 1])
        assert np.allclose(np.abs(np.asarray(found.eigenvectors)), expected, atol=1e-10)
        lazy = la.eigh(md.variable("a", a), subset_by_index=(first, last))
        assert np.allclose(np.asarray(lazy.eigenvalues), values[first : last + 1])
    both = la.eigh(a, b=b, subset_by_index=(1, 3)).eigenvalues
    assert np.allclose(np.asarray(both), scipy.linalg.eigh(a, b, eigvals_only=True)[1:4])
    for wrong in ((3, 2), (0, 9), (-1, 2), (0,), (0.5, 1)):
        with pytest.raises(ArgumentError, match="eigh: subset_by_index must be two"):
            la.eigh(a, subset_by_index=wrong)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_relaxation_is_a_method_of_solve(dtype: str) -> None:
    a = (np.random.default_rng(2).uniform(-1, 1, (41, 41)) + 60 * np.eye(41)).astype(dtype)
    b = np.arange(1, 42, dtype=dtype)
    exact = np.linalg.solve(a.astype(float), b.astype(float))
    x = la.solve(a, b, method="jacobi")
    assert x.dtype == np.dtype(dtype)
    # max |x - exact| <= |A^-1| rtol |b|, and |A^-1| <= 1 / (60 - 41) as the diagonal is dominant
    rtol = 1e-5 if dtype == "float32" else 1e-10
    assert np.abs(np.asarray(x) - exact).max() <= rtol * 41 / (60 - 41)
    assert la.solve(a, b, method="jacobi", info=True).iterations > 1
    with pytest.raises(NumericError, match="row 0 of a has"):
        la.solve(np.ones((3, 3)), np.ones(3), method="jacobi")
    with pytest.raises(ArgumentError, match='go with method="refine"'):
        la.solve(a, b, method="jacobi", assume_a="pos")


def test_masked_elements_are_refused() -> None:
    """On either side of a product, and of what a matrix is made of."""
    eye = la.SparseMatrix(scipy.sparse.eye_array(3, format="csr"))
    masked = np.ma.masked_less([1.0, 2.0, 3.0], 2)
    with pytest.raises(DataError, match="elements are masked"):
        masked @ eye
    with pytest.raises(DataError, match="elements are masked"):
        eye @ masked
    with pytest.raises(DataError, match="elements are masked"):
        la.SparseMatrix(np.ma.masked_less(np.eye(3), 1))
