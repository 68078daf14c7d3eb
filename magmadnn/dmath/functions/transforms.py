"""Discrete Fourier transforms of spread arrays: axes that no worker has whole are brought together first.

A transform over several axes is one after another, each of lines that lie on one worker whole. With slabs
one axis is cut, with pencils two, over a grid of workers; between two stages blocks go from one such layout
to the next, for pencils among workers of one row or column of the grid only (Dalcin, Mortensen, Keyes, 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.layouts.layout import Layout, even_cuts


@dataclass(frozen=True)
class Stage:
    """Where an array lies while some axes are transformed.

    Attributes:
        layout: in which these axes are uncut.
        axes: transformed then.
    """

    layout: Layout
    axes: tuple[int, ...]


@lru_cache(maxsize=256)
def stages(layout: Layout, axes: tuple[int, ...], pencils: bool | None) -> tuple[Stage, ...]:
    """The stages of a transform, beginning with axes that are uncut where the array lies, unless that leaves
    workers without work.

    Args:
        layout: of the array.
        axes: to transform, in this order within a stage.
        pencils: whether two axes are cut, else one; None: two if there are more workers than an axis has
            lines and at least three axes.
    """
    shape, workers = layout.shape, layout.workers
    if pencils is None:
        pencils = len(shape) > 2 and workers > min((shape[a] for a in axes), default=1)
    found, left = [], axes
    if not layout.partial and not layout.replicated:
        here = tuple(axis for axis in axes if layout.grid[axis] == 1)
        others = _cut(layout, axes, 2 if pencils else 1)
        if here and len(layout.active) >= len(others.active):
            found.append(Stage(layout, here))
            left = tuple(axis for axis in axes if axis not in here)
    while left:
        lies = found[-1].layout if found else layout
        layout_next = _cut(lies, left, 2 if pencils else 1)
        now = tuple(axis for axis in left if layout_next.grid[axis] == 1)
        found.append(Stage(layout_next, now))
        left = tuple(axis for axis in left if axis not in now)
    return tuple(found)


def _cut(lies: Layout, left: tuple[int, ...], most: int) -> Layout:
    """Even cuts of as many axes as may be, those that need no transform any more first."""
    shape, workers = lies.shape, lies.workers
    axes = range(len(shape))
    # Of axes that are still to come, those that are cut already, and not the last one.
    order = sorted(axes, key=lambda axis: (axis in left, lies.grid[axis] == 1, axis))
    chosen = sorted(order[: min(most, len(shape) - 1)])
    counts = _grid([shape[axis] for axis in chosen], workers)
    cuts: list[tuple[int, ...]] = [(0, n) for n in shape]
    for axis, count in zip(chosen, counts, strict=True):
        cuts[axis] = even_cuts(shape[axis], count)
    used = int(np.prod(counts, dtype=np.int64))
    return Layout(shape, tuple(cuts), tuple((w,) for w in range(used)), workers)


def _grid(sizes: Sequence[int], workers: int) -> tuple[int, ...]:
    """How often axes are cut: by all workers if there is one; else a grid as square as uses most of them."""
    if not sizes:
        return ()
    if len(sizes) == 1:
        return (min(workers, max(sizes[0], 1)),)
    pairs = [
        (p, q)
        for p in range(1, min(workers, max(sizes[0], 1)) + 1)
        for q in range(1, min(workers // p, max(sizes[1], 1)) + 1)
    ]
    return max(pairs, key=lambda one: (one[0] * one[1], -abs(one[0] - one[1])))


def transform(
    x: Parts,
    name: str,
    axes: Sequence[int],
    dtype: np.dtype[Any],
    size: int = 0,
    norm: str = "backward",
    pencils: bool | None = None,
) -> Parts:
    """A Fourier transform over axes.

    Args:
        x: the array.
        name: "fft" or "ifft"; "rfft": of real numbers, whose last axis of `axes` keeps the half that is not
            a copy; "irfft": its inverse.
        axes: to transform.
        dtype: of the result.
        size: of the last axis of the result of "irfft".
        norm: as NumPy's.
        pencils: see `stages`.
    """
    last = axes[-1]
    if name == "rfft":
        x = _stage(x, stages(x.layout, (last,), pencils)[-1].layout, (last,), "rfft", None, norm)
        rest, inner = tuple(axes[:-1]), "fft"
    else:
        rest, inner = tuple(axes[:-1]) if name == "irfft" else tuple(axes), name.replace("ir", "i")
    if rest:
        for stage in stages(x.layout, rest, pencils):
            x = _stage(x, stage.layout, stage.axes, inner, None, norm)
    if name == "irfft":
        x = _stage(x, stages(x.layout, (last,), pencils)[-1].layout, (last,), "irfft", size, norm)
    return remap(x, x.layout, dtype, share=True)


def _stage(
    x: Parts, layout: Layout, axes: Sequence[int], name: str, size: int | None, norm: str
) -> Parts:
    """The transform of axes that are uncut in a layout."""
    given = list(x.blocks.values()) if x.team.xp is np else []
    x = remap(x, layout, share=True)
    library, scipy = x.team.xp.fft, x.team.xp is np and x.dtype.kind != "V" and _scipy()
    if scipy:
        library = scipy  # it transforms several lines at once, where they lie if it may
    function = getattr(library, name)
    blocks = {}
    for number, block in x.blocks.items():
        made = block
        for axis in axes:
            free = made is not block or not any(np.may_share_memory(made, one) for one in given)
            more = {"overwrite_x": free} if scipy else {}
            made = function(made, n=size, axis=axis, norm=norm, **more)
        blocks[number] = made
    return Parts(x.team, resized(layout, axes[-1], name, size), _kind(x, name), blocks)


@cache
def _scipy() -> Any:
    """SciPy's module; None where it is not installed."""
    try:
        return import_module("scipy.fft")
    except ImportError:
        return None


def resized(layout: Layout, axis: int, name: str, size: int | None) -> Layout:
    """The layout after a transform that changes the size of an uncut axis."""
    n = layout.shape[axis]
    n = n // 2 + 1 if name == "rfft" else size if size is not None and name == "irfft" else n
    shape, cuts = list(layout.shape), list(layout.cuts)
    shape[axis], cuts[axis] = n, (0, n)
    return Layout(tuple(shape), tuple(cuts), layout.holders, layout.workers)


def _kind(x: Parts, name: str) -> np.dtype[Any]:
    """The dtype after a stage; also on workers that hold nothing."""
    single = x.dtype in (np.float32, np.complex64) or x.dtype.itemsize == 2
    if name == "irfft":
        return np.dtype(np.float32 if single else np.float64)
    return np.dtype(np.complex64 if single else np.complex128)


def ended(
    layout: Layout, name: str, axes: Sequence[int], size: int, pencils: bool | None
) -> tuple[Layout, list[tuple[Layout, Layout]]]:
    """Where the result lies, and the changes of layout on the way; what `transform` does, without data."""
    steps, last = [], axes[-1]

    def to(new: Layout, axis: int, kind: str) -> None:
        nonlocal layout
        steps.append((layout, new))
        layout = resized(new, axis, kind, size)

    if name == "rfft":
        to(stages(layout, (last,), pencils)[-1].layout, last, "rfft")
    rest = tuple(axes[:-1]) if name in ("rfft", "irfft") else tuple(axes)
    if rest:
        for stage in stages(layout, rest, pencils):
            to(stage.layout, stage.axes[-1], "fft")
    if name == "irfft":
        to(stages(layout, (last,), pencils)[-1].layout, last, "irfft")
    return layout, steps
