"""Reductions over axes: sum, prod, max, min, argmax, argmin, and what is built from them.

`axis` is an integer, a tuple or None (all axes), counted from the end where negative; `keepdims` keeps
the reduced axes with size 1. Half-precision values are summed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from magmadnn.errors import ShapeError
from magmadnn.graph.dim import Dim, Shape, product
from magmadnn.graph.node import constant, places, size
from magmadnn.graph.op import (
    REGISTRY,
    Array,
    Draw,
    DTypeRule,
    NoGradient,
    Op,
    OpKind,
    Sample,
    fixed_dtype,
    promote,
    promote_floating,
)
from magmadnn.graph.signature import (
    Attributes,
    OpWords,
    ShapeRule,
    axis_number,
    by_signature,
    shape_text,
)
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import StackedCall, along_axis
from magmadnn.memory.dtypes import is_complex, is_floating
from magmadnn.ops._arguments import dtype_of, words_of
from magmadnn.ops._pointwise import HALF, sum_dtype, widened
from magmadnn.ops.arithmetic import (
    add,
    cast,
    equal,
    isnan,
    logical_or,
    where,
)
from magmadnn.ops.movement import broadcast_to, reshape, transpose

from .products import others
from .stages import in_two_stages


def axes_of(words: OpWords, axis: Any, ndim: int) -> tuple[int, ...]:
    """The reduced axes, counted from the front, in order, each once.

    Raises:
        ShapeError: if there is no such axis, or one is named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    listed = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = sorted(axis_number(words, a, ndim) for a in listed)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{words.name}: axis {axis} names an axis twice")
    return tuple(axes)


def _canonical(words: OpWords, specs: Sequence[Spec], axis: Any, keepdims: bool) -> dict[str, Any]:
    return {"axis": axes_of(words, axis, specs[0].ndim), "keepdims": bool(keepdims)}


def _signature(x: int, axis: tuple[int, ...], keepdims: bool) -> str:
    left = [f"a{i}" for i in range(x)]
    right = [("1" if i in axis else c) for i, c in enumerate(left) if keepdims or i not in axis]
    return f"{' '.join(left)} -> {' '.join(right)}"


def _with_axes(g: Any, x: Any, axis: tuple[int, ...]) -> Any:
    """A reduced value with its reduced axes back, as size 1."""
    return reshape(g, tuple(1 if i in axis else n for i, n in enumerate(x.shape)))


def _need_elements(words: OpWords, shape: Sequence[Any], axis: Sequence[int]) -> None:
    """An extreme needs one element at least.

    Raises:
        ShapeError: naming the empty axis.
    """
    for a in axis:
        if shape[a] == 0:
            raise ShapeError(
                f"{words.name}: axis {a} of x {shape_text(tuple(shape))} is empty, "
                "so there is nothing to choose from"
            )


def _nonempty_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    _need_elements(words, specs[0].shape, attributes["axis"])
    return _SHAPES(words, specs, attributes)


_SHAPES = by_signature(_signature)


def _samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7),))
    yield Sample((draw(5, 7),), {"axis": -1})
    yield Sample((draw(3, 5, 2),), {"axis": (0, 2), "keepdims": True})
    yield Sample((draw(1, 7),), {"axis": 0})
    yield Sample((draw(7),), {"axis": ()})
    yield Sample((draw(3, 1, 1, 5),), {"axis": (1, 2)})


_COMBINE = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


def _reduction(
    name: str,
    formula: str,
    compute: Callable[..., Array],
    *,
    vjp: Callable[..., Any],
    reference: Callable[..., Any],
    shapes: ShapeRule = _SHAPES,
    dtypes: DTypeRule = promote,
    notes: str = "",
) -> Op:
    return Op(
        name=name,
        args=("x",),
        formula=formula,
        kind=OpKind.REDUCTION,
        shapes=shapes,
        dtypes=dtypes,
        numpy=compute,
        vjp=vjp,
        reference=lambda x, axis=None, keepdims=False: _by_slices(reference, x, axis, keepdims),
        samples=_samples,
        attributes={"axis": None, "keepdims": False},
        canonical=_canonical,
        contracts=_COMBINE[name],
        stacked=along_axis,
        decompose=_reduced_nodes(name),
        any_size=True,
        notes=notes,
    )


