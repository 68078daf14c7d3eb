"""What matrices are taken, and where they are computed with."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, DTypeError, ShapeError
from magmadnn.linalg._matrices import refuse_unless_finite
from magmadnn.linalg._operands import numbers
from magmadnn.runtime.places import device_of

from ._gpu import GpuPlace
from ._host import HostPlace
from .place import HostArray, Place


def place_of(device: str) -> Place:
    """The place that a name means: "cuda", "cuda:1", "cpu", or "auto".

    Raises:
        UnknownNameError: if there is no such name.
        DeviceError: if there is no such GPU; says what is missing.
    """
    number = device_of(device)
    return HostPlace() if number is None else GpuPlace(number)


def matrix(name: str, argument: str, a: Any) -> HostArray:
    """A square matrix of the host, with the elements of a row beside each other.

    Raises:
        ArgumentError: if it is no NumPy array, or its rows lie otherwise.
        ShapeError: if it is not square.
        DTypeError: for elements that are not float32, float64, complex64 or complex128.
    """
    if not isinstance(a, np.ndarray):
        raise ArgumentError(
            f"{name}: {argument} must be a NumPy array or a memory map, got {type(a).__name__}; "
            "np.asarray makes one"
        )
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ShapeError(f"{name}: {argument} must be one square matrix, got shape {a.shape}")
    if a.dtype.char not in "fdFD" or not a.dtype.isnative:
        raise DTypeError(
            f"{name}: {argument} must hold float32, float64, complex64 or complex128, got {a.dtype}; "
            "convert it, as a copy of a large matrix is not made unasked"
        )
    width = a.shape[1] * a.itemsize
    if a.size and (a.strides[1] != a.itemsize or a.strides[0] < width):
        raise ArgumentError(
            f"{name}: the elements of a row of {argument} must lie beside each other, got strides "
            f"{a.strides}; np.ascontiguousarray makes such an array"
        )
    return a


def goal(name: str, a: HostArray, out: HostArray | None) -> HostArray:
    """Where the factor is written: `out`, or a new array.

    Raises:
        ArgumentError: if `out` does not fit, cannot be written, or overlaps `a` without being it.
    """
    if out is None:
        return np.empty(a.shape, a.dtype)
    matrix(name, "out", out)
    if out.shape != a.shape or out.dtype != a.dtype or not out.flags.writeable:
        state = "" if out.flags.writeable else ", read-only"
        raise ArgumentError(
            f"{name}: out must be a writeable array {a.shape} of {a.dtype}, got {out.shape} of "
            f"{out.dtype}{state}"
        )
    same = out.ctypes.data == a.ctypes.data and out.strides == a.strides
    if not same and np.may_share_memory(a, out):
        raise ArgumentError(f"{name}: out overlaps a; give a itself, or an array apart from it")
    return out


def right_side(name: str, a: HostArray, b: Any) -> HostArray:
    """A copy of b [n] or [n, k] as [n, k].

    Raises:
        ShapeError: if its rows are not as many as those of a.
        DTypeError: if it is complex and a is not.
        NumericError: if it holds NaN or infinity.
    """
    b = numbers(name, "b", b).read()
    if b.ndim not in (1, 2) or b.shape[0] != a.shape[0]:
        raise ShapeError(
            f"{name}: b must be [n] or [n, k] with n = {a.shape[0]}, got shape {b.shape}"
        )
    if b.dtype.kind == "c" and a.dtype.kind != "c":
        raise DTypeError(f"{name}: b is {b.dtype} and the matrix is {a.dtype}; make both complex")
    x = np.array(b[:, None] if b.ndim == 1 else b, a.dtype, order="C")
    refuse_unless_finite(name, "b", x)
    return x
