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

from magmadnn.dmath.client.combining import roll
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


def _fitted(what: str, x: Matrix, axes: Sequence[int], sizes: Sequence[int]) -> Matrix:
    """The array cut at the end of axes, or with zeros put there."""
    session = session_of(what, x)
    for axis, size in zip(axes, sizes, strict=True):
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ShapeError(f"{what}: sizes are whole numbers from 1, got {quoted(size)}")
        (along,) = reducing.axes_of(what, axis, x.ndim)
        ahead, had = (slice(None),) * along, x.shape[along]
        if size < had:
            x = x[(*ahead, slice(0, int(size)))]
        elif size > had:
            wide = session.full((*x.shape[:along], int(size), *x.shape[along + 1 :]), 0, x.dtype)
            wide[(*ahead, slice(0, had))] = x
            x = wide
    return x


def _of_one(name: str) -> Callable[..., Matrix]:
    def function(
        x: Matrix, /, *, n: int | None = None, axis: int = -1, norm: str = "backward",
        layout: LayoutLike = None, decomposition: str | None = None,
    ) -> Matrix:  # fmt: skip
        if n is not None and name != "irfft":
            x, n = _fitted(f"fft.{name}", x, [axis], [n]), None
        return _transformed(name, x, axis, norm, layout, decomposition, n)

    function.__doc__ = f"NumPy's `fft.{name}` along an axis. `layout`: of the result, or None."
    return _named(function, name)


def _of_several(name: str) -> Callable[..., Matrix]:
    default = (-2, -1) if name.endswith("2") else None

    def function(
        x: Matrix, /, *, s: Sequence[int] | None = None,
        axes: Sequence[int] | None = default, norm: str = "backward",
        layout: LayoutLike = None, decomposition: str | None = None,
    ) -> Matrix:  # fmt: skip
        if s is None:
            return _transformed(name, x, axes, norm, layout, decomposition)
        what, sizes = f"fft.{name}", list(s)
        over = list(range(x.ndim - len(sizes), x.ndim)) if axes is None else list(axes)
        if len(over) != len(sizes):
            raise ShapeError(f"{what}: s has {len(sizes)} sizes for {len(over)} axes")
        back = name.startswith("irfft")  # the last axis is of the result there
        kept = len(sizes) - back
        x = _fitted(what, x, over[:kept], sizes[:kept])
        return _transformed(name, x, over, norm, layout, decomposition, sizes[-1] if back else None)

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

_OTHER_WAY = {"backward": "forward", "forward": "backward"}


def hfft(
    x: Matrix, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Matrix:  # fmt: skip
    """NumPy's `fft.hfft`: real numbers from half of their Hermitian transform, along an axis."""
    halves = session_of("fft.hfft", x).apply("conj", x)
    return irfft(halves, n=n, axis=axis, norm=_OTHER_WAY.get(norm, norm))


def ihfft(
    x: Matrix, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Matrix:  # fmt: skip
    """NumPy's `fft.ihfft`, which `hfft` inverts."""
    made = rfft(x, n=n, axis=axis, norm=_OTHER_WAY.get(norm, norm))
    return session_of("fft.ihfft", x).apply("conj", made)


def _shifted(name: str, x: Matrix, axes: Any, sign: int) -> Matrix:
    session_of(name, x)
    order = reducing.axes_of(name, axes, x.ndim)
    by = [x.shape[a] // 2 if sign > 0 else -(x.shape[a] // 2) for a in order]
    return roll(x, by, axis=order)


def fftshift(x: Matrix, /, *, axes: Any = None) -> Matrix:
    """The zero frequency moved to the middle of axes; all for None."""
    return _shifted("fft.fftshift", x, axes, 1)


def ifftshift(x: Matrix, /, *, axes: Any = None) -> Matrix:
    """What `fftshift` did undone."""
    return _shifted("fft.ifftshift", x, axes, -1)


__all__ = [
    "fft",
    "fft2",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftn",
]
