"""Which frequencies the places of a transform are, and shifts that put 0 into the middle."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import Any

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Dim
from magmadnn.graph.signature import axes_text, is_integer
from magmadnn.ops import concat
from magmadnn.tensor import Tensor, asarray
from magmadnn.tensor.on_gpu import on_gpu

from .numpy_names import operand


@checked_call
def fftfreq(n: int, d: float = 1.0) -> Tensor:
    """Frequencies of `fft` of n numbers, d apart: 0, 1, ..., -2, -1 times 1 / (n d); float64 [n]."""
    _check("fftfreq", n, d)
    return asarray(np.fft.fftfreq(n, d))


@checked_call
def rfftfreq(n: int, d: float = 1.0) -> Tensor:
    """Those of `rfft`: 0, 1, ..., n // 2 times 1 / (n d); float64."""
    _check("rfftfreq", n, d)
    return asarray(np.fft.rfftfreq(n, d))


def _check(name: str, n: Any, d: Any) -> None:
    if not is_integer(n) or n < 1:
        raise ArgumentError(f"{name}: n must be an integer of at least 1, got {n!r}")
    if not isinstance(d, Real) or isinstance(d, bool) or d == 0 or not isfinite(d):
        raise ArgumentError(f"{name}: d must be a finite number other than 0, got {d!r}")


@checked_call
@on_gpu("x")
def fftshift(x: Any, axes: Any = None) -> Any:
    """Places exchanged so that frequency 0 is in the middle, along axes (all where they are left out)."""
    return _shifted("fftshift", x, axes, 1)


@checked_call
@on_gpu("x")
def ifftshift(x: Any, axes: Any = None) -> Any:
    """The inverse of `fftshift`, from which it differs for odd sizes."""
    return _shifted("ifftshift", x, axes, 0)


def _shifted(name: str, x: Any, axes: Any, more: int) -> Any:
    given = x = operand(name, x, "x")
    axes = (
        range(x.ndim) if axes is None else (axes,) if not isinstance(axes, tuple | list) else axes
    )
    for axis in axes:
        if not is_integer(axis) or not -x.ndim <= axis < x.ndim:
            raise ShapeError(f"{name}: there is no axis {axis!r}: x has {axes_text(x.ndim)}")
        size = x.shape[axis]
        cut = (size + more) // 2
        before = [slice(None)] * (axis % x.ndim)
        if isinstance(size, Dim) or 0 < cut < size:
            parts = x[(*before, slice(cut, None))], x[(*before, slice(0, cut))]
            x = concat(list(parts), axis=axis)
    return x.copy() if x is given and isinstance(x, Tensor) else x  # memory of its own
