"""Convolutions and pooling of spread arrays, data parallel: each worker has whole images and all filters."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.layouts.layout import Layout, even_cuts, replicated
from magmadnn.errors import DeviceError

WINDOWS = ("convolution", "max_pooling", "average_pooling")


def by_images(layout: Layout) -> Layout:
    """Where images have to lie: as they do if none is cut, else dealt to all workers."""
    whole = all(count == 1 for count in layout.grid[1:])
    if whole and not layout.partial and not layout.replicated:
        return layout
    shape, workers = layout.shape, layout.workers
    cuts = (even_cuts(shape[0], workers), *((0, n) for n in shape[1:]))
    return Layout(shape, cuts, tuple((w,) for w in range(workers)), workers)


def of_windows(
    name: str,
    x: Parts,
    filters: Parts | None,
    places: list[int],
    dtype: np.dtype[Any],
    settings: Any,
) -> Parts:
    """`magmadnn.ops`' function of that name, of each worker's images.

    Args:
        name: one of `WINDOWS`.
        x: [n, *places, c].
        filters: [*size, c / groups, o], which go to all workers.
        places: axes of the result but the first.
        dtype: of the result.
        settings: of the function.

    Raises:
        DeviceError: on workers with a GPU.
    """
    if x.team.xp is not np:
        raise DeviceError(
            f"{name}: spread images are for workers on the CPU: train with md.Model on GPUs"
        )
    from magmadnn import ops  # not needed by what only multiplies

    lies = by_images(x.layout)
    x = remap(x, lies, share=True)
    more: list[Any] = []
    if filters is not None:
        everywhere = replicated(filters.shape, filters.team.size)
        more = [remap(filters, everywhere, share=True).blocks.get(0)]
    function = getattr(ops, name)
    blocks = {n: np.asarray(function(block, *more, **settings)) for n, block in x.blocks.items()}
    shape = (x.shape[0], *places)
    cuts = (lies.cuts[0], *((0, n) for n in places))
    return Parts(x.team, Layout(shape, cuts, lies.holders, lies.workers), dtype, blocks)
