"""Sums and other reductions over axes, and functions that need a whole axis at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import accumulated
from magmadnn.dmath.functions.elementwise import apply
from magmadnn.dmath.layouts.layout import Layout, even_cuts
from magmadnn.dmath.layouts.recipes import LayoutLike, resolve
from magmadnn.errors import ArgumentError, DTypeError, IndexOutOfRangeError

# By name: the NumPy reduction of a block, and the function that joins two results.
REDUCTIONS = {
    "sum": ("sum", "add"),
    "prod": ("prod", "multiply"),
    "max": ("max", "maximum"),
    "min": ("min", "minimum"),
    "any": ("any", "maximum"),
    "all": ("all", "minimum"),
}
MEANS = ("mean", "var", "std")
# Functions along one axis, which has to be whole on a worker.
ALONG = (
    "argmax",
    "argmin",
    "cumulative_sum",
    "cumulative_prod",
    "log_softmax",
    "softmax",
    "sort",
    "argsort",
)
_LOST = ("argmax", "argmin")


def axes_of(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes that `axis=` means, counted from 0, in order.

    Raises:
        IndexOutOfRangeError: for an axis that is not there.
    """
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    found = []
    for one in given:
        if isinstance(one, bool) or not isinstance(one, (int, np.integer)):
            raise ArgumentError(f"{name}: axis must be a number or several, got {one!r}")
        if not -ndim <= one < ndim:
            raise IndexOutOfRangeError(
                f"{name}: axis {one} is not there, the array has {ndim} axes"
            )
        found.append(int(one) % ndim)
    if len(set(found)) != len(found):
        raise ArgumentError(f"{name}: axis {axis!r} names an axis twice")
    return tuple(sorted(found))


def reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """The shape after a reduction."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if keepdims or i not in axes)


@lru_cache(maxsize=1024)
def reduced_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype after a reduction, NumPy's; int64 for sums of uint8, as there is no uint64 here."""
    if name in ("argmax", "argmin", "argsort"):
        return np.dtype(np.int64)
    if name in ("softmax", "log_softmax"):
        if dtype.kind == "c":  # of which the largest is that of the largest real part
            raise DTypeError(f"{name}: takes no complex numbers: cast them with astype")
        return dtype if dtype.kind in "fV" else np.dtype(np.float64)
    if name in ("var", "std") and dtype.kind == "c":
        return real_dtype(dtype)
    made: np.dtype[Any] = np.asarray(
        getattr(np, "mean" if name in MEANS else name)(np.ones(1, dtype))
    ).dtype
    return np.dtype(np.int64) if made == np.uint64 else made


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Of the absolute values of elements."""
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype


def squared(x: Parts) -> Parts:
    """|x|^2 of each element; real of complex ones."""
    if x.dtype.kind != "c":
        return apply("square", [x])
    return apply("add", [apply("square", [apply(part, [x])]) for part in ("real", "imag")])


@lru_cache(maxsize=512)
def partial_layout(layout: Layout, axes: tuple[int, ...]) -> Layout:
    """Where results of blocks come into being: on all workers that hold any block along the reduced axes."""
    kept = [i for i in range(len(layout.shape)) if i not in axes]
    holders = []
    for place in product(*(range(layout.grid[i]) for i in kept)):
        spans = [
            range(g) if i in axes else [place[kept.index(i)]] for i, g in enumerate(layout.grid)
        ]
        found: set[int] = set()
        for at in product(*spans):
            box = layout.boxes[layout.block_at(at)]
            if all(box[i][0] < box[i][1] for i in axes):
                found.update(layout.holders[layout.block_at(at)])
        holders.append(tuple(sorted(found)) or (0,))
    cuts = tuple(layout.cuts[i] for i in kept)
    shape = tuple(layout.shape[i] for i in kept)
    return Layout(shape, cuts, tuple(holders), layout.workers, any(len(h) > 1 for h in holders))


def once(x: Parts) -> Parts:
    """The array without its further copies, so that nothing is counted twice."""
    if not x.layout.replicated:
        return x
    layout = Layout(
        x.shape, x.layout.cuts, tuple(h[:1] for h in x.layout.holders), x.layout.workers
    )
    blocks = {n: x.blocks[n] for n in layout.held[x.team.rank]}
    return Parts(x.team, layout, x.dtype, blocks)


def uncut(x: Parts, axes: Sequence[int]) -> Parts:
    """The array with these axes uncut, so that no sum over them is cut between workers."""
    kept = [i for i in range(x.ndim) if i not in axes]
    if not kept:
        return remap(x, _on_first(x.layout), share=True)
    size = x.team.size
    cuts = tuple(even_cuts(n, size) if i == kept[0] else (0, n) for i, n in enumerate(x.shape))
    return remap(x, Layout(x.shape, cuts, tuple((w,) for w in range(size)), size), share=True)


def _in_order(function: Callable[..., Any], xp: Any, block: Any, axes: Sequence[int]) -> Any:
    """A reduction of a block in an order that depends on the axes alone: a library's depends on strides, too.

    Lines of the last axes are reduced each in one piece, other axes as rows that are added one after another.
    """
    kept = [i for i in range(block.ndim) if i not in axes]
    sizes = [block.shape[i] for i in kept]
    counts = prod(sizes), prod(block.shape[i] for i in axes)
    if kept == list(range(len(kept))):
        lines = xp.ascontiguousarray(block).reshape(counts)
        return function(lines, axis=1).reshape(sizes)
    rows = xp.ascontiguousarray(block.transpose([*axes, *kept])).reshape(counts[::-1])
    if counts[0] == 1:  # a single column would be taken for a line
        rows = xp.concatenate([rows, rows], axis=1)
    return function(rows, axis=0)[: counts[0]].reshape(sizes)


def reduce(
    name: str,
    x: Parts,
    axis: Any = None,
    keepdims: bool = False,
    layout: LayoutLike = None,
    fixed: bool = False,
) -> Parts:
    """A reduction over axes: of each block, of a worker's blocks in their order, of the workers in theirs.

    So the bits are the same in each run; they may differ between layouts, as sums are cut differently, and
    as blocks lie otherwise in memory. With `fixed` they do not where `uncut` made the array.
    Halves are added up in float32.
    """
    axes = axes_of(name, axis, x.ndim)
    dtype = reduced_dtype(name, x.dtype)
    local_name, join = REDUCTIONS[name]
    sums = accumulated(dtype)
    if name in ("max", "min") and prod(x.shape[i] for i in axes) == 0:
        raise ArgumentError(f"{name}: an axis of size 0 has no {name}, shape {x.shape}")
    x = once(x)
    team, lies = x.team, partial_layout(x.layout, axes)
    function, joined = getattr(team.xp, local_name), getattr(team.xp, join)
    kept = [i for i in range(x.ndim) if i not in axes]
    blocks: dict[int, Any] = {}
    for number, block in x.blocks.items():
        into = lies.block_at([_place(x.layout, number)[i] for i in kept])
        wide = block.astype(sums, copy=False) if name in ("sum", "prod") else block
        found = _in_order(function, team.xp, wide, axes) if fixed else function(wide, axis=axes)
        value = team.xp.asarray(found)
        blocks[into] = team.xp.asarray(joined(blocks[into], value)) if into in blocks else value
    for number in lies.held[team.rank]:
        if number not in blocks:  # the reduced axes are empty
            sizes = [high - low for low, high in lies.boxes[number]]
            blocks[number] = team.xp.full(sizes, 1 if name in ("prod", "all") else 0, sums)
    blocks = {n: team.xp.asarray(b).astype(sums, copy=False) for n, b in blocks.items()}
    made = Parts(team, lies, sums, blocks)
    target = resolve(layout if not keepdims else None, lies.shape, team.size, dtype.itemsize, name)
    made = remap(made, target, dtype, share=True, combine=join)
    if not keepdims:
        return made
    made = _with_ones(made, axes, x.ndim)
    return (
        made if layout is None else remap(made, resolve(layout, made.shape, team.size), share=True)
    )


def _place(layout: Layout, block: int) -> list[int]:
    place: list[int] = []
    for count in reversed(layout.grid):
        block, at = divmod(block, count)
        place.append(at)
    return place[::-1]


def _with_ones(x: Parts, axes: Sequence[int], ndim: int) -> Parts:
    """Axes of size 1 put in again where a reduction took them out."""
    kept = iter(x.layout.cuts)
    cuts = tuple((0, 1) if i in axes else next(kept) for i in range(ndim))
    layout = Layout(tuple(c[-1] for c in cuts), cuts, x.layout.holders, x.layout.workers)
    blocks = {
        n: b.reshape([high - low for low, high in layout.boxes[n]]) for n, b in x.blocks.items()
    }
    return Parts(x.team, layout, x.dtype, blocks)


def mean(
    name: str,
    x: Parts,
    axis: Any = None,
    keepdims: bool = False,
    layout: LayoutLike = None,
    correction: float = 0,
    fixed: bool = False,
) -> Parts:
    """Mean, variance or standard deviation; the variance in two passes, of |x - mean|^2."""
    axes = axes_of(name, axis, x.ndim)
    count = prod(x.shape[i] for i in axes)
    dtype = reduced_dtype(name, x.dtype)
    wide = remap(
        x,
        x.layout,
        np.dtype(np.float64) if x.dtype.kind in "iub" else accumulated(x.dtype),
        share=True,
    )
    total = reduce("sum", wide, axes, keepdims or name != "mean", fixed=fixed)
    middle = apply("divide", [total, float(count) or np.nan])
    if name != "mean":
        off = squared(apply("subtract", [wide, middle]))
        middle = apply(
            "divide",
            [
                reduce("sum", off, axes, keepdims, fixed=fixed),
                max(float(count - correction), 0.0) or np.nan,
            ],
        )
    if name == "std":
        middle = apply("sqrt", [middle])
    target = middle.layout if layout is None else resolve(layout, middle.shape, x.team.size)
    return remap(middle, target, dtype, share=True)


@lru_cache(maxsize=512)
def whole_along(layout: Layout, axis: int) -> Layout:
    """A layout with one axis uncut: the given one if it is so, else even cuts of the longest other axis."""
    if layout.grid[axis] == 1:
        return layout
    others = [i for i in range(len(layout.shape)) if i != axis]
    if not others:
        return _on_first(layout)
    longest = max(others, key=lambda i: layout.shape[i])
    cuts = tuple(
        even_cuts(n, layout.workers) if i == longest else (0, n) for i, n in enumerate(layout.shape)
    )
    return Layout(layout.shape, cuts, tuple((w,) for w in range(layout.workers)), layout.workers)


def _on_first(layout: Layout) -> Layout:
    return Layout(layout.shape, tuple((0, n) for n in layout.shape), ((0,),), layout.workers)


def along(name: str, x: Parts, axis: int = -1, descending: bool = False) -> Parts:
    """A function along one axis, which is brought together on a worker first where it is cut.

    Args:
        name: one of `ALONG`.
        x: the array.
        axis: along which.
        descending: whether `sort` and `argsort` begin with the largest.
    """
    (axis,) = axes_of(name, axis, x.ndim)
    layout = whole_along(x.layout, axis)
    x = remap(x, layout, share=True)
    function = _along_function(name, x.team.xp, descending)
    dtype = reduced_dtype(name, x.dtype)
    blocks = {  # a place in a vector is a scalar of NumPy's, which could not be written to
        n: x.team.xp.asarray(function(b, axis)).astype(dtype, copy=False)
        for n, b in x.blocks.items()
    }
    if name not in _LOST:
        return Parts(x.team, layout, dtype, blocks)
    cuts = tuple(c for i, c in enumerate(layout.cuts) if i != axis)
    shape = tuple(c[-1] for c in cuts)
    return Parts(x.team, Layout(shape, cuts, layout.holders, layout.workers), dtype, blocks)


def _along_function(name: str, xp: Any, descending: bool) -> Callable[[Any, int], Any]:
    def sums(e: Any, axis: int) -> Any:
        return xp.expand_dims(_in_order(xp.sum, xp, e, (axis,)), axis)

    def wide(x: Any) -> Any:
        return x.astype(accumulated(reduced_dtype(name, x.dtype)), copy=False)

    def softmax(x: Any, axis: int) -> Any:
        x = wide(x)
        e = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
        return e / sums(e, axis)

    def log_softmax(x: Any, axis: int) -> Any:
        x = wide(x)
        x = x - xp.max(x, axis=axis, keepdims=True)
        return x - xp.log(sums(xp.exp(x), axis))

    table: dict[str, Callable[[Any, int], Any]] = {
        "softmax": softmax,
        "log_softmax": log_softmax,
        "cumulative_sum": lambda x, axis: xp.cumsum(wide(x), axis=axis),
        "cumulative_prod": lambda x, axis: xp.cumprod(wide(x), axis=axis),
    }
    if name in table:
        return table[name]
    plain = getattr(xp, name)
    if name not in ("sort", "argsort"):
        return lambda x, axis: plain(x, axis=axis)
    kind = {"kind": "stable"} if xp is np else {}  # CuPy's are stable without being told

    def ordered(x: Any, axis: int) -> Any:
        if not descending:
            return plain(x, axis=axis, **kind)
        # Of the reversed array, reversed again: so equal elements keep their order.
        found = xp.flip(plain(xp.flip(x, axis), axis=axis, **kind), axis)
        return found if name == "sort" else x.shape[axis] - 1 - found

    return ordered
