"""Operations on the parts of arrays, by the names that records have, but those that need more of a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.functions import (
    elementwise,
    factors,
    images,
    moving,
    reducing,
    row_sums,
    spectra,
    transforms,
    views,
)
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.memory.dtypes import as_dtype


def _remap(
    x: Parts,
    dtype: str,
    layout: Layout | None = None,
    wire: str | None = None,
    error: float | None = None,
) -> Parts:
    rounded = as_dtype(wire) if wire else None
    return remap(x, layout or x.layout, as_dtype(dtype), rounded, error=error)


def _assign(x: Parts, value: Any, key: list[Any]) -> None:
    """`x[key] = value`."""
    part = views.view(x, key)
    if isinstance(value, Parts):
        # What is written may be another view of the same array.
        value = remap(value, elementwise.induced(part.layout, value.shape))
    _copied_to(value, part) if isinstance(value, Parts) else _fill(part, value)


def _copied_to(value: Parts, goal: Parts) -> None:
    """Write elements of an array of any dtype, cast to the goal's."""
    if value.dtype.kind == "b":  # which has no sign
        value = remap(value, value.layout, goal.dtype)
    if goal.dtype.kind == "b":
        elementwise.apply("logical_or", [value, value], out=goal)
    else:
        elementwise.apply("positive", [value], out=goal)


def _fill(x: Parts, value: Any) -> None:
    x.data.version += 1
    for block in x.blocks.values():
        block[...] = value


def _in_place(x: Parts, *rest: Any, name: str) -> None:
    elementwise.apply(name, [x, *rest], out=x)


def _along(x: Parts, name: str, axis: int, descending: bool = False) -> Parts:
    return reducing.along(name, x, axis, descending)


def _reduce(x: Parts, name: str, **settings: Any) -> Parts:
    if settings.get("fixed"):
        x = reducing.uncut(x, reducing.axes_of(name, settings.get("axis"), x.ndim))
    if name in reducing.MEANS:
        return reducing.mean(name, x, **settings)
    return reducing.reduce(name, x, **settings)


def _vdot(a: Parts, b: Parts, **settings: Any) -> Parts:
    return reducing.reduce("sum", elementwise.apply("multiply", [a, b]), **settings)


def _norm(x: Parts, axis: Any = None, keepdims: bool = False, fixed: bool = False) -> Parts:
    """sqrt(sum of squares), each sum scaled by its largest element, so that nothing overflows."""
    axes = reducing.axes_of("norm", axis, x.ndim)
    wide = remap(x, x.layout, factors.computed_dtype(x.dtype), share=True)
    if not all(x.shape):
        return elementwise.apply("sqrt", [reducing.reduce("sum", wide, axes, keepdims)])
    if fixed:
        wide = reducing.uncut(wide, axes)
    largest = reducing.reduce("max", elementwise.apply("abs", [wide]), axes, True)
    scale = elementwise.apply("where", [elementwise.apply("greater", [largest, 0.0]), largest, 1.0])
    scale = elementwise.apply("where", [elementwise.apply("isfinite", [scale]), scale, 1.0])
    squares = reducing.squared(elementwise.apply("divide", [wide, scale]))
    root = elementwise.apply("sqrt", [reducing.reduce("sum", squares, axes, True, fixed=fixed)])
    made = elementwise.apply("multiply", [root, scale])
    return made if keepdims else views.squeezed(made, axes)


def _solve(a: Parts, b: Parts) -> Parts:
    if b.ndim == 2:
        return factors.solve(a, b)
    return views.squeezed(factors.solve(a, factors.as_column(b)), [1])


def _add_row_col_sum(
    v: Parts,
    x: Parts,
    axis: int,
    alpha: float,
    beta: float,
    fixed: bool,
    fast: bool = False,
) -> None:
    """v = alpha * (sum of x over an axis) + beta * v, in an order of sums that is always the same."""
    if fast:
        row_sums.add_sums(v, x, axis, alpha, beta)
        return
    sums = _reduce(x, "sum", axis=axis, fixed=fixed)
    scaled = elementwise.apply("multiply", [sums, alpha])
    if beta == 0:
        elementwise.apply("positive", [scaled], out=v)
    else:
        elementwise.apply("add", [scaled, elementwise.apply("multiply", [v, beta])], out=v)


def _fft(x: Parts, dtype: str, **settings: Any) -> Parts:
    return transforms.transform(x, dtype=as_dtype(dtype), **settings)


def _windows(
    x: Parts,
    *filters: Parts,
    name: str,
    places: list[int],
    dtype: str,
    settings: Any,
) -> Parts:
    more = filters[0] if filters else None
    return images.of_windows(name, x, more, places, as_dtype(dtype), settings)


def _copy_of(x: Parts) -> Parts:
    return remap(x, x.layout)


OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "remap": _remap,
    "assign": _assign,
    "in_place": _in_place,
    "along": _along,
    "reduce": _reduce,
    "vdot": _vdot,
    "norm": _norm,
    "cholesky": factors.cholesky,
    "solve": _solve,
    "determinant": factors.determinant,
    "of_matrices": spectra.of_matrices,
    "take_along_axis": spectra.taken_along,
    "add_row_col_sum": _add_row_col_sum,
    "copy": _copy_of,
    "fft": _fft,
    "windows": _windows,
    "reshape": moving.reshaped,
    "take": moving.taken,
    "searchsorted": moving.places_in,
    "view": views.view,
    "transpose": Parts.transposed,
    "tri": factors.tri,
}