def _reduced_nodes(name: str) -> Callable[..., Any]:
    """By single axes, in a wider type where that is half precision, truth values or small integers.

    Neighbours that are reduced, or kept, are one axis; of several that are not, the last is reduced first.
    """

    def decompose(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        if is_complex(x.dtype):
            return None
        op, wide = REGISTRY[name], "float32" if is_floating(x.dtype) else "int64"
        if not axis or _nothing_is_combined(x, axis):  # a sum makes 0 of -0
            alone = cast(x, op.dtypes(op.words, [x.dtype], {}))
            alone = add(alone, 0) if name == "sum" else alone
            return reshape(alone, _kept(x, axis, keepdims)) if axis else alone
        if x.dtype in (np.float32, np.float64, np.int64):
            made = in_two_stages(name, x, axis)
            if made is None:
                return _by_single_axes(name, x, axis, keepdims)
            return reshape(made, _kept(x, axis, keepdims))
        given, own = cast(x, wide), op.dtypes(op.words, [x.dtype], {})
        made = _by_single_axes(name, given, axis, keepdims)
        return cast(op(given, axis=axis, keepdims=keepdims) if made is None else made, own)

    return decompose


def _by_single_axes(name: str, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """A reduction over the last axis, the first one or one in the middle; None if it is one already."""
    groups = _groups(x.shape, axis)
    places = [k for k, (reduced, _) in enumerate(groups) if reduced]
    if not places or len(groups) == 1 or _is_single_axis(x, axis):
        return None
    made = x
    while places:
        place, before = places.pop(), len(groups)
        made = reshape(made, tuple(product(sizes) for _, sizes in groups))
        made = REGISTRY[name](made, axis=(place,), keepdims=False)
        if 0 < place < before - 1:  # neighbours on both sides are one now
            groups[place - 1][1].extend(groups.pop(place + 1)[1])
        del groups[place]
    return reshape(made, _kept(x, axis, keepdims))


def _kept(x: Any, axis: tuple[int, ...], keepdims: bool) -> tuple[Any, ...]:
    """The shape of what is reduced."""
    return tuple(1 if a in axis else n for a, n in enumerate(x.shape) if keepdims or a not in axis)


def _nothing_is_combined(x: Any, axis: tuple[int, ...]) -> bool:
    """Whether all of several axes have one place, as where images of 1 x 1 are pooled."""
    return all(x.shape[a] == 1 for a in axis) and not _is_single_axis(x, axis)


def _is_single_axis(x: Any, axis: tuple[int, ...]) -> bool:
    """Whether axes are the last one, or leading ones down to the last, or the one before it."""
    if axis == (x.ndim - 1,):
        return True
    last = x.shape[-1]
    alone = axis in (tuple(range(x.ndim - 1)), (x.ndim - 2,))
    return alone and (isinstance(last, Dim) or last != 1)


def _groups(shape: Sequence[Any], axis: Sequence[int]) -> list[tuple[bool, list[Any]]]:
    """Sizes of neighbouring axes that are reduced (True) or kept together; those of size 1 do not matter."""
    groups: list[tuple[bool, list[Any]]] = []
    for a, n in enumerate(shape):
        if isinstance(n, Dim) or n != 1:
            if not groups or groups[-1][0] != (a in axis):
                groups.append((a in axis, []))
            groups[-1][1].append(n)
    return groups


def _by_slices(combine: Callable[..., float], x: Array, axis: Any, keepdims: bool) -> Array:
    """A reference: combines the numbers of each reduced block as a Python list."""
    listed = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = sorted(a % x.ndim for a in listed)
    kept = [a for a in range(x.ndim) if a not in axes]
    blocks = x.transpose(kept + axes).reshape(*(x.shape[a] for a in kept), -1)
    out = np.apply_along_axis(lambda block: combine(block.tolist()), -1, blocks)
    shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
    return np.asarray(out).reshape(shape)


# --- primitives -----------------------------------------------------------------------------------


def _sum_vjp(g: Any, y: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    leading = axis == tuple(range(len(axis)))  # a broadcast puts these back by itself
    return broadcast_to(g if keepdims or leading else _with_axes(g, x, axis), x.shape)


def _extreme(name: str, compute: Callable[..., Array]) -> Callable[..., Array]:
    words = words_of(name)

    def numpy(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        _need_elements(words, x.shape, axis)  # known only now where the size is a symbol
        return compute(x, axis=axis, keepdims=keepdims)

    return numpy


def _extreme_vjp(name: str) -> Callable[..., Any]:
    """Equal winners share the gradient.

    They are compared with the same value again, which becomes one with y: where a product reads y, mixed
    precision gives whatever reads y its rounded digits, and x keeps its own. None would be equal then.
    """

    def vjp(g: Any, y: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        best = REGISTRY[name](x, axis=axis, keepdims=keepdims)
        winners = cast(equal(x, _with_axes(best, x, axis)), g.dtype)
        share = winners / sum(winners, axis=axis, keepdims=True)
        return _with_axes(g, x, axis) * share

    return vjp


def _prod_vjp(g: Any, y: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Each element's factor is the product of the others, exact where elements are 0."""
    kept = tuple(i for i in range(x.ndim) if i not in axis)
    order = (*kept, *axis)
    block = tuple(x.shape[i] for i in axis)
    wide, back = with_digits(x)
    rows = reshape(transpose(wide, order), (*(x.shape[i] for i in kept), product(block)))
    factors = reshape(others(rows), (*(x.shape[i] for i in kept), *block))
    factors = transpose(factors, tuple(order.index(i) for i in range(x.ndim)))
    return back(_with_axes(cast(g, wide.dtype), x, axis) * factors)


sum = _reduction(
    "sum",
    "the sum of x over axes",
    lambda x, axis, keepdims: widened(x).sum(axis=axis, keepdims=keepdims),
    vjp=_sum_vjp,
    reference=math.fsum,
    dtypes=sum_dtype,
)
prod = _reduction(
    "prod",
    "the product of x over axes",
    lambda x, axis, keepdims: widened(x).prod(axis=axis, keepdims=keepdims),
    vjp=_prod_vjp,
    reference=math.prod,
    dtypes=sum_dtype,
)
max = _reduction(
    "max",
    "the largest of x over axes",
    _extreme("max", np.max),
    shapes=_nonempty_shapes,
    vjp=_extreme_vjp("max"),
    reference=lambda values: sorted(values)[-1],
    notes="NaN if there is one. Equal winners share the gradient evenly.",
)
min = _reduction(
    "min",
    "the smallest of x over axes",
    _extreme("min", np.min),
    shapes=_nonempty_shapes,
    vjp=_extreme_vjp("min"),
    reference=lambda values: sorted(values)[0],
    notes="NaN if there is one. Equal winners share the gradient evenly.",
)


def _deviations(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    wide = widened(x) if is_floating(x.dtype) else x.astype(np.float64)
    count = math.prod(x.shape[a] for a in axis)
    centred = wide - wide.sum(axis=axis, keepdims=True) / wide.dtype.type(count or 1)
    return np.asarray((centred * centred).sum(axis=axis, keepdims=keepdims))


def _centred(x: Any, axis: tuple[int, ...]) -> Any:
    """X less its mean; over leading axes the mean is that which a mean without `keepdims` is."""
    leading = axis == tuple(range(len(axis)))
    count = product([x.shape[a] for a in axis])
    number = size(count, x.dtype) if isinstance(count, Dim) else float(count)
    return x - sum(x, axis=axis, keepdims=not leading) / number


def _deviations_vjp(g: Any, y: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    wide, back = with_digits(x)
    return back(_with_axes(cast(g, wide.dtype), x, axis) * 2.0 * _centred(wide, axis))


def _deviations_nodes(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Two sums, but for all axes down to the last, over which one kernel makes it in one reading."""
    own = x.dtype if is_floating(x.dtype) else np.dtype(np.float64)
    if x.dtype not in (np.float32, np.float64):
        wide = cast(x, np.float32 if is_floating(x.dtype) else np.float64)
        return cast(deviations(wide, axis=axis, keepdims=keepdims), own)
    if x.ndim > 1 and axis == tuple(range(x.ndim - 1)) and _is_single_axis(x, axis):
        return None
    return _two_sums(x, axis, keepdims)


def _two_sums(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """The mean by a sum, and deviations by another one: ranks can add up such sums of their rows."""
    if x.dtype not in (np.float32, np.float64):
        return _deviations_nodes(x, axis, keepdims)
    centred = _centred(x, axis)
    return sum(centred * centred, axis=axis, keepdims=keepdims)


def _of_deviations(values: list[float]) -> float:
    mean = math.fsum(values) / (len(values) or 1)
    return math.fsum((v - mean) ** 2 for v in values)


# What a variance is made of, from one reading of x: Chan, Golub, LeVeque, "Updating formulae and a pairwise
# algorithm for computing sample variances", 1979, eq. (2.1).
deviations = Op(
    name="_deviations",
    args=("x",),
    formula="the sum of (x - mean(x)) ** 2 over axes",
    kind=OpKind.REDUCTION,
    shapes=_SHAPES,
    dtypes=promote_floating,
    numpy=_deviations,
    vjp=_deviations_vjp,
    reference=lambda x, axis=None, keepdims=False: _by_slices(_of_deviations, x, axis, keepdims),
    samples=_samples,
    attributes={"axis": None, "keepdims": False},
    canonical=_canonical,
    contracts="deviations",
    stacked=along_axis,
    decompose=_deviations_nodes,
    by_library={"ranks": _two_sums},
    any_size=True,
)


def _arg_canonical(
    words: OpWords, specs: Sequence[Spec], axis: Any, keepdims: bool
) -> dict[str, Any]:
    axes = axes_of(words, axis, specs[0].ndim)
    if axis is not None and len(axes) != 1:
        raise ShapeError(f"{words.name}: axis must be one integer or None, got {axis}")
    return {"axis": axes, "keepdims": bool(keepdims)}


def _arg_stacked(call: StackedCall) -> Any:
    """Of all axes but that of the models the place is counted along one."""
    (x,), ndim = call.operands, call.ndim(0)
    if len(call.attributes["axis"]) == 1:
        return along_axis(call)
    line = reshape(x, (call.count, product(x.shape[1:])))
    found = call.again([line], axis=1, keepdims=False)
    ones = (1,) * ndim if call.attributes["keepdims"] else ()
    return reshape(found, (call.count, *ones))


def _arg_nodes(best: Op) -> Callable[..., Any]:
    """argmax or argmin in other ops: the least place of a best or NaN."""

    def decompose(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        if not axis:  # a single number
            return constant(np.zeros((), np.int64))
        x, _ = with_digits(x)
        if axis != (x.ndim - 1,):  # along the last one of another order of axes
            kept = [a for a in range(x.ndim) if a not in axis]
            rows = tuple(x.shape[a] for a in kept)
            line = reshape(
                transpose(x, (*kept, *axis)), (*rows, product([x.shape[a] for a in axis]))
            )
            found = decompose(line, (len(rows),), False)
            return _with_axes(found, x, axis) if keepdims else found
        count = x.shape[-1]
        here = equal(x, best(x, axis=-1, keepdims=True))
        here = logical_or(here, isnan(x)) if is_floating(x.dtype) else here
        return min(where(here, places(count), size(count, np.int64)), axis=-1, keepdims=keepdims)

    return decompose


def _arg(
    name: str,
    formula: str,
    compute: Callable[..., Array],
    best: Callable[..., Any],
    extreme: Op,
) -> Op:
    words = words_of(name)

    def numpy(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        _need_elements(words, x.shape, axis)
        if len(axis) == 1:
            return np.asarray(compute(x, axis=axis[0], keepdims=keepdims))
        return np.asarray(compute(x)).reshape((1,) * x.ndim if keepdims else ())

    return Op(
        name=name,
        args=("x",),
        formula=formula,
        kind=OpKind.REDUCTION,
        shapes=_nonempty_shapes,
        dtypes=fixed_dtype("int64"),
        numpy=numpy,
        vjp=NoGradient("its result is an integer"),
        reference=lambda x, axis=None, keepdims=False: _by_slices(
            lambda values: values.index(best(values)), x, axis, keepdims
        ),
        samples=lambda draw: [
            Sample((draw(5, 7),)),
            Sample((draw(5, 7),), {"axis": -1}),
            Sample((draw(3, 5),), {"axis": 0, "keepdims": True}),
        ],
        attributes={"axis": None, "keepdims": False},
        canonical=_arg_canonical,
        decompose=_arg_nodes(extreme),
        any_size=True,
        stacked=_arg_stacked,
        notes="The first of equal ones; the first NaN if there is one.",
    )


argmax = _arg(
    "argmax", "the place of the largest of x along an axis", np.argmax, lambda v: sorted(v)[-1], max
)
argmin = _arg(
    "argmin", "the place of the smallest of x along an axis", np.argmin, lambda v: sorted(v)[0], min
)


def with_digits(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """X in float32 where it is of half precision, and what brings a result back to its dtype.

    Sums of squares and of many elements would be infinite in float16.
    """
    dtype = dtype_of(x)
    if dtype in HALF:
        return cast(x, np.float32), lambda y: cast(y, dtype)
    return x, lambda y: y
