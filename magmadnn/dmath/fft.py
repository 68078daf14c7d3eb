"""Discrete Fourier transforms of spread arrays, `md.dmath.fft.NAME`, by NumPy's and the array API's names.

Lines along an axis are transformed where they lie whole; axes that are cut are brought together by changes
of layout in between. float32 and halves give complex64, all else complex128. In two dimensions workers hold
slabs; in three and more slabs, or pencils where an axis has fewer lines than there are workers, or on
request. A vector is transformed by one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from magmadnn.dmath.client.matrix import Matrix
from magmadnn.dmath.functions import reducing
from magmadnn.dmath.layouts.recipes import LayoutLike
from magmadnn.dmath.names import session_of
from magmadnn.errors import ArgumentError, DTypeError, ShapeError, quoted

_NORMS = ("backward", "ortho", "forward")
_DECOMPOSITIONS = {None: None, "slabs": False, "pencils": True}


def _transformed(
    name: str,
    x: Matrix,
    axes: Any,
    norm: str,
    layout: LayoutLike,
    decomposition: str | None,
    n: int | None = None,
) -> Matrix:
    what = f"fft.{name}"
    session = session_of(what, x)
    if norm not in _NORMS:
        raise ArgumentError(f"{what}: norm must be one of {', '.join(_NORMS)}, got {quoted(norm)}")
    if decomposition not in _DECOMPOSITIONS:
        raise ArgumentError(
            f"{what}: decomposition must be 'slabs', 'pencils' or None, got {quoted(decomposition)}"
        )
    order = _axes(what, axes, x.ndim)
    for axis in order:
        if not x.shape[axis]:
            raise ShapeError(f"{what}: axis {axis} is empty, shape {x.shape}: nothing to transform")
    kind = name.removesuffix("n").removesuffix("2")
    if kind == "rfft" and x.dtype.kind == "c":
        raise DTypeError(f"{what}: takes real numbers, got {x.dtype}: take {name[1:]}")
    single = x.dtype in (np.float32, np.complex64) or (
        x.dtype.itemsize == 2 and x.dtype.kind in "fV"
    )
    if x.dtype.kind in "iub" or x.dtype.itemsize == 2:
        x = x.astype("float32" if single else "float64")
    dtype = np.dtype(np.complex64 if single else np.complex128)
    shape, last, size = list(x.shape), order[-1], 0
    if kind == "rfft":
        shape[last] = shape[last] // 2 + 1
    elif kind == "irfft":
        dtype = np.dtype(np.float32 if single else np.float64)
        size = shape[last] = 2 * (shape[last] - 1) if n is None else int(n)
        if size < 1:
            raise ShapeError(f"{what}: axis {last} of the result would have {size} elements")
    settings: dict[str, Any] = {
        "name": kind,
        "axes": order,
        "norm": norm,
        "size": size,
        "dtype": dtype.name,
    }
    settings["pencils"] = _DECOMPOSITIONS[decomposition]
    made = session._new("fft", [x], shape, dtype, **settings)
    return made if layout is None else made.to(layout)


def _axes(what: str, axes: Any, ndim: int) -> list[int]:
    """Axes in their order; all for None."""
    given = range(ndim) if axes is None else [axes] if isinstance(axes, int) else list(axes)
    order = [int(reducing.axes_of(what, axis, ndim)[0]) for axis in given]
    if not order or len(set(order)) != len(order):
        raise ShapeError(f"{what}: axes {list(given)} must be different ones, and at least one")
    return order


def _of_one(name: str) -> Callable[..., Matrix]:
    def function(
        x: Matrix, /, *, n: int | None = None, axis: int = -1, norm: str = "backward",
        layout: LayoutLike = None, decomposition: str | None = None,
    ) -> Matrix:  # fmt: skip
        if n is not None and name != "irfft":
            raise ArgumentError(
                f"fft.{name}: n is taken by irfft only: slice or pad the array before"
            )
        return _transformed(name, x, axis, norm, layout, decomposition, n)

    function.__doc__ = f"NumPy's `fft.{name}` along an axis. `layout`: of the result, or None."
    return _named(function, name)


def _of_several(name: str) -> Callable[..., Matrix]:
    default = (-2, -1) if name.endswith("2") else None

    def function(
        x: Matrix, /, *, axes: Sequence[int] | None = default, norm: str = "backward",
        layout: LayoutLike = None, decomposition: str | None = None,
    ) -> Matrix:  # fmt: skip
        return _transformed(name, x, axes, norm, layout, decomposition)

    function.__doc__ = (
        f"NumPy's `fft.{name}` over axes. `layout`: of the result, None leaves it where it is made; "
        '`decomposition`: "slabs", "pencils" or None for what suits the sizes.'
    )
    return _named(function, name)


def _named(function: Callable[..., Matrix], name: str) -> Callable[..., Matrix]:
    function.__name__ = function.__qualname__ = name
    return function


fft, ifft, rfft, irfft = map(_of_one, ("fft", "ifft", "rfft", "irfft"))
fft2, ifft2, rfft2, irfft2 = map(_of_several, ("fft2", "ifft2", "rfft2", "irfft2"))
fftn, ifftn, rfftn, irfftn = map(_of_several, ("fftn", "ifftn", "rfftn", "irfftn"))

__all__ = [
    "fft",
    "fft2",
    "fftn",
    "ifft",
    "ifft2",
    "ifftn",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftn",
]
