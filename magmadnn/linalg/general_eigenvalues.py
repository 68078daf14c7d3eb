"""Eigenvalues of matrices that are not symmetric: complex numbers, of known values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from magmadnn.backends.cuda import array_library
from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, NumericError
from magmadnn.memory import Kind
from magmadnn.tensor import Tensor, asarray, from_dlpack
from magmadnn.tensor.on_gpu import on_gpu

from ._matrices import computed, refuse_unless_finite
from ._operands import operand, refuse_unless_square

# Rows from which on cuSOLVER is used. Of real ones 192 took the host 26 ms and an H200 55, 512 took 216 and
# 83; of complex ones 96 took both 24, 128 took 43 and 34, 512 took 729 and 169.
LEAST_ON_DEVICE, LEAST_COMPLEX = 256, 128


class EigResult(NamedTuple):
    """Eigenvalues [..., n] and eigenvectors [..., n, n], each a column.

    Both are real where A is and no eigenvalue of the call has an imaginary part, with any version of NumPy.
    """

    eigenvalues: Any
    eigenvectors: Any


def _is_large_on_device(a: Any) -> bool:
    """Whether it is one matrix of a GPU's memory that is large enough for cuSOLVER."""
    if type(a) is not Tensor or a.kind is not Kind.DEVICE or a.dtype.char not in "fdFD":
        return False
    least = LEAST_COMPLEX if a.dtype.kind == "c" else LEAST_ON_DEVICE
    return a.ndim == 2 and a.shape[0] == a.shape[1] and a.shape[0] >= least


def _by_device(a: Any, vectors: bool) -> tuple[Tensor, ...] | None:
    """Eigenvalues, and eigenvectors if they are wanted, of one large matrix on a GPU; None for others.

    And where the device cannot find them: without a library that has geev, or memory for it; where they do
    not converge, and for numbers that are not finite, so that the host says what is wrong.
    """
    if not _is_large_on_device(a):
        return None
    cupy = array_library()
    if cupy is None or not hasattr(cupy.linalg, "eig"):
        return None
    import cupyx

    try:
        with cupy.cuda.Device(a.device), cupyx.errstate(linalg="raise"):
            matrix = cupy.asarray(a)
            if not bool(cupy.isfinite(matrix).all()):
                return None
            found = cupy.linalg.eig(matrix) if vectors else (cupy.linalg.eigvals(matrix),)
            if a.dtype.kind != "c":
                found = _real_if_all_are(*found)
            return tuple(from_dlpack(cupy.ascontiguousarray(x)) for x in found)
    except (RuntimeError, MemoryError, np.linalg.LinAlgError):
        return None


@on_gpu("a")
def _by_host(a: Any, name: str) -> tuple[Tensor, ...]:
    """The same of any matrices, by the function of NumPy with this name."""
    a = operand(name, "a", a, 2)
    if not isinstance(a, Tensor):
        raise ArgumentError(
            f"{name}: takes arrays and Tensors, not Operations; eigh is for symmetric matrices in graphs"
        )
    refuse_unless_square(name, "a", a)
    (values,) = computed(a.read())
    refuse_unless_finite(name, "a", values)
    try:
        found = getattr(np.linalg, name)(values)
    except np.linalg.LinAlgError as error:
        raise NumericError(f"{name}: {error}; scale the matrices") from None
    results = found if name == "eig" else (found,)
    if values.dtype.kind != "c":
        results = _real_if_all_are(*results)
    return tuple(asarray(x) for x in results)


def _real_if_all_are(values: Any, *vectors: Any) -> tuple[Any, ...]:
    """Eigenvalues of real matrices, and eigenvectors: real if no eigenvalue has an imaginary part.

    NumPy's and CuPy's versions differ in this: NumPy's results are complex from 2.5 on.
    """
    found = (values, *vectors)
    return found if bool(values.imag.any()) else tuple(x.real for x in found)


@checked_call
def eig(a: Any) -> EigResult:
    """Eigenvalues and eigenvectors of A [..., n, n], by LAPACK's geev; of half precision in float32.

    Those of one `DEVICE` Tensor of 256 rows or more, of a complex one of 128, are found on its GPU, by
    cuSOLVER from CUDA 12.6 on, with CuPy 14; others by the host. The results lie where A does. The order of
    eigenvalues is up to the library.

    Raises:
        NumericError: if a matrix holds NaN or infinity, or they do not converge.
        ShapeError: if it is not square.
        ArgumentError: for an Operation: there is no gradient.
    """
    return EigResult(*(_by_device(a, vectors=True) or _by_host(a, "eig")))


@checked_call
def eigvals(a: Any) -> Any:
    """The eigenvalues of A [..., n, n]; see `eig`.

    Raises:
        NumericError: if a matrix holds NaN or infinity, or they do not converge.
        ShapeError: if it is not square.
        ArgumentError: for an Operation: there is no gradient.
    """
    (values,) = _by_device(a, vectors=False) or _by_host(a, "eigvals")
    return values
