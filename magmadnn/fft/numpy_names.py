"""NumPy's functions: sizes and axes are settled here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, DTypeError, ShapeError
from magmadnn.graph.node import Node
from magmadnn.graph.signature import axes_text, is_integer
from magmadnn.memory.dtypes import is_complex
from magmadnn.ops import cast
from magmadnn.tensor import Operation, Tensor, asarray
from magmadnn.tensor.known_values import known
from magmadnn.tensor.on_gpu import on_gpu

from ._records import (
    back_transformed,
    filled,
    half_transformed,
    transformed,
    transformed_now,
)

_NORMS = ("backward", "ortho", "forward")
_where_it_lies = on_gpu("a")


def operand(name: str, x: Any, argument: str = "a") -> Any:
    """A node, an Operation or a Tensor as it is, anything else as a Tensor.

    Raises:
        DTypeError: if it holds no numbers. ShapeError: if rows of a list differ in length.
    """
    if isinstance(x, (Node, Operation, Tensor)):
        return x
    try:
        return asarray(x)
    except ShapeError:
        raise ShapeError(f"{name}: rows of {argument} differ in length") from None
    except DTypeError as error:
        what = f"got {type(x).__name__}"
        if isinstance(x, np.ndarray | list | tuple):
            what = str(error).removeprefix("asarray: ")
        raise DTypeError(f"{name}: {argument} must be numbers: {what}") from None


def as_complex(x: Any) -> Any:
    """The same numbers as complex ones: complex128 of float64 and integers, else complex64."""
    if is_complex(x.dtype):
        return x
    small = x.dtype.itemsize <= 4 and x.dtype.kind not in "iub"
    return cast(x, "complex64" if small else "complex128")


def as_real(name: str, x: Any) -> Any:
    """Real numbers as float32 or float64.

    Raises:
        ArgumentError: for complex ones.
    """
    if is_complex(x.dtype):
        raise ArgumentError(
            f"{name}: x must be real, got {x.dtype.name}; take its real part, or use fft"
        )
    if x.dtype in (np.float32, np.float64):
        return x
    return cast(x, "float64" if x.dtype.kind in "iub" else "float32")


def _settled(
    name: str, x: Any, s: Any, axes: Any, norm: Any, half: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """Axes, counted from the end, the size of each, and the norm; `half`: of the last x has only half."""
    norm = "backward" if norm is None else norm
    if not isinstance(norm, str) or norm not in _NORMS:
        raise ArgumentError(f"{name}: norm must be one of {', '.join(_NORMS)}, got {norm!r}")
    for argument, value in (("s", s), ("axes", axes)):
        if value is not None and not isinstance(value, tuple | list | range):
            raise ArgumentError(f"{name}: {argument} must be a tuple or None, got {value!r}")
    if axes is None:
        axes = tuple(range(-(x.ndim if s is None else len(s)), 0))
    found = []
    for axis in axes:
        if not is_integer(axis) or not -x.ndim <= axis < x.ndim:
            raise ShapeError(f"{name}: there is no axis {axis!r}: x has {axes_text(x.ndim)}")
        found.append(int(axis) % x.ndim - x.ndim)
    if len(set(found)) != len(found) or not found:
        raise ShapeError(f"{name}: axes must be one or more, each once, got {tuple(axes)}")
    sizes = [x.shape[a] for a in found] if s is None else list(s)
    if half and x.shape[found[-1]] == 0:
        raise ShapeError(f"{name}: axis {found[-1]} has 0 numbers; a transform needs 1 or more")
    if s is None and half:
        sizes[-1] = 2 * (sizes[-1] - 1)
    if len(sizes) != len(found):
        raise ShapeError(
            f"{name}: s has {len(sizes)} sizes for {len(found)} axes; give one for each"
        )
    for axis, size in zip(found, sizes, strict=True):
        if is_integer(size) and size < 1:
            raise ShapeError(f"{name}: axis {axis} has {size} numbers; a transform needs 1 or more")
        if s is not None and not is_integer(size):
            raise ArgumentError(f"{name}: a size along an axis must be an integer, got {size!r}")
    return tuple(found), tuple(sizes), norm


def _all(name: str, x: Any, s: Any, axes: Any, norm: Any, inverse: bool) -> Any:
    x = as_complex(operand(name, x))
    axes, sizes, norm = _settled(name, x, s, axes, norm)
    for axis, size in zip(axes, sizes, strict=True):
        x = filled(x, axis, size)
    return transformed(x, axes=axes, norm=norm, inverse=inverse)


def _half(name: str, x: Any, s: Any, axes: Any, norm: Any) -> Any:
    x = as_real(name, operand(name, x))
    axes, sizes, norm = _settled(name, x, s, axes, norm)
    for axis, size in zip(axes, sizes, strict=True):
        x = filled(x, axis, size)
    return half_transformed(x, axes=axes, norm=norm)


def _back(name: str, x: Any, s: Any, axes: Any, norm: Any) -> Any:
    x = as_complex(operand(name, x))
    axes, sizes, norm = _settled(name, x, s, axes, norm, half=True)
    for axis, size in zip(axes[:-1], sizes[:-1], strict=True):
        x = filled(x, axis, size)
    x = filled(x, axes[-1], sizes[-1] // 2 + 1)
    return back_transformed(x, axes=axes, norm=norm, n=sizes[-1])


def _at_once(name: str, a: Any, size: Any, axis: Any, norm: Any) -> Tensor | None:
    """The transform of an array, or a Tensor on the host; None for what has to be looked at.

    Settling sizes and axes, and an op's checks, would take longer than a short transform.
    """
    at_once = known(a)
    if at_once is None or not (norm is None or (type(norm) is str and norm in _NORMS)):
        return None
    (x,) = at_once.arrays
    if not x.size or (name.startswith("rfft") and x.dtype.kind == "c"):
        return None
    if name[-1] == "t":  # along one axis
        if type(axis) is not int:
            return None
        last, are_fine = axis, -x.ndim <= axis < x.ndim
        are_fine = are_fine and (size is None or (type(size) is int and size > 0))
    elif axis is None:
        last, are_fine = -1, size is None and x.ndim > 0
    else:
        are_fine = size is None and type(axis) is tuple and all(type(k) is int for k in axis)
        are_fine = are_fine and all(-x.ndim <= k < x.ndim for k in axis)
        are_fine = are_fine and len({k % x.ndim for k in axis}) == len(axis) > 0
        last = axis[-1] if are_fine else 0
    if not are_fine or (size is None and name.startswith("irfft") and x.shape[last] < 2):
        return None
    return at_once.given(transformed_now(name, x, size, axis, norm))


def _one(n: int | None) -> Sequence[int] | None:
    return None if n is None else (n,)


@checked_call
@_where_it_lies
def fft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Y[k] = sum over j of a[j] exp(-2 pi i j k / n), along an axis.

    Args:
        a: real or complex.
        n: how many numbers along the axis; a is cut, or filled up with zeros.
        axis: along which.
        norm: which direction is divided by n: "backward" the inverse, "forward" this one, "ortho" both by
            its root.

    Raises:
        ShapeError: if there is no such axis, or it has no numbers.
        ArgumentError: if there is no such norm.
    """
    if (found := _at_once("fft", a, n, axis, norm)) is not None:
        return found
    return _all("fft", a, _one(n), (axis,), norm, False)


