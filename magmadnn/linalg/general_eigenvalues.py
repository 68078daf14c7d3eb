"""Eigenvalues of matrices that are not symmetric: complex numbers, of known values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from magmadnn.backends.cuda import array_library
from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, NumericError
from magmadnn.graph.op import Array
from magmadnn.memory import Kind
from magmadnn.tensor import Tensor, asarray, from_dlpack
from magmadnn.tensor.on_gpu import on_gpu

from ._matrices import computed, refuse_unless_finite
from ._operands import operand, refuse_unless_square

# Rows from which on cuSOLVER is faster than the host: 512 rows of float64 took 83 ms there, 216 ms here.
LEAST_ON_DEVICE = 256


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


def _by_device(a: Any, vectors: bool) -> list[Tensor] | None:
    """Eigenvalues, and eigenvectors if they are wanted, of one large real matrix on a GPU; None for others.

    And where the device cannot find them: without a library that has geev, or memory for it; where they do
    not converge, and for numbers that are not finite, so that the host says what is wrong.
    """
    if (
        type(a) is not Tensor
        or a.kind is not Kind.DEVICE
        or a.dtype.char not in "fd"
        or a.ndim != 2
    ):
        return None
    if (
        a.shape[0] != a.shape[1]
        or a.shape[0] < LEAST_ON_DEVICE
        or (cupy := array_library()) is None
    ):
        return None
    import cupyx

    with cupy.cuda.Device(a.device), cupyx.errstate(linalg="raise"):
        matrix = cupy.asarray(a)
        if not bool(cupy.isfinite(matrix).all()):
            return None
        try:
            found = cupy.linalg.eig(matrix) if vectors else (cupy.linalg.eigvals(matrix),)
        except (AttributeError, RuntimeError, MemoryError, np.linalg.LinAlgError):
            return None
        if not bool(found[0].imag.any()):
            found = tuple(x.real for x in found)
        return [from_dlpack(cupy.ascontiguousarray(x)) for x in found]


@checked_call
def eig(a: Any) -> EigResult:
    """Eigenvalues and eigenvectors of A [..., n, n], by LAPACK's geev; of half precision in float32.

    Those of one real matrix of a GPU's memory, of 256 rows or more, are found there, by cuSOLVER from CUDA
    12.6 on, with CuPy 14; others by the host. The results lie there. The order of eigenvalues is up to the
    library.

    Raises:
        NumericError: if a matrix holds NaN or infinity, or they do not converge.
        ShapeError: if it is not square.
        ArgumentError: for an Operation: there is no gradient.
    """
    if (found := _by_device(a, True)) is not None:
        return EigResult(*found)
    return _eig_by_host(a)


@on_gpu("a")
def _eig_by_host(a: Any) -> EigResult:
    try:
        return EigResult(*map(asarray, np.linalg.eig(_values("eig", a))))
    except np.linalg.LinAlgError as error:
        raise NumericError(f"eig: {error}; scale the matrices") from None


@checked_call
def eigvals(a: Any) -> Any:
    """The eigenvalues of A [..., n, n]; see `eig`.

    Raises:
        NumericError: if a matrix holds NaN or infinity, or they do not converge.
        ShapeError: if it is not square.
        ArgumentError: for an Operation: there is no gradient.
    """
    if (found := _by_device(a, False)) is not None:
        return found[0]
    return _eigvals_by_host(a)


@on_gpu("a")
def _eigvals_by_host(a: Any) -> Any:
    try:
        return asarray(np.linalg.eigvals(_values("eigvals", a)))
    except np.linalg.LinAlgError as error:
        raise NumericError(f"eigvals: {error}; scale the matrices") from None
