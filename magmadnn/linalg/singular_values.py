"""Singular values and vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.errors import GraphError, NumericError
from magmadnn.graph.computed_by import LibraryCall
from magmadnn.graph.op import (
    REQUIRED,
    Array,
    Draw,
    Op,
    OpKind,
    Sample,
    promote_floating,
    takes_complex,
)
from magmadnn.graph.signature import Attributes, OpWords, by_signature
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import last_axes
from magmadnn.memory.dtypes import is_complex, limits_of
from magmadnn.ops import expand_dims, imag, less_equal, matmul, real, reciprocal, reshape, where
from magmadnn.ops import max as max_
from magmadnn.tensor import Tensor
from magmadnn.tensor.known_values import known
from magmadnn.tensor.on_gpu import on_gpu

from ._at_once import is_finite, singular_at_once
from ._elsewhere import failures_of
from ._matrices import (
    adjoint,
    as_stacks,
    by_ascent,
    computed,
    diagonal,
    refuse_unless_finite,
    smaller,
    truth_values,
    with_diagonal,
)
from ._operands import SVDResult, operand, truth


def _sizes(shape: Any, full: bool) -> tuple[Any, Any, Any, Any]:
    """Rows of U, columns of U, singular values, rows of V^T."""
    m, n = shape[-2:]
    k = smaller(m, n)
    return m, m if full else k, k, n if full else k


def _shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Any:
    """[..., 1, so many]: singular values, and behind them U and V^T."""
    *leading, m, n = by_signature("... m n -> ... m n")(words, specs, attributes)
    _, left, k, right = _sizes((m, n), attributes["full"])
    return (*leading, 1, k + m * left + right * n if attributes["vectors"] else k)


def singular_now(
    a: Array, vectors: bool, full: bool, name: str = "svd", argument: str = "a"
) -> tuple[Array, ...]:
    """U, S and V^H of matrices that are known, or S alone; errors name a function and its argument."""
    if not is_finite(a):
        refuse_unless_finite(name, argument, a)
    if (found := singular_at_once(a, vectors, full)) is not None:
        return found
    try:
        with np.errstate(all="ignore"), failures_of(a):
            if not vectors:
                return (np.linalg.svd(a, compute_uv=False),)
            return tuple(np.linalg.svd(a, full_matrices=full))
    except np.linalg.LinAlgError:
        raise NumericError(
            f"{name}: the singular values of {argument} did not converge; scale it, or look for numbers near "
            "the largest"
        ) from None


def _numpy(a: Array, vectors: bool, full: bool) -> Array:
    (a,) = computed(a)
    found = singular_now(a, vectors, full)
    if not vectors:
        return found[0][..., None, :].astype(a.dtype, copy=False)
    u, s, v = found
    flat = [x.reshape(*a.shape[:-2], 1, int(np.prod(x.shape[a.ndim - 2 :]))) for x in (s, u, v)]
    return np.concatenate(flat, -1)


def parts_of(packed: Any, shape: Any, full: bool = False) -> tuple[Any, Any, Any]:
    """U, S and V^H."""
    m, left, k, right = _sizes(shape, full)
    leading, n = packed.shape[:-2], shape[-1]
    u = reshape(packed[..., 0, k : k + m * left], (*leading, m, left))
    v = reshape(packed[..., 0, k + m * left :], (*leading, right, n))
    return u, real(packed[..., 0, :k]), v


def _rule(g: Any, y: Any, a: Any, vectors: bool, full: bool) -> Any:
    """The gradient of U, S and V, with F_ij = 1 / (s_j^2 - s_i^2), and 0 for equal singular values.

    As in Townsend, Differentiating the singular value decomposition, 2016. Vectors of equal singular values
    are any basis of a space: what depends on that space, and on the values alike, gets its gradient; anything
    else has none there, and gets what a 0 makes of it. The same holds for 1 / s where s is 0.

    Raises:
        GraphError: for vectors beside those of singular values, which are any that complete a basis.
    """
    if not vectors:
        u, _, v = parts_of(singular(a, vectors=True, full=False), a.shape)
        return matmul(u * expand_dims(real(g[..., 0, :]), -2), v)
    if full and a.shape[-1] != a.shape[-2]:
        raise GraphError(
            "grad: svd with full_matrices=True has no gradient for a matrix that is not square; "
            "give full_matrices=False"
        )
    (u, s, v), (gu, gs, gv) = parts_of(y, a.shape), parts_of(g, a.shape)
    gv, turned = adjoint(gv), adjoint(v)
    left, right = matmul(adjoint(u), gu), matmul(v, gv)
    gaps = _inverse_gaps(s)
    rows, columns = expand_dims(s, -2), expand_dims(s, -1)
    inner = (
        gaps * (left - adjoint(left)) * rows
        + columns * gaps * (right - adjoint(right))
        + with_diagonal(gs)
    )
    if is_complex(a.dtype):  # phases that U and V share
        inner = inner + with_diagonal(imag(diagonal(left)) * _inverse(s) * 1j)
    found = matmul(matmul(u, inner), v)
    m, n = a.shape[-2:]
    inverse = expand_dims(_inverse(s), -2)
    if m != smaller(m, n):
        found = found + matmul((gu - matmul(u, left)) * inverse, v)
    if n != smaller(m, n):
        found = found + matmul(u * inverse, adjoint(gv - matmul(turned, right)))
    return found


def _inverse(s: Any) -> Any:
    """1 / s, 0 where s is 0 to rounding."""
    largest = max_(s, axis=-1, keepdims=True)
    zero = less_equal(s, largest * (4 * limits_of(s.dtype).eps * s.shape[-1]))
    return where(zero, 0, reciprocal(where(zero, 1, s)))


def _inverse_gaps(s: Any) -> Any:
    """1 / (s_j^2 - s_i^2), 0 where the two are equal to rounding."""
    rows, columns = expand_dims(s, -2), expand_dims(s, -1)
    largest = expand_dims(expand_dims(max_(s, axis=-1), -1), -1)
    gaps, sums = rows - columns, rows + columns
    least = largest * (4 * limits_of(s.dtype).eps * s.shape[-1])
    equal = less_equal(gaps * gaps, least * least)
    return where(equal, 0, reciprocal(where(equal, 1, gaps * sums)))


def _reference(a: Array, vectors: bool, full: bool) -> Array:
    """Roots of the eigenvalues of a^T a, or a a^T."""
    k = min(a.shape[-2:])
    turned = np.swapaxes(a, -1, -2)
    square = turned @ a if a.shape[-1] == k else a @ turned
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(square), 0))[..., ::-1]
    assert not vectors
    return values[..., None, :]


def _samples(draw: Draw) -> Iterable[Sample]:
    for shape in ((5, 3), (3, 4), (2, 3, 3), (1, 1)):
        apart = np.eye(*shape[-2:]) * (2.0 + 2.0 * np.arange(shape[-2]))[:, None]
        matrices = draw(*shape, low=-0.8, high=0.8) + apart
        yield Sample((matrices,), {"vectors": False, "full": False})


singular: Op = Op(
    name="_svd",
    args=("a",),
    formula="singular values of a, and behind them U and V^T, in one row",
    kind=OpKind.LIBRARY,
    library=LibraryCall("gesdd", settings=("vectors", "full")),
    rewrites=(as_stacks,),
    stacked=last_axes,
    shapes=_shapes,
    dtypes=promote_floating,
    numpy=_numpy,
    vjp=by_ascent(_rule),
    reference=_reference,
    samples=_samples,
    attributes={"vectors": REQUIRED, "full": REQUIRED},
    canonical=truth_values,
)
takes_complex(singular)


@checked_call
@on_gpu("a")
def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """The singular value decomposition A = U diag(S) Vh of A [..., m, n], by LAPACK's gesdd.

    On a GPU by a kernel of our own up to 64 rows and columns, which turns pairs of columns (Hestenes, 1958);
    what is below eps of the largest value is exact to that only. Others by cuSOLVER: by the polar
    decomposition from 192 columns on (gesvdp), else by Jacobi's method; values alone by products and
    eigenvalues from 65 columns on. The kernel gives a matrix the same bits in any stack of several; one
    alone (17 rows or more and 5 to 32 columns, or the other way round) has more threads, which add up in
    another order: its last digits are others.

    With k the smaller of m and n: U [..., m, m] and Vh [..., n, n], or [..., m, k] and [..., k, n] without
    `full_matrices`, which gradients need where m and n differ. Signs of vectors, or phases of
    complex ones, are the library's. Vectors of equal singular values are any basis of their space; what
    depends on that space and on these values alike has the right gradient, and of the rest no part is
    infinite: in place of 1 / 0 there is a 0.

    Args:
        a: the matrices.
        full_matrices: whether U and Vh are square.
        compute_uv: whether vectors are wanted.

    Returns:
        `U`, `S` [..., k], descending, and `Vh`; S alone without compute_uv.

    Raises:
        NumericError: if a matrix holds NaN or infinity, or its singular values do not converge.
    """
    full = truth("svd", "full_matrices", full_matrices)
    if not truth("svd", "compute_uv", compute_uv):
        return values_of("svd", "a", operand("svd", "a", a, 2))
    if (at_once := known(a)) is not None and a.ndim > 1:
        return SVDResult(*map(at_once.given, singular_now(at_once.arrays[0], True, full)))
    a = operand("svd", "a", a, 2)
    return SVDResult(*parts_of(singular(a, vectors=True, full=full), a.shape, full))


@checked_call
@on_gpu("a")
def svdvals(a: Any) -> Any:
    """The singular values of A [..., m, n], descending: [..., min(m, n)]; see `svd`.

    Raises:
        NumericError: if a matrix holds NaN or infinity, or they do not converge.
    """
    if (at_once := known(a)) is not None and a.ndim > 1:
        return at_once.given(singular_now(at_once.arrays[0], False, False, "svdvals")[0])
    return values_of("svdvals", "a", operand("svdvals", "a", a, 2))


def values_of(name: str, argument: str, a: Any) -> Any:
    """The singular values of a function's operand, whose errors name both."""
    if (at_once := known(a)) is not None:
        return at_once.given(singular_now(at_once.arrays[0], False, False, name, argument)[0])
    if isinstance(a, Tensor) and not is_finite(values := a.read()):
        refuse_unless_finite(name, argument, values)
    return real(singular(a, vectors=False, full=False)[..., 0, :])
