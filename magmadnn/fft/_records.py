"""The ops: transforms along axes, of the sizes that operands have.

A transform is linear, so its gradient is its transpose, and the matrix of a transform along whole axes is
symmetric: the gradient is the same transform again. Conjugates are the sweep's
(`graph/transforms/gradient.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.errors import DTypeError
from magmadnn.graph.computed_by import LibraryCall
from magmadnn.graph.dim import Dim
from magmadnn.graph.op import REQUIRED, Array, Draw, Op, OpKind, Sample, takes_complex
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import StackedCall
from magmadnn.memory.dtypes import is_complex
from magmadnn.ops import pad
from magmadnn.runtime.threads import thread_count

Axes = tuple[int, ...]
_OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


@cache
def _scipy() -> Any:
    """SciPy's module; None where it is not installed."""
    try:
        return import_module("scipy.fft")
    except ImportError:
        return None


def _library() -> tuple[Any, dict[str, Any]]:
    """SciPy's module and its threads, or NumPy's."""
    found = _scipy()
    return (np.fft, {}) if found is None else (found, {"workers": thread_count()})


def _call(name: str, x: Array, *sizes: Any, axes: Axes, norm: str) -> Array:
    if not axes:
        return x
    # arrays of other libraries have functions of their own, which NumPy's lead to
    library, options = _library() if isinstance(x, np.ndarray) else (np.fft, {})
    found: Array
    if len(axes) == 1 and not sizes:  # fft for fftn, which settles axes first
        found = getattr(library, name[:-1])(x, axis=axes[0], norm=norm, **options)
    else:
        found = getattr(library, name)(x, *sizes, axes=axes, norm=norm, **options)
    return found


def transformed_now(name: str, x: Array, size: Any, axis: Any, norm: str | None) -> Array:
    """A transform of numbers that are known, along an axis or axes, which the library cuts or fills up."""
    library, options = _library()
    found: Array
    if options:  # SciPy's says nothing of overflows
        found = getattr(library, name)(x, size, axis, norm, **options)
        return found
    with np.errstate(all="ignore"):
        found = getattr(library, name)(x, size, axis, norm)
    return found


def _stacked(call: StackedCall) -> Any:
    """Axes count from the end."""
    return call.again(call.operands)


# --- complex to complex ---------------------------------------------------------------------------


def _numpy(x: Array, axes: Axes, norm: str, inverse: bool) -> Array:
    return _call("ifftn" if inverse else "fftn", x, axes=axes, norm=norm)


def _complex_dtype(words: OpWords, dtypes: Sequence[np.dtype[Any]], attributes: Attributes) -> Any:
    if not is_complex(dtypes[0]):
        raise DTypeError(f"{words.name}: x must be complex, got {dtypes[0].name}")
    return dtypes[0]


def _factor(count: int, norm: str, inverse: bool) -> float:
    exponent = {"backward": float(inverse), "ortho": 0.5, "forward": float(not inverse)}[norm]
    return float(count ** (-exponent))


def _reference(x: Array, axes: Axes, norm: str, inverse: bool) -> Array:
    """By the matrix of powers of a root of 1."""
    for axis in axes:
        n = x.shape[axis]
        turns = np.outer(np.arange(n), np.arange(n)) / n
        matrix = np.exp((2j if inverse else -2j) * np.pi * turns) * _factor(n, norm, inverse)
        x = np.moveaxis(np.moveaxis(x, axis, -1) @ matrix, -1, axis)
    return x


def _samples(draw: Draw) -> list[Sample]:
    x = draw(2, 5, 3) + 1j * draw(2, 5, 3)
    return [Sample((x,), {"axes": (-1, -2), "norm": "ortho", "inverse": False})]


transformed: Op = Op(
    name="_fft",
    args=("x",),
    formula="the transform of x along axes",
    kind=OpKind.OTHER,
    library=LibraryCall("c2c", whole=True),
    stacked=_stacked,
    shapes=lambda words, specs, attributes: specs[0].shape,
    dtypes=_complex_dtype,
    numpy=_numpy,
    vjp=lambda g, y, x, **attributes: transformed(g, **attributes),
    reference=_reference,
    samples=_samples,
    attributes={"axes": REQUIRED, "norm": "backward", "inverse": False},
)


