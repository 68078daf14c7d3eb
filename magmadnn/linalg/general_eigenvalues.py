"""Eigenvalues of matrices that are not symmetric: complex numbers, of known values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, NumericError
from magmadnn.graph.op import Array
from magmadnn.tensor import Tensor, asarray
from magmadnn.tensor.on_gpu import on_gpu

from ._matrices import computed, refuse_unless_finite
from ._operands import operand, refuse_unless_square


class EigResult(NamedTuple):
    """Eigenvalues [..., n] and eigenvectors [..., n, n], each a column; real where all of them are."""

    eigenvalues: Any
    eigenvectors: Any


def _values(name: str, a: Any) -> Array:
    a = operand(name, "a", a, 2)
    if not isinstance(a, Tensor):
        raise ArgumentError(
            f"{name}: takes arrays and Tensors, not Operations; eigh is for symmetric matrices in graphs"
        )
    refuse_unless_square(name, "a", a)
    (values,) = computed(a.read())
    refuse_unless_finite(name, "a", values)
    return values


@checked_call
@on_gpu("a")
def eig(a: Any) -> EigResult:
    """Eigenvalues and eigenvectors of A [..., n, n], by LAPACK's geev; of half precision in float32.

    Those of a Tensor in a GPU's memory are found by the host; the results lie there.

    Raises:
        NumericError: if a matrix holds NaN or infinity, or they do not converge.
        ShapeError: if it is not square.
        ArgumentError: for an Operation: there is no gradient.
    """
    try:
        return EigResult(*map(asarray, np.linalg.eig(_values("eig", a))))
    except np.linalg.LinAlgError as error:
        raise NumericError(f"eig: {error}; scale the matrices") from None


@checked_call
@on_gpu("a")
def eigvals(a: Any) -> Any:
    """The eigenvalues of A [..., n, n]; see `eig`.

    Raises:
        NumericError: if a matrix holds NaN or infinity, or they do not converge.
        ShapeError: if it is not square.
        ArgumentError: for an Operation: there is no gradient.
    """
    try:
        return asarray(np.linalg.eigvals(_values("eigvals", a)))
    except np.linalg.LinAlgError as error:
        raise NumericError(f"eigvals: {error}; scale the matrices") from None
