"""Equations whose matrix is a triangle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from magmadnn.errors import NumericError
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
from magmadnn.graph.signature import by_signature
from magmadnn.graph.transforms.stacking import elementwise
from magmadnn.linalg._at_once import triangle_at_once
from magmadnn.linalg._elsewhere import lies_elsewhere, triangle_solved
from magmadnn.linalg._matrices import as_stacks, computed, matrix_name, triangle, truth_values
from magmadnn.ops import matmul, swapaxes


def _check_diagonal(a: Array) -> None:
    """Refuse a zero on the diagonal of a matrix, or of one of a stack."""
    zeros = np.argwhere(np.diagonal(a, axis1=-2, axis2=-1) == 0)
    if len(zeros):
        *index, row = zeros[0]
        where = matrix_name("a", tuple(index))
        raise NumericError(
            f"solve_triangular: {where} is singular: element {row} of its diagonal is 0; "
            "a triangle without zeros there has one solution"
        )


def _numpy(a: Array, b: Array, lower: bool, transpose: bool) -> Array:
    """Substitution, row by row: NumPy has no function for it."""
    a, b = computed(a, b)
    if lies_elsewhere(a) and a.size and b.size:
        _check_diagonal(a)
        return triangle_solved(a, b, lower, transpose)
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = np.array(np.broadcast_to(b, (*leading, *b.shape[-2:])))
    if not x.size:
        return x
    _check_diagonal(a)
    if transpose:
        a, lower = np.swapaxes(a, -1, -2), not lower
    count = a.shape[-1]
    for row in range(count) if lower else reversed(range(count)):
        known = slice(0, row) if lower else slice(row + 1, count)
        taken = np.matmul(a[..., row : row + 1, known], x[..., known, :])[..., 0, :]
        x[..., row, :] = (x[..., row, :] - taken) / a[..., row, row, None]
    return x


def _vjp(g: Any, x: Any, a: Any, b: Any, lower: bool, transpose: bool) -> tuple[Any, Any]:
    """With op(A) X = B: dB = op(A)^-T dX, and d op(A) = -dB X^T, of which A has a triangle."""
    db = solve_triangular(a, g, lower=lower, transpose=not transpose)
    left, right = (x, db) if transpose else (db, x)
    return triangle(-matmul(left, swapaxes(right, -1, -2)), lower), db


def _reference(a: Array, b: Array, lower: bool, transpose: bool) -> Array:
    kept = np.tril(a) if lower else np.triu(a)
    inverse = np.linalg.inv(np.swapaxes(kept, -1, -2) if transpose else kept)
    return np.asarray(np.matmul(inverse, b))


def _samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((_matrices(draw, 5), draw(5, 3)), {"lower": True})
    yield Sample((_matrices(draw, 5), draw(5, 3)), {"lower": False})
    yield Sample((_matrices(draw, 3), draw(2, 3, 7)), {"lower": True, "transpose": True})
    yield Sample((_matrices(draw, 2, 1, 3), draw(5, 3, 1)), {"lower": False, "transpose": True})


def _matrices(draw: Draw, *shape: int) -> Array:
    """Matrices without zeros on their diagonals, which are larger than what is beside them."""
    *leading, n = shape
    return np.asarray(draw(*leading, n, n, low=-0.6, high=0.6) + 2.5 * np.eye(n))


solve_triangular: Op = Op(
    name="solve_triangular",
    args=("a", "b"),
    formula="x with a x = b, or a.T x = b, of the lower or the upper triangle of a",
    kind=OpKind.LIBRARY,
    library=LibraryCall("trsm", settings=("lower", "transpose")),
    rewrites=(as_stacks,),
    stacked=elementwise,
    shapes=by_signature(lambda *ndims, lower, transpose: "... n n, ... n k -> ... n k"),
    dtypes=promote_floating,
    numpy=_numpy,
    at_once=triangle_at_once,
    on_gpu=True,
    vjp=_vjp,
    reference=_reference,
    samples=_samples,
    attributes={"lower": REQUIRED, "transpose": False},
    canonical=truth_values,
    notes=(
        "a [..., n, n], b [..., n, k] -> [..., n, k]; leading axes broadcast. lower: which triangle of a is "
        "read; the other may hold anything and has gradient 0. A vector b is a matrix of one column: "
        "b[:, None]. "
        "Raises NumericError where an element of a's diagonal is 0; of arrays also for NaN and infinity."
    ),
)
takes_complex(solve_triangular)