# --- real to half of the transform, and back --------------------------------------------------------


def _half_shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Any:
    shape, last = list(specs[0].shape), attributes["axes"][-1]
    shape[last] = shape[last] // 2 + 1
    return tuple(shape)


def _half_dtype(words: OpWords, dtypes: Sequence[np.dtype[Any]], attributes: Attributes) -> Any:
    if dtypes[0].kind != "f":
        raise DTypeError(
            f"{words.name}: x must be real, got {dtypes[0].name}; fft takes complex numbers"
        )
    return np.result_type(dtypes[0], np.complex64)


def _half_vjp(g: Any, y: Any, x: Any, axes: Axes, norm: str) -> Any:
    """The transform of the half, filled up with zeros: what it does not say it does not depend on."""
    return transformed(filled(g, axes[-1], x.shape[axes[-1]]), axes=axes, norm=norm)


half_transformed: Op = Op(
    name="_rfft",
    args=("x",),
    formula="the transform of a real x along axes, of the last of which half is kept",
    kind=OpKind.OTHER,
    library=LibraryCall("r2c", whole=True),
    stacked=_stacked,
    shapes=_half_shape,
    dtypes=_half_dtype,
    numpy=lambda x, axes, norm: _call("rfftn", x, axes=axes, norm=norm),
    vjp=_half_vjp,
    reference=lambda x, axes, norm: np.take(
        _reference(x.astype(np.complex128), axes, norm, False),
        range(x.shape[axes[-1]] // 2 + 1),
        axes[-1],
    ),
    samples=lambda draw: [Sample((draw(2, 5, 3),), {"axes": (-1, -2)})],
    attributes={"axes": REQUIRED, "norm": "backward"},
)


def _back_shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Any:
    shape = list(specs[0].shape)
    shape[attributes["axes"][-1]] = attributes["n"]
    return tuple(shape)


def _back_numpy(x: Array, axes: Axes, norm: str, n: int) -> Array:
    sizes = [x.shape[a] for a in axes[:-1]] + [n]
    return _call("irfftn", x, sizes, axes=axes, norm=norm)


def _back_vjp(g: Any, y: Any, x: Any, axes: Axes, norm: str, n: int) -> Any:
    """Places beside 0 and n / 2 stand for two, which are conjugates of each other."""
    half = half_transformed(g, axes=axes, norm=_OPPOSITE[norm])
    twice = np.full(n // 2 + 1, 2.0, g.dtype)
    twice[0] = 1
    if n % 2 == 0:
        twice[-1] = 1
    return half * twice.reshape(-1, *[1] * (-axes[-1] - 1))


back_transformed: Op = Op(
    name="_irfft",
    args=("x",),
    formula="the n real numbers whose transform has this half",
    kind=OpKind.OTHER,
    library=LibraryCall("c2r", whole=True),
    stacked=_stacked,
    shapes=_back_shape,
    dtypes=lambda words, dtypes, attributes: (
        np.zeros(0, _complex_dtype(words, dtypes, {})).real.dtype
    ),
    numpy=_back_numpy,
    vjp=_back_vjp,
    reference=_back_numpy,
    samples=lambda draw: [Sample((draw(2, 3) + 1j * draw(2, 3),), {"axes": (-1,), "n": 5})],
    attributes={"axes": REQUIRED, "norm": "backward", "n": REQUIRED},
)

takes_complex(transformed, half_transformed, back_transformed)


def filled(x: Any, axis: int, size: int) -> Any:
    """`x` with zeros behind, or cut, to a size along an axis that counts from the end."""
    have = x.shape[axis]
    if have == size:
        return x
    open_size = isinstance(have, Dim)
    if open_size or have < size:
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, size if open_size else size - have)
        x = pad(x, widths=tuple(widths))
    if open_size or have > size:
        x = x[(..., slice(0, size), *[slice(None)] * (-axis - 1))]
    return x