@checked_call
@_where_it_lies
def ifft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `fft`: sum over k of a[k] exp(2 pi i j k / n), divided by n; see `fft`."""
    if (found := _at_once("ifft", a, n, axis, norm)) is not None:
        return found
    return _all("ifft", a, _one(n), (axis,), norm, True)


@checked_call
@_where_it_lies
def rfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The first n // 2 + 1 numbers of the transform of real ones, which say all; see `fft`."""
    if (found := _at_once("rfft", a, n, axis, norm)) is not None:
        return found
    return _half("rfft", a, _one(n), (axis,), norm)


@checked_call
@_where_it_lies
def irfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The n real numbers whose transform begins so, n even where it is left out: the inverse of `rfft`."""
    if (found := _at_once("irfft", a, n, axis, norm)) is not None:
        return found
    return _back("irfft", a, _one(n), (axis,), norm)


@checked_call
@_where_it_lies
def fft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """`fft` along two axes; s gives their sizes."""
    if (found := _at_once("fftn", a, s, axes, norm)) is not None:
        return found
    return _all("fft2", a, s, axes, norm, False)


@checked_call
@_where_it_lies
def ifft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The inverse of `fft2`."""
    if (found := _at_once("ifftn", a, s, axes, norm)) is not None:
        return found
    return _all("ifft2", a, s, axes, norm, True)


@checked_call
@_where_it_lies
def rfft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """`rfft` along the last of two axes, then `fft` along the other."""
    if (found := _at_once("rfftn", a, s, axes, norm)) is not None:
        return found
    return _half("rfft2", a, s, axes, norm)


@checked_call
@_where_it_lies
def irfft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The inverse of `rfft2`."""
    if (found := _at_once("irfftn", a, s, axes, norm)) is not None:
        return found
    return _back("irfft2", a, s, axes, norm)


@checked_call
@_where_it_lies
def fftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """`fft` along several axes, all where they are left out; s gives their sizes."""
    if (found := _at_once("fftn", a, s, axes, norm)) is not None:
        return found
    return _all("fftn", a, s, axes, norm, False)


@checked_call
@_where_it_lies
def ifftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The inverse of `fftn`."""
    if (found := _at_once("ifftn", a, s, axes, norm)) is not None:
        return found
    return _all("ifftn", a, s, axes, norm, True)


@checked_call
@_where_it_lies
def rfftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """`rfft` along the last of several axes, then `fft` along the others."""
    if (found := _at_once("rfftn", a, s, axes, norm)) is not None:
        return found
    return _half("rfftn", a, s, axes, norm)


@checked_call
@_where_it_lies
def irfftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The inverse of `rfftn`."""
    if (found := _at_once("irfftn", a, s, axes, norm)) is not None:
        return found
    return _back("irfftn", a, s, axes, norm)
