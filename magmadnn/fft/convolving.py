"""Convolution by products of transforms: n log n operations where sums take n times m."""

from __future__ import annotations

from typing import Any

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Dim
from magmadnn.graph.signature import axes_text, is_integer
from magmadnn.memory.dtypes import is_complex
from magmadnn.tensor.on_gpu import on_gpu

from .numpy_names import fft, ifft, irfft, operand, rfft

_MODES = ("full", "same", "valid")


@checked_call
@on_gpu("a", "v")
def convolve(a: Any, v: Any, mode: str = "full", axis: int = -1) -> Any:
    """Y[k] = sum over j of a[j] v[k - j] along an axis, as np.convolve's; other axes broadcast.

    Results are off by some eps times `|a| |v|`, also where they are small.

    Args:
        a: n numbers along the axis, real or complex.
        v: m of them.
        mode: "full" (n + m - 1 numbers), "same" (the middle n or m, whichever is more), "valid" (those that
            all of the shorter take part in).
        axis: counted from the end: -1 is the last.

    Raises:
        ArgumentError: if there is no such mode, or the axis counts from the front.
        ShapeError: if there is no such axis, or it has no numbers.
    """
    if mode not in _MODES:
        raise ArgumentError(f"convolve: mode must be one of {', '.join(_MODES)}, got {mode!r}")
    if not is_integer(axis) or axis >= 0:
        raise ArgumentError(f"convolve: axis counts from the end: give -1, -2, ..., got {axis!r}")
    a, v = operand("convolve", a), operand("convolve", v, "v")
    for argument, x in (("a", a), ("v", v)):
        if x.ndim < -axis:
            raise ShapeError(
                f"convolve: there is no axis {axis}: {argument} has {axes_text(x.ndim)}"
            )
        if isinstance(x.shape[axis], Dim):
            raise ShapeError(
                f"convolve: the size of axis {axis} of {argument} must be known, got {x.shape[axis]}; "
                "give a number where the input is made, or another axis"
            )
        if x.shape[axis] == 0:
            raise ShapeError(f"convolve: axis {axis} of {argument} has 0 numbers; give 1 or more")
    n, m = a.shape[axis], v.shape[axis]
    count = n + m - 1
    if is_complex(a.dtype) or is_complex(v.dtype):
        found = ifft(fft(a, count, axis) * fft(v, count, axis), count, axis)
    else:
        found = irfft(rfft(a, count, axis) * rfft(v, count, axis), count, axis)
    length = {"full": count, "same": max(n, m), "valid": abs(n - m) + 1}[mode]
    begin = (count - length) // 2
    return found[(..., slice(begin, begin + length), *[slice(None)] * (-axis - 1))]
